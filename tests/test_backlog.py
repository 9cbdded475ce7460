import threading
from collections.abc import Callable

import pytest

from launcher.backlog import Backlog, Item
from launcher.errors import StorageError
from tests.fakes import soon

QUICK_S = 0.01


class FakeDesk:
    """Takes items unless told to fail or to hang."""

    def __init__(self) -> None:
        self.took: list[str] = []
        self.tried: list[str] = []
        self.errors: list[str] = []
        self.fails: Callable[[Item], bool] = lambda item: False
        self.tries_at_once = 0
        self.answers = threading.Event()
        self.answers.set()

    def write(self, item: Item) -> None:
        self.tried.append(item.path)
        assert self.answers.wait(60)
        if self.fails(item):
            raise StorageError(f"{item.path} cannot be written: the disk is full.")

    def written(self, item: Item, took_s: float) -> None:
        self.took.append(item.path)

    def failed(self, error: StorageError) -> bool:
        self.errors.append(str(error))
        self.tries_at_once -= 1
        return self.tries_at_once >= 0


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def backlog(desk: FakeDesk) -> Backlog:
    return Backlog(desk, QUICK_S)


def files(name: str) -> Item:
    return Item("files", name, name.encode(), is_held=True)


def checkpoint(name: str, needs: str | None = None) -> Item:
    return Item("checkpoint", name, name.encode(), needs, is_held=True)


def test_items_are_written_in_the_order_in_which_they_came(
    desk: FakeDesk, backlog: Backlog
) -> None:
    for item in (files("a"), checkpoint("1", "a"), Item("model", "model.keras", b"x")):
        backlog.put(item)
    assert backlog.empty(60)
    assert desk.took == ["a", "1", "model.keras"]
    assert backlog.error is None


def test_who_puts_something_in_never_waits_for_storage(desk: FakeDesk, backlog: Backlog) -> None:
    desk.answers.clear()
    for number in range(100):
        backlog.put(checkpoint(str(number)))
    assert not backlog.settled("99", 0.05)
    desk.answers.set()
    assert backlog.empty(60)
    assert desk.took[-1] == "99"
    assert len(desk.took) <= 2  # the thread may have begun with an earlier one


def test_only_the_newest_of_a_kind_and_what_it_needs_is_held(
    desk: FakeDesk, backlog: Backlog
) -> None:
    desk.fails = lambda item: True
    for number in range(5):
        backlog.put(files(f"files {number}"))
        backlog.put(checkpoint(str(number), f"files {number}"))
    backlog.put(files("files 5"))
    assert set(backlog.paths()) == {"4", "files 4", "files 5"}
    assert {item.path for item in backlog.waiting()} == set(backlog.paths())


def test_what_fails_is_tried_until_it_works(desk: FakeDesk, backlog: Backlog) -> None:
    desk.fails = lambda item: len(desk.tried) < 4
    backlog.put(checkpoint("1"))
    assert backlog.empty(60)
    assert desk.tried == ["1"] * 4
    assert len(desk.errors) == 3
    assert desk.took == ["1"]


def test_waiting_for_one_ends_when_it_has_failed(desk: FakeDesk, backlog: Backlog) -> None:
    desk.fails = lambda item: True
    backlog.put(checkpoint("1"))
    assert backlog.settled("1", 60)
    assert str(backlog.error) == "1 cannot be written: the disk is full."


def test_what_fails_does_not_hold_up_what_does_not_need_it(
    desk: FakeDesk, backlog: Backlog
) -> None:
    desk.fails = lambda item: item.path == "large files"
    backlog.put(files("large files"))
    backlog.put(checkpoint("1", "large files"))
    backlog.put(Item("model", "model.keras", b"x"))
    assert soon(lambda: [item.path for item in backlog.waiting()] == ["large files", "1"])
    assert desk.took == ["model.keras"]
    assert "1" not in desk.tried


def test_where_room_was_made_it_is_tried_at_once(desk: FakeDesk) -> None:
    backlog = Backlog(desk, first_pause_s=60.0)
    desk.tries_at_once = 2
    desk.fails = lambda item: len(desk.tried) < 3
    backlog.put(checkpoint("1"))
    assert soon(lambda: desk.took == ["1"])


def test_a_pause_ends_when_someone_wants_all_to_be_written(desk: FakeDesk) -> None:
    backlog = Backlog(desk, first_pause_s=60.0)
    desk.fails = lambda item: len(desk.tried) < 2
    backlog.put(checkpoint("1"))
    assert backlog.settled("1", 60)
    assert backlog.empty(60)


def test_the_newest_checkpoint_stays_in_memory_with_its_files(
    desk: FakeDesk, backlog: Backlog
) -> None:
    for item in (files("a"), checkpoint("1", "a"), Item("model", "m", b"x"), checkpoint("2", "a")):
        backlog.put(item)
    assert backlog.empty(60)
    newest = backlog.newest("checkpoint")
    assert newest is not None
    assert newest.path == "2"
    assert set(backlog.paths()) == {"a", "2"}


def test_the_same_files_are_not_written_twice_and_another_model_is(
    desk: FakeDesk, backlog: Backlog
) -> None:
    for item in (files("a"), files("a"), Item("model", "m", b"1"), Item("model", "m", b"2")):
        backlog.put(item)
        assert backlog.empty(60)
    assert desk.took == ["a", "m", "m"]


def test_an_error_of_another_kind_does_not_end_the_writing(
    desk: FakeDesk, backlog: Backlog
) -> None:
    def odd(item: Item) -> bool:
        if len(desk.tried) < 2:
            raise MemoryError("no memory")
        return False

    desk.fails = odd
    backlog.put(checkpoint("1"))
    assert backlog.empty(60)
    assert "no memory" in desk.errors[0]
