"""The files that a script writes, copied at the moment of a checkpoint and packed later."""

import contextlib
import hashlib
import io
import os
import shutil
import stat
import tempfile
import weakref
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 30
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip can hold
KEY_BYTES = 8


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time (ns) of every regular file below `folder`.

    Without those whose name is not UTF-8, which no zip can hold, and without links out of the
    folder, such as to data.
    """
    found = {}
    real = os.path.realpath(folder)
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(root, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(real):
                continue
            inside = path.relative_to(folder).as_posix()
            try:
                status = path.stat()
                inside.encode()
            except (OSError, UnicodeEncodeError):  # gone since it was listed, or a broken link
                continue
            if stat.S_ISREG(status.st_mode):
                found[inside] = (status.st_size, status.st_mtime_ns)
    return found


class TooManyBytesError(Exception):
    """The script has written more than can be kept."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(n_bytes)
        self.n_bytes = n_bytes


class _Copy:
    """A file as it was; gone from the disk when nobody holds it any more."""

    def __init__(self, original: Path, status: tuple[int, int], target: Path) -> None:
        self.status, self.path = status, target
        shutil.copy(original, target)  # with its permissions
        weakref.finalize(self, target.unlink, missing_ok=True)


@dataclass(frozen=True, slots=True)
class Packed:
    """Files in one zip; equal files give equal bytes and an equal `key`."""

    key: str
    content: bytes
    n_files: int


class ScriptFiles:
    """What a script has written or changed in its folder since it started.

    Args:
        folder: the private copy in which the script runs.
        before: the files in it before the script started.
    """

    def __init__(self, folder: Path, before: dict[str, tuple[int, int]]) -> None:
        self._folder, self._before = folder, before
        self._place = Path(tempfile.mkdtemp(prefix="files-", dir=folder.parent))
        weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)
        self._n_copied = 0
        self._copies: dict[str, _Copy] = {}

    def copied(self) -> dict[str, Any]:
        """The files as they are now, by name; only what has changed is copied anew.

        Raises:
            TooManyBytesError: they are over `MAX_BYTES`.
        """
        now = {n: s for n, s in listing(self._folder).items() if self._before.get(n) != s}
        n_bytes = sum(size for size, _ in now.values())
        if n_bytes > MAX_BYTES:
            raise TooManyBytesError(n_bytes)
        copies = {}
        for name, status in sorted(now.items()):
            known = self._copies.get(name)
            if known is not None and known.status == status:
                copies[name] = known
                continue
            # A temporary file may be gone; what the script itself may not read is its own affair.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                copies[name] = self._copy(name, status)
        self._copies = copies
        return dict(copies)

    def _copy(self, name: str, status: tuple[int, int]) -> _Copy:
        self._n_copied += 1
        return _Copy(self._folder / name, status, self._place / str(self._n_copied))


def packed(copies: dict[str, Any]) -> Packed:
    """Pack what `ScriptFiles.copied` returned."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, copy in copies.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = copy.path.stat().st_mode << 16
            with (
                copy.path.open("rb") as origin,
                bundle.open(entry, "w", force_zip64=True) as target,
            ):
                shutil.copyfileobj(origin, target, 1 << 20)
    return Packed(key(buffer.getvalue()), buffer.getvalue(), len(copies))


def key(content: bytes) -> str:
    """The name and the checksum of packed files."""
    return hashlib.sha256(content).hexdigest()[: 2 * KEY_BYTES]
