import tempfile
from pathlib import Path

import numpy as np
import pytest

from launcher.worker import spool


def files_in_memory() -> set[str]:
    """Inodes of the unnamed files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "(deleted)" in line}


def test_large_arrays_lie_in_a_file_that_goes_with_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool, "FROM_BYTES", 1000)
    before = files_in_memory()
    first, empty, second = spool.rooms([600, 0, 600])
    (ours,) = files_in_memory() - before
    first[:], second[:] = 1, 2
    assert (first == 1).all()
    assert second.view(np.float64).shape == (75,)
    assert not empty.size
    del first, empty
    assert (second == 2).all()
    del second
    assert ours not in files_in_memory()


def test_small_arrays_are_in_memory() -> None:
    before = files_in_memory()
    assert [room.size for room in spool.rooms([3, 0, 5])] == [3, 0, 5]
    assert files_in_memory() <= before


def test_where_no_file_can_be_had_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool, "FROM_BYTES", 0)
    monkeypatch.setattr(spool.os, "posix_fallocate", full)
    assert [room.size for room in spool.rooms([3, 5])] == [3, 5]
    assert f"no room in {tempfile.gettempdir()}" in caplog.text
