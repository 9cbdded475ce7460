"""Real file systems for tests: small, read-only, and gone."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount file systems")


class Mount:
    """A file system in memory that holds so many bytes."""

    def __init__(self, path: Path, n_bytes: int) -> None:
        self.path = path
        self._filler = path / "filler"
        _run("mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(path))

    def fill(self) -> None:
        """Write until nothing more fits."""
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    def empty(self) -> None:
        """Make room again."""
        self._filler.unlink()

    def read_only(self, is_read_only: bool) -> None:
        """Take writes no more, or again."""
        _run("mount", "-o", f"remount,{'ro' if is_read_only else 'rw'}", str(self.path))

    def unmount(self) -> None:
        """Take it away; its place is an empty folder then."""
        _run("umount", "--lazy", str(self.path))


@contextlib.contextmanager
def mounted(path: Path, n_bytes: int) -> Iterator[Mount]:
    """A file system of its own at `path`, while the block runs."""
    path.mkdir()
    mount = Mount(path, n_bytes)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


class DiskMount:
    """A file system on a disk of 16 MB, which can be made to hang."""

    def __init__(self, path: Path) -> None:
        self.path = path
        image = path.with_suffix(".img")
        with image.open("wb") as file:
            file.truncate(16 << 20)
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(path))

    def freeze(self) -> None:
        """Let everyone hang who writes, as on NFS without its server."""
        _run("fsfreeze", "--freeze", str(self.path))

    def thaw(self) -> None:
        """Let them go on."""
        _run("fsfreeze", "--unfreeze", str(self.path))


@contextlib.contextmanager
def mounted_disk(path: Path) -> Iterator[DiskMount]:
    """A file system of its own at `path`, while the block runs; skips without loop devices."""
    path.mkdir()
    try:
        mount = DiskMount(path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system on a loop device here: {error}")
    try:
        yield mount
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(path)], check=False, capture_output=True)
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
