import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import StorageError
from launcher.keeper import KEEP_CHECKPOINTS, Keeper
from launcher.storage import Storage
from launcher.worker.job import ORDER_NONE, ORDER_STOP
from tests.fakes import an_event


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
    assert keeper.drain(30) == [event]
    timer.join()


def test_an_order_is_the_answer_until_another_is_given(keeper: Keeper) -> None:
    assert keeper.tell([]) == ORDER_NONE
    keeper.order(ORDER_STOP)
    assert keeper.tell([]) == keeper.tell([]) == ORDER_STOP
    keeper.order(ORDER_NONE)
    assert keeper.tell([]) == ORDER_NONE


def test_a_checkpoint_is_in_storage_before_it_is_told(keeper: Keeper, folder: Storage) -> None:
    keeper.keep_checkpoint({"fit": 0, "epoch": 2, "step": 0}, b"state")
    (event,) = keeper.drain(0)
    assert event.kind == "checkpoint"
    assert event.detail["position"] == {"fit": 0, "epoch": 2, "step": 0}
    assert event.detail["bytes"] == 5
    assert event.detail["took_s"] >= 0
    assert folder.read(event.detail["path"]) == b"state"


def test_only_the_last_few_checkpoints_are_kept(keeper: Keeper, folder: Storage) -> None:
    for number in range(KEEP_CHECKPOINTS + 2):
        keeper.keep_checkpoint({"epoch": number}, str(number).encode())
    checkpoints = folder.folder("checkpoints")
    kept = sorted(checkpoints.read(name) for name in checkpoints.files())
    assert kept == [b"2", b"3", b"4"]
    paths = [event.detail["path"] for event in keeper.drain(0)]
    assert paths == sorted(paths)
    assert len(set(paths)) == len(paths)


def test_artifacts_and_model_are_kept_under_their_names(keeper: Keeper, folder: Storage) -> None:
    keeper.keep_artifacts(b"zip", 3)
    keeper.keep_model("model.keras", b"model")
    artifacts, model = keeper.drain(0)
    assert artifacts.detail == {"path": "artifacts.zip", "files": 3, "bytes": 3}
    assert model.detail == {"path": "model.keras", "bytes": 5}
    assert folder.read("artifacts.zip") == b"zip"
    assert folder.read("model.keras") == b"model"


def test_a_storage_that_fails_is_told_once(tmp_path: Path) -> None:
    keeper = Keeper(str(tmp_path), "brave-otter")
    (tmp_path / "runs").write_text("in the way")
    for _ in range(2):
        with pytest.raises(StorageError, match="runs"):
            keeper.keep_checkpoint({"epoch": 1}, b"state")
    (warning,) = keeper.drain(0)
    assert warning.kind == "warning"
    assert "No new checkpoint" in warning.detail["text"]
    (tmp_path / "runs").unlink()
    keeper.keep_checkpoint({"epoch": 2}, b"state")
    assert [event.kind for event in keeper.drain(0)] == ["checkpoint"]
