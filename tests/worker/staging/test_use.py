"""A script finds its data by a variable, or in its arguments."""

import os
from pathlib import Path

import pytest

from launcher.worker.staging.cache import held_now
from launcher.worker.staging.use import VARIABLE, data_in_use, with_data_folder
from launcher.worker.staging.wanted import DataPlace


def test_each_rank_finds_its_own_folder(tmp_path: Path) -> None:
    places = (DataPlace("/mnt/a"), DataPlace("/mnt/b"))
    with data_in_use(places, 1):
        assert os.environ[VARIABLE] == "/mnt/b"
        assert with_data_folder("--in=$LAUNCH_DATA_DIR/x") == "--in=/mnt/b/x"
        assert with_data_folder("${LAUNCH_DATA_DIR}") == "/mnt/b"
    assert VARIABLE not in os.environ


def test_without_data_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with data_in_use((), 0):
        assert VARIABLE not in os.environ
        assert with_data_folder("$LAUNCH_DATA_DIR") == "$LAUNCH_DATA_DIR"


def test_a_copy_in_use_is_held(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    with data_in_use((DataPlace(str(tmp_path), str(lock)),), 0), held_now(lock) as is_free:
        assert not is_free
    with held_now(lock) as is_free:
        assert is_free
