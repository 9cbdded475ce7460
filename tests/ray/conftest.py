"""Fixtures of the tests on real Ray clusters."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def short_dir() -> Iterator[Path]:
    """A folder for Ray's sockets, whose paths must be short."""
    folder = Path(tempfile.mkdtemp(prefix="lr", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
