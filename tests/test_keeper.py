import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher import keeper as module
from launcher.errors import StorageError
from launcher.keeper import FOLDER, KEEP_CHECKPOINTS, Keeper, checkpoint_paths, files_key
from launcher.ownership import Ownership, this_driver
from launcher.storage import Storage
from launcher.worker.job import ORDER_NONE, ORDER_STOP
from tests.fakes import FakeClock, an_event


@pytest.fixture
def folder(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path)).folder("runs/brave-otter")


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    return Keeper(str(tmp_path), "brave-otter")


def test_events_are_handed_on_once_and_in_order(keeper: Keeper) -> None:
    events = [an_event("stage", text=str(i)) for i in range(5)]
    keeper.tell(events[:2])
    keeper.tell(events[2:])
    assert keeper.drain(0) == events
    assert keeper.drain(0) == []


def test_waiting_ends_as_soon_as_something_is_told(keeper: Keeper) -> None:
    event = an_event("stage", text="running the script")
    timer = threading.Timer(0.1, keeper.tell, [[event]])
    timer.start()
    assert keeper.drain(60) == [event]
    timer.join()


def test_an_order_is_the_answer_until_another_is_given(keeper: Keeper) -> None:
    assert keeper.tell([]) == ORDER_NONE
    keeper.order(ORDER_STOP)
    assert keeper.tell([]) == keeper.tell([]) == ORDER_STOP
    keeper.order(ORDER_NONE)
    assert keeper.tell([]) == ORDER_NONE


@pytest.mark.parametrize(("alone_s", "stops_after_s"), [(math.inf, 30), (9, 9), (0, 2)])
def test_a_driver_that_does_not_ask_any_more_is_missed_in_time(
    tmp_path: Path, alone_s: float, stops_after_s: float
) -> None:
    clock = FakeClock()
    keeper = Keeper(str(tmp_path), "brave-otter", clock=clock)
    keeper.drain(0, alone_s)
    clock.sleep(stops_after_s)
    assert keeper.tell([]) == ORDER_NONE
    clock.sleep(0.1)
    assert keeper.tell([]) == ORDER_STOP
    (event,) = keeper.drain(0)
    assert "stopped at a checkpoint" in event.detail["text"]
    assert keeper.tell([]) == ORDER_STOP  # until the driver says otherwise
    keeper.order(ORDER_NONE)
    assert keeper.tell([]) == ORDER_NONE


def test_once_another_driver_holds_the_run_nothing_is_written(
    keeper: Keeper, folder: Storage
) -> None:
    assert Ownership(folder, "brave-otter").take(2, this_driver())
    keeper.keep_checkpoint({"fit": 0, "epoch": 2, "step": 0}, b"state")
    assert folder.list(FOLDER) == ()
    (event,) = keeper.drain(0)
    assert "TakenOverError" in event.detail["text"]


def test_a_checkpoint_is_in_storage_before_it_is_told(keeper: Keeper, folder: Storage) -> None:
    keeper.keep_checkpoint({"fit": 0, "epoch": 2, "step": 0}, b"state")
    (event,) = keeper.drain(0)
    assert event.kind == "checkpoint"
    assert event.detail["position"] == {"fit": 0, "epoch": 2, "step": 0}
    assert event.detail["bytes"] == 5
    assert event.detail["took_s"] >= 0
    assert folder.read(event.detail["path"]) == b"state"


def test_a_large_checkpoint_and_model_come_in_pieces(keeper: Keeper, folder: Storage) -> None:
    for piece in (b"st", b"at", b"e"):
        keeper.keep_piece("1", piece)
    keeper.keep_checkpoint({"epoch": 2}, "1")
    assert epochs(folder) == ["state"]
    keeper.keep_piece("2", b"model")
    keeper.keep_model("model.keras", "2")
    assert folder.read("model.keras") == b"model"
    assert [event.detail["bytes"] for event in keeper.drain(0)] == [5, 5]


def test_pieces_of_two_senders_are_not_mixed(keeper: Keeper) -> None:
    keeper.keep_piece("1", b"half of one")
    keeper.keep_piece("2", b"other")
    with pytest.raises(StorageError, match="a worker from before was still sending"):
        keeper.keep_checkpoint({"epoch": 2}, "1")


def epochs(folder: Storage) -> list[str]:
    """What the checkpoints in storage hold, oldest first."""
    return [folder.read(path).decode() for path in checkpoint_paths(folder.list(FOLDER))]


def test_only_the_last_few_checkpoints_are_kept(keeper: Keeper, folder: Storage) -> None:
    for number in range(KEEP_CHECKPOINTS + 2):
        keeper.keep_checkpoint({"epoch": number}, str(number).encode())
    assert epochs(folder) == ["2", "3", "4"]
    paths = [event.detail["path"] for event in keeper.drain(0)]
    assert paths == sorted(paths)
    assert len(set(paths)) == len(paths)


def test_a_later_keeper_goes_on_after_the_newest_whatever_its_clock_says(
    tmp_path: Path, folder: Storage
) -> None:
    far = f"checkpoints/{time.time_ns() + 10**15:020d}.npz"
    folder.write(far, b"0")
    folder.write("checkpoints/.unfinished-1.part", b"half")
    keeper = Keeper(str(tmp_path), "brave-otter")
    for number in range(1, KEEP_CHECKPOINTS + 1):
        keeper.keep_checkpoint({"epoch": number}, str(number).encode())
    assert epochs(folder) == ["1", "2", "3"]
    assert len(folder.list(FOLDER)) == KEEP_CHECKPOINTS


def test_files_stay_as_long_as_a_checkpoint_counts_on_them(keeper: Keeper, folder: Storage) -> None:
    for number, key in enumerate(["aa", "aa", "bb", "bb", "bb", "bb"]):
        keeper.keep_files(key, key.encode(), 1, False)
        keeper.keep_checkpoint({"epoch": number}, str(number).encode(), key)
        stored = set(folder.list(FOLDER))
        used = {files_key(path) for path in checkpoint_paths(tuple(stored))}
        assert {name for name in stored if name.endswith(".zip")} == {
            f"files-{key}.zip" for key in used
        }
    assert epochs(folder) == ["3", "4", "5"]


def test_artifacts_and_model_are_told_with_their_paths(keeper: Keeper, folder: Storage) -> None:
    keeper.keep_files("abc0", b"zip", 3)
    keeper.keep_model("model.keras", b"model")
    artifacts, model = keeper.drain(0)
    path = "checkpoints/files-abc0.zip"
    assert artifacts.detail == {"path": path, "files": 3, "bytes": 3}
    assert model.detail == {"path": "model.keras", "bytes": 5}
    assert folder.read(path) == b"zip"
    assert folder.read("model.keras") == b"model"


def test_the_newest_checkpoint_can_be_had_without_storage(keeper: Keeper) -> None:
    assert keeper.newest() is None
    keeper.keep_files("aa", b"zip", 1)
    keeper.keep_checkpoint({"epoch": 1}, b"1", "aa")
    keeper.keep_files("bb", b"later", 1)
    assert keeper.newest() == ({"epoch": 1}, True)
    assert keeper.newest_checkpoint() == b"1"
    assert keeper.newest_files() == b"zip"


@pytest.mark.parametrize("size", [2, 4])
def test_what_is_large_is_forgotten_once_it_is_in_storage(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 3)
    keeper.keep_files("aa", b"x" * size, 1)
    keeper.keep_checkpoint({"epoch": 1}, b"x" * (6 - size), "aa")
    assert keeper.unwritten(60)[0] == ()
    assert keeper.newest() is None


def warnings(keeper: Keeper) -> list[str]:
    return [event.detail["text"] for event in keeper.drain(0) if event.kind == "warning"]


def test_a_storage_that_fails_is_told_once_and_when_it_works_again(
    tmp_path: Path, keeper: Keeper, folder: Storage
) -> None:
    (tmp_path / "runs").write_text("in the way")
    for number in range(3):
        keeper.keep_checkpoint({"epoch": number}, str(number).encode())
    (text,) = warnings(keeper)
    assert "in the way" not in text
    assert "Training goes on" in text
    assert "The newest in storage: none." in text
    assert keeper.newest() == ({"epoch": 2}, False)
    (tmp_path / "runs").unlink()
    assert keeper.unwritten(60)[0] == ()
    again, kept = keeper.drain(0)
    assert again.kind == "stage"
    assert "works again" in again.detail["text"]
    assert kept.detail["position"] == {"epoch": 2}
    assert epochs(folder) == ["2"]


def test_what_could_not_be_written_can_be_taken_elsewhere(tmp_path: Path, keeper: Keeper) -> None:
    (tmp_path / "runs").write_text("in the way")
    keeper.keep_files("aa", b"zip", 1)
    keeper.keep_checkpoint({"epoch": 1}, b"1", "aa")
    keeper.keep_model("model-teacher.keras", b"teacher")
    keeper.keep_model("model.keras", b"model")
    paths, why = keeper.unwritten(0)
    assert [keeper.content(path) for path in paths] == [b"zip", b"1", b"teacher", b"model"]
    assert "cannot be written" in why


def test_a_storage_that_hangs_holds_up_neither_events_nor_orders(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    monkeypatch.setattr(Storage, "write", lambda *_: ends.wait(600))
    for number in range(3):
        keeper.keep_checkpoint({"epoch": number}, b"state")
    keeper.order(ORDER_STOP)
    assert keeper.tell([an_event("stage", text="alive")]) == ORDER_STOP
    told = keeper.drain(0)
    assert [event.kind for event in told] == ["warning", "stage"]
    assert "has not taken" in told[0].detail["text"]
    ends.set()
    assert keeper.unwritten(60)[0] == ()


def full(folder: Storage, room: int) -> Callable[[Storage, str, bytes], None]:
    """A `Storage.write` that has room for so many checkpoints."""
    write = Storage.write

    def write_if_room(storage: Storage, name: str, content: bytes) -> None:
        if len(folder.list(FOLDER)) >= room:
            raise StorageError(f"{name} cannot be written: full.") from OSError(28, "No space left")
        write(storage, name, content)

    return write_if_room


def test_in_a_full_storage_old_checkpoints_make_room_for_the_newest(
    keeper: Keeper, folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        keeper.keep_checkpoint({"epoch": number}, str(number).encode())
    monkeypatch.setattr(Storage, "write", full(folder, room=2))
    keeper.keep_checkpoint({"epoch": 3}, b"3")
    assert epochs(folder) == ["2", "3"]
    assert warnings(keeper) == []


def test_the_last_checkpoint_never_makes_room(
    keeper: Keeper, folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        keeper.keep_checkpoint({"epoch": number}, str(number).encode())
    monkeypatch.setattr(Storage, "write", full(folder, room=0))
    keeper.keep_checkpoint({"epoch": 3}, b"3")
    assert epochs(folder) == ["2"]
    assert len(warnings(keeper)) == 1


def test_a_storage_that_cannot_be_listed_at_first_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> tuple[str, ...]:
        raise StorageError("/x cannot be listed: gone.")

    monkeypatch.setattr(Storage, "list", gone)
    keeper = Keeper(str(tmp_path), "brave-otter")
    keeper.keep_checkpoint({"epoch": 3}, b"3")
    (text,) = warnings(keeper)
    assert text.startswith("/x cannot be listed: gone.")
