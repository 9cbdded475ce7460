from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.keeper import Keeper
from launcher.start_point import StartPoint, start_point
from launcher.storage import Storage
from launcher.worker import snapshot
from launcher.worker.files import key as files_key
from tests.fakes import actor

FILES = b"PK files"


def found(keeper: Any, folder: Storage) -> StartPoint:
    return start_point(keeper, folder, pytest.fail, get=lambda answer: answer, put=lambda it: it)


@pytest.fixture
def folder(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path)).folder("runs/brave-otter")


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(str(tmp_path), "brave-otter")


def keep(keeper: Keeper, epoch: int, files: bytes = b"") -> bytes:
    position = {"fit": 0, "epoch": epoch, "step": 0, "total_steps": 10 * epoch}
    data = snapshot.dump({"position": position, "weights": np.ones(3)})
    key = files_key(files) if files else ""
    if files:
        keeper.keep_files(key, files, 1)
    keeper.keep_checkpoint(position, data, key)
    return data


def test_training_begins_at_the_beginning_without_a_checkpoint(
    keeper: Keeper, folder: Storage
) -> None:
    assert found(None, folder) == found(actor(keeper), folder) == StartPoint()
    assert StartPoint().steps_done == 0


def test_it_goes_on_from_what_the_keeper_holds(
    keeper: Keeper, folder: Storage, tmp_path: Path
) -> None:
    data = keep(keeper, 2, FILES)
    for name in folder.files("checkpoints"):
        folder.delete(f"checkpoints/{name}")
    point = found(actor(keeper), folder)
    assert (point.checkpoint, point.files, point.steps_done) == (data, FILES, 20)


def test_without_files_there_are_none(keeper: Keeper, folder: Storage) -> None:
    keep(keeper, 2)
    assert found(actor(keeper), folder).files is None
    assert found(None, folder).files is None


def test_a_new_keeper_holds_nothing_so_storage_is_asked(
    keeper: Keeper, folder: Storage, tmp_path: Path
) -> None:
    keep(keeper, 1)
    data = keep(keeper, 3, FILES)
    for later in (None, actor(Keeper(str(tmp_path), "brave-otter"))):
        point = found(later, folder)
        assert (point.checkpoint, point.files, point.steps_done) == (data, FILES, 30)
