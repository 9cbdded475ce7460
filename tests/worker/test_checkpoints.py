import io
import zipfile
from pathlib import Path

import pytest

from launcher.worker import checkpoints as module
from launcher.worker import script, snapshot
from launcher.worker.channel import Channel
from launcher.worker.checkpoints import Checkpoints, saved_model
from tests.fakes import FakeKeeper


class Desk:
    """Checkpoints of a script's folder, handed to a fake keeper."""

    def __init__(self, folder: Path, every_s: float | None = None) -> None:
        self.folder, self.keeper = folder, FakeKeeper()
        (folder / "train.py").write_text("x = 1")
        channel = Channel(self.keeper, lambda answer: answer)
        self.checkpoints = Checkpoints(channel, folder, script.listing(folder), every_s)
        self.close = channel.close

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.keeper.calls]

    @property
    def files(self) -> dict[str, bytes]:
        assert self.keeper.artifacts is not None
        with zipfile.ZipFile(io.BytesIO(self.keeper.artifacts)) as bundle:
            return {name: bundle.read(name) for name in bundle.namelist()}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_checkpoint_holds_what_was_reached(desk: Desk) -> None:
    reached = {"position": {"fit": 0, "epoch": 2, "step": 0}, "finished": []}
    desk.checkpoints.write(reached, wait=True)
    assert [snapshot.load(data) for data in desk.keeper.checkpoints] == [reached]
    assert desk.kinds == ["checkpoint"]
    desk.close()


def test_files_come_before_the_checkpoint_that_counts_on_them(desk: Desk) -> None:
    (desk.folder / "log.csv").write_text("epoch\n0\n")
    desk.checkpoints.write({"position": {}}, wait=True)
    assert desk.kinds == ["artifacts", "checkpoint"]
    desk.close()


def test_what_the_script_wrote_or_changed_is_kept_and_no_more(desk: Desk) -> None:
    (desk.folder / "deep").mkdir()
    (desk.folder / "deep" / "größe.txt").write_text("7")
    desk.checkpoints.write_artifacts(wait=True)
    assert desk.files == {"deep/größe.txt": b"7"}
    (desk.folder / "train.py").write_text("x = 2 + 2")
    desk.checkpoints.write_artifacts(wait=True)
    assert desk.files == {"deep/größe.txt": b"7", "train.py": b"x = 2 + 2"}
    desk.close()


def test_unchanged_files_are_not_sent_again(desk: Desk) -> None:
    (desk.folder / "log.csv").write_text("epoch\n")
    for _ in range(3):
        desk.checkpoints.write_artifacts(wait=True)
    assert desk.kinds == ["artifacts"]
    desk.close()


def test_too_many_bytes_are_warned_of_and_not_sent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ARTIFACTS_BYTES", 10)
    (desk.folder / "large.bin").write_bytes(b"x" * 11)
    desk.checkpoints.write_artifacts(wait=True)
    desk.close()
    ((kind, detail),) = desk.keeper.calls
    assert kind == "warning"
    assert "too much to be kept" in detail["text"]


def test_a_checkpoint_in_mid_epoch_is_due_after_its_time_and_asked_for_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, every_s=0.0)
    assert desk.checkpoints.is_due_in_epoch()
    desk.close()


def test_without_a_time_none_is_due_in_mid_epoch(desk: Desk) -> None:
    assert not desk.checkpoints.is_due_in_epoch()
    desk.close()


def test_the_first_epoch_brings_a_checkpoint_and_one_right_after_does_not(desk: Desk) -> None:
    assert desk.checkpoints.is_due_between()
    desk.checkpoints.write({"position": {}, "large": [0.5] * 50_000}, wait=True)
    assert not desk.checkpoints.is_due_between()
    desk.close()


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
            raise NotImplementedError("get_config")
        Path(path).write_text(Path(path).name)


@pytest.mark.parametrize(
    ("whole", "weights", "name"),
    [
        (True, True, "model.keras"),
        (False, True, "model.weights.h5"),
        (False, False, ""),
    ],
)
def test_a_model_is_kept_as_whole_as_keras_can(whole: bool, weights: bool, name: str) -> None:
    assert saved_model(Model(whole=whole, weights=weights)) == (name, name.encode())
