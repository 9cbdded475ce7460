import io
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.worker import checkpoints, files, snapshot
from launcher.worker.channel import Channel
from launcher.worker.checkpoints import Checkpoints, saved_model
from tests.fakes import FakeKeeper, soon


class Desk:
    """Checkpoints of a script's folder, handed to a fake keeper."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keeper = folder, FakeKeeper()
        (folder / "train.py").write_text("x = 1")
        self.channel = Channel(self.keeper, self._get)
        self.checkpoints = Checkpoints(self.channel, folder, files.listing(folder), None)
        self.is_open = threading.Event()  # whether the keeper answers
        self.is_open.set()

    def _get(self, answer: Any) -> Any:
        if answer == "checkpoint kept":
            assert self.is_open.wait(60)
        return answer

    def write(self, epoch: int, *, wait: bool = True, **more: Any) -> None:
        reached = {"position": {"fit": 0, "epoch": epoch, "step": 0}, **more}
        self.checkpoints.write(reached, began_s=time.perf_counter(), wait=wait)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.keeper.calls]

    @property
    def kept_epochs(self) -> list[int]:
        return [snapshot.position(data)["epoch"] for data in self.keeper.checkpoints]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(checkpoints, "LAST_S", 60.0)  # a busy machine may hold everything up
    folder = tmp_path / "work"
    folder.mkdir()
    desk = Desk(folder)
    yield desk
    desk.is_open.set()
    desk.channel.close()


def test_a_checkpoint_holds_what_was_reached(desk: Desk) -> None:
    desk.write(2, finished=[])
    (found,) = [snapshot.load(data) for data in desk.keeper.checkpoints]
    assert found == {"position": {"fit": 0, "epoch": 2, "step": 0}, "finished": []}
    assert desk.kinds == ["checkpoint"]


def test_training_does_not_wait_until_it_is_kept(desk: Desk) -> None:
    desk.is_open.clear()
    desk.write(0, wait=False)
    assert not desk.checkpoints.pace.is_due_in_epoch()
    desk.is_open.set()
    desk.checkpoints.settle()
    assert desk.kept_epochs == [0]


def test_one_is_in_flight_and_the_newest_of_those_that_wait_follows(desk: Desk) -> None:
    desk.is_open.clear()
    for epoch in range(5):
        desk.write(epoch, wait=False)
        assert soon(lambda: desk.kept_epochs[:1] == [0])
    desk.is_open.set()
    desk.checkpoints.settle()
    assert desk.kept_epochs == [0, 4]


def test_waiting_ends_when_all_is_kept(desk: Desk) -> None:
    desk.is_open.clear()
    desk.write(0, wait=False)
    assert soon(lambda: desk.kept_epochs == [0])  # it is in flight
    threading.Timer(0.1, desk.is_open.set).start()
    desk.write(1, wait=True)
    assert desk.kept_epochs == [0, 1]


def test_what_is_in_flight_lands_before_the_channel_closes(desk: Desk) -> None:
    desk.write(0, wait=False)
    desk.channel.close()
    assert desk.kept_epochs == [0]


def test_files_come_before_the_checkpoint_that_counts_on_them(desk: Desk) -> None:
    (desk.folder / "log.csv").write_text("epoch\n0\n")
    desk.write(0)
    assert desk.kinds == ["artifacts", "checkpoint"]
    (_, files), (_, checkpoint) = desk.keeper.calls
    assert checkpoint["files"] == files["key"]


def test_files_are_those_of_the_moment_of_the_checkpoint(desk: Desk) -> None:
    log = desk.folder / "log.csv"
    desk.is_open.clear()
    desk.write(0, wait=False)
    log.write_text("epoch\n0\n")
    desk.write(1, wait=False)
    log.write_text("epoch\n0\n1\n")
    desk.is_open.set()
    desk.checkpoints.settle()
    assert desk.keeper.artifacts is not None
    with zipfile.ZipFile(io.BytesIO(desk.keeper.artifacts)) as bundle:
        assert bundle.read("log.csv") == b"epoch\n0\n"


def test_unchanged_files_are_not_sent_again(desk: Desk) -> None:
    (desk.folder / "log.csv").write_text("epoch\n")
    for _ in range(3):
        desk.checkpoints.write_artifacts(wait=True)
    assert desk.kinds == ["artifacts"]


def test_too_many_bytes_are_warned_of_once_and_not_sent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    for size in (11, 12):
        (desk.folder / "large.bin").write_bytes(b"x" * size)
        desk.checkpoints.write_artifacts(wait=True)
    desk.channel.flush()
    ((kind, detail),) = desk.keeper.calls
    assert kind == "warning"
    assert "too much to be kept" in detail["text"]


def test_files_that_cannot_be_copied_do_not_stop_training(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk.folder / "log.csv").write_text("epoch\n")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.shutil, "copy", full)
    desk.write(0)
    assert desk.kept_epochs == [0]
    warnings = [detail["text"] for kind, detail in desk.keeper.calls if kind == "warning"]
    assert len(warnings) == 1
    assert "No space left" in warnings[0]


def test_a_checkpoint_that_cannot_be_packed_is_told_and_the_next_one_kept(desk: Desk) -> None:
    desk.write(0, wait=False, odd=object())
    desk.checkpoints.settle()
    desk.write(1)
    assert desk.kept_epochs == [1]
    warnings = [detail["text"] for kind, detail in desk.keeper.calls if kind == "warning"]
    assert len(warnings) == 1
    assert "not kept" in warnings[0]
    with pytest.raises(TypeError, match="not JSON serializable"):
        desk.write(2, odd=object())


class Full(io.BytesIO):
    """A file on a disk without room."""

    def write(self, _: Any) -> int:
        raise OSError(28, "No space left on device")


def test_without_room_on_disk_a_checkpoint_is_packed_in_memory(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints.tempfile, "SpooledTemporaryFile", lambda _: Full())
    desk.write(3)
    assert desk.kept_epochs == [3]


class Model:
    """A model that Keras can save in one of two ways, or in none."""

    def __init__(self, *, whole: bool, weights: bool) -> None:
        self._whole, self._weights = whole, weights

    def save(self, path: str) -> None:
        self._write(path, is_possible=self._whole)

    def save_weights(self, path: str) -> None:
        self._write(path, is_possible=self._weights)

    @staticmethod
    def _write(path: str, *, is_possible: bool) -> None:
        if not is_possible:
            raise KeyError("of the script's own get_config")
        Path(path).write_text(Path(path).name)


@pytest.mark.parametrize(
    ("whole", "weights", "name"),
    [
        (True, True, "model.keras"),
        (False, True, "model.weights.h5"),
        (False, False, None),
    ],
)
def test_a_model_is_kept_as_whole_as_keras_can(
    whole: bool, weights: bool, name: str | None, tmp_path: Path
) -> None:
    found = saved_model(Model(whole=whole, weights=weights), tmp_path)
    assert (found and found.read_text()) == name


def test_what_is_large_is_handed_over_in_pieces(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 100)
    monkeypatch.setattr(checkpoints, "FROM_BYTES", 50)
    desk.write(3, weights=np.arange(50.0))
    (found,) = [snapshot.load(data) for data in desk.keeper.checkpoints]
    assert found["position"]["epoch"] == 3
    assert found["weights"].tolist() == list(range(50))
    desk.checkpoints.write_models([Model(whole=True, weights=True)])
    assert desk.kinds == ["checkpoint", "model"]
