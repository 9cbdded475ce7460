import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from launcher import book as module
from launcher.book import Book
from launcher.errors import RecordError, StorageError
from launcher.record import RunRecord
from tests.fakes import a_record, soon

QUICK_S = 0.01
LONG_S = 60.0  # in which everything happens that comes at all, however busy the machine is


class FakeStore:
    """Takes records unless told to fail or to hang."""

    def __init__(self) -> None:
        self.saved: list[RunRecord] = []
        self.n_tries = 0
        self.trouble: Callable[[], None] = lambda: None

    def save(self, record: RunRecord) -> None:
        self.n_tries += 1
        self.trouble()
        self.saved.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.events[-1].detail for record in self.saved]


class Desk:
    def __init__(self, patience_s: float = LONG_S) -> None:
        self.store, self.warnings = FakeStore(), []
        self.book = Book(
            self.store,  # type: ignore[arg-type]
            a_record(),
            self.warnings.append,
            patience_s=patience_s,
            first_pause_s=QUICK_S,
        )

    def note(self, text: str) -> None:
        self.book.write(self.book.record.happened("stage", text, module.now()))


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def hasty() -> Desk:
    """A book that soon goes on without storage."""
    return Desk(patience_s=0.1)


def full() -> None:
    raise StorageError("run.json cannot be written: No space left on device.")


def test_a_version_is_in_storage_when_it_was_written(desk: Desk) -> None:
    for text in ("one", "two", "three"):
        desk.note(text)
        assert desk.store.texts[-1] == text
    assert desk.book.settle(LONG_S) is None
    assert desk.warnings == []


def test_without_a_store_the_record_stays_in_memory() -> None:
    book = Book(None, a_record())
    book.write(replace(book.record, status="done"))
    book.beat()
    assert book.record.status == "done"
    assert book.settle(LONG_S) is None


def test_a_heartbeat_is_written_now_and_then(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.note("one")
    desk.book.beat()
    assert desk.store.n_tries == 1
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    before = desk.book.record.heartbeat_at
    time.sleep(0.002)
    desk.book.beat()
    assert soon(lambda: len(desk.store.saved) == 2)
    assert desk.store.saved[-1].heartbeat_at > before


def test_a_storage_that_fails_is_told_once_and_the_run_goes_on(desk: Desk) -> None:
    desk.store.trouble = full
    for number in range(20):
        desk.note(str(number))
    assert desk.book.record.events[-1].detail == "19"
    (warning,) = desk.warnings
    assert warning.startswith("run.json cannot be written: No space left on device.")
    desk.store.trouble = lambda: None
    assert desk.book.settle(LONG_S) is None
    assert desk.store.texts == ["19"]
    desk.note("20")
    assert desk.warnings[1:] == ["Storage works again: the run's record is written."]


def test_a_storage_that_hangs_is_waited_for_once_and_for_little(hasty: Desk) -> None:
    ends = threading.Event()
    hasty.store.trouble = lambda: ends.wait(10 * LONG_S) and None
    began_s = time.monotonic()
    for number in range(600):  # 60 s if each waited
        hasty.note(str(number))
    assert time.monotonic() - began_s < 30
    assert len(hasty.warnings) == 1
    assert "has not taken the run's record" in hasty.warnings[0]
    assert hasty.book.settle(0) == "Storage does not answer."
    ends.set()
    assert hasty.book.settle(LONG_S) is None
    assert hasty.store.texts[-1] == "599"
    assert hasty.store.n_tries <= 3  # versions between are left out


def test_a_heartbeat_never_waits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    desk.store.trouble = lambda: ends.wait(10 * LONG_S) and None
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    began_s = time.monotonic()
    for _ in range(100):
        desk.book.beat()
    assert time.monotonic() - began_s < LONG_S / 2  # each would wait for longer
    ends.set()


def test_what_was_not_written_at_the_end_is_told(desk: Desk) -> None:
    desk.store.trouble = full
    desk.note("the end")
    assert desk.book.settle(0.05) == "run.json cannot be written: No space left on device."


def test_a_closed_book_writes_nothing_any_more(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    desk.note("one")
    desk.book.close()
    desk.note("two")
    desk.book.beat()
    assert desk.store.texts == ["one"]
    assert desk.book.record.events[-1].detail == "two"


def test_a_book_that_cannot_write_can_be_closed(desk: Desk) -> None:
    desk.store.trouble = full
    desk.note("one")
    desk.book.close()
    n_tries = desk.store.n_tries
    time.sleep(20 * QUICK_S)
    assert desk.store.n_tries == n_tries


def test_who_must_not_write_any_more_is_told_by_every_call(desk: Desk) -> None:
    def taken_over() -> None:
        raise RecordError("brave-otter has been taken over.")

    desk.store.trouble = taken_over
    for _ in range(2):
        with pytest.raises(RecordError, match="taken over"):
            desk.note("one")
    with pytest.raises(RecordError, match="taken over"):
        desk.book.beat()
    assert desk.store.n_tries == 1


def test_an_error_of_another_kind_does_not_end_the_writing(desk: Desk) -> None:
    def odd() -> None:
        if desk.store.n_tries < 2:
            raise MemoryError("no memory")

    desk.store.trouble = odd
    desk.note("one")
    assert desk.book.settle(LONG_S) is None
    assert desk.store.texts[-1] == "one"


def test_a_heartbeat_from_another_thread_loses_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(patience_s=QUICK_S)  # the newest version is seldom the one in storage
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            desk.book.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    for number in range(200):
        desk.note(str(number))
    over.set()
    thread.join()
    assert [event.detail for event in desk.book.record.events[-200:]] == [
        str(number) for number in range(200)
    ]
