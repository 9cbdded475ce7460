"""Data on a node's disk: one entry per manifest, shared by all runs, the oldest given up first."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.errors import DataError
from launcher.worker.staging.manifest import DataFile

RECENT_S: Final = 600.0  # an entry used so lately may be about to be used: it is not given up
SHARE_KEPT_FREE: Final = 0.02  # of the disk
MOST_KEPT_FREE_BYTES: Final = 2 << 30
GONE: Final = ".gone-"


@dataclass(frozen=True, slots=True)
class Whole:
    """A file that has arrived: its size, when it was written, its SHA-256, and what it is of.

    `identity` is `Manifest.identity`.
    """

    size: int
    mtime_ns: int
    sha256: str
    identity: str


class Entry:
    """The data of one manifest.

    ```
    CACHE/FINGERPRINT.lock        held while it is filled (alone) or used (together)
    CACHE/FINGERPRINT/files/…     the data
    CACHE/FINGERPRINT/parts/…     what has arrived of files that are not whole
    CACHE/FINGERPRINT/whole.json  which files are whole
    CACHE/FINGERPRINT/about.json  where it comes from, for people
    ```
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.files, self._parts = folder, folder / "files", folder / "parts"
        self.lock = folder.with_name(f"{folder.name}.lock")
        self._whole = folder / "whole.json"

    def make(self, about: Mapping[str, Any]) -> None:
        """Make its folders, and note what it is."""
        for each in (self.files, self._parts):
            each.mkdir(parents=True, exist_ok=True)
        _replace(self.folder / "about.json", about)

    def part(self, file: DataFile) -> Path:
        """Where the bytes of a file are gathered."""
        return self._parts / hashlib.sha256(file.path.encode()).hexdigest()[:32]

    def whole(self) -> dict[str, Whole]:
        """Which files have arrived, by path."""
        try:
            noted = json.loads(self._whole.read_text(encoding="utf-8"))
            return {path: Whole(*values) for path, values in noted.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def note(self, whole: Mapping[str, Whole]) -> None:
        """Write down which files are whole, when they are on the disk for good."""
        os.sync()
        values = {p: [w.size, w.mtime_ns, w.sha256, w.identity] for p, w in whole.items()}
        _replace(self._whole, values)

    def has(self, file: DataFile, whole: Mapping[str, Whole]) -> bool:
        """Whether a file is there as it arrived."""
        noted = whole.get(file.path)
        if noted is None or file.size not in (None, noted.size):
            return False
        return _is_as_noted(self.files / file.path, noted)

    def adopt(self, file: DataFile, path: Path, noted: Whole) -> Whole | None:
        """Take the same file over from another entry, without a copy; None: it has gone."""
        target = self.files / file.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.hardlink_to(path)
        except OSError:
            return None
        return noted if _is_as_noted(target, noted) else None

    def finish(self, file: DataFile, sha256: str, identity: str) -> Whole:
        """Move a file that has arrived to its place, where nobody is to change it."""
        part, target = self.part(file), self.files / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        part.chmod(0o444)
        part.replace(target)
        status = target.stat()
        return Whole(status.st_size, status.st_mtime_ns, sha256, identity)

    def link(self, folder: str, target: Path) -> None:
        """Show a folder or file of this machine among the files."""
        place = self.files / folder
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink() or place.readlink() != target:
            place.unlink(missing_ok=True)
            place.symlink_to(target)

    def used(self) -> None:
        """Note that it is used now."""
        self.lock.touch()

    @property
    def used_at_s(self) -> float:
        """When it was used last, in seconds since the epoch."""
        return self.lock.stat().st_mtime if self.lock.exists() else 0.0

    @property
    def n_bytes(self) -> int:
        """What it takes on the disk."""
        found = (path.lstat() for path in self.folder.rglob("*") if not path.is_dir())
        return sum(status.st_size for status in found)


class Cache:
    """All entries of a node.

    Args:
        limit_bytes: what they may take together; None: what the disk has, but for some room.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for gone in folder.glob(f"{GONE}*"):  # a process died while it deleted one
                shutil.rmtree(gone, ignore_errors=True)
        except OSError as error:
            raise DataError(
                f"{folder} on {os.uname().nodename} cannot be made: {error.strerror}. "
                "Name another folder: --cache DIR"
            ) from error

    def entry(self, fingerprint: str) -> Entry:
        """The entry of a manifest, which may be empty."""
        return Entry(self._folder / fingerprint)

    def entries(self) -> tuple[Entry, ...]:
        """All entries, the one unused for longest first."""
        found = [Entry(path) for path in self._folder.iterdir() if (path / "about.json").exists()]
        return tuple(sorted(found, key=lambda each: each.used_at_s))

    def held_by_others(self, entry: Entry) -> dict[str, tuple[Path, Whole]]:
        """Files of the other entries, by identity: most of a folder that has changed a bit."""
        return {
            whole.identity: (other.files / path, whole)
            for other in self.entries()
            if other.folder != entry.folder
            for path, whole in other.whole().items()
        }

    def make_room(self, n_bytes: int, entry: Entry) -> None:
        """Give up entries that nobody uses until so much more fits.

        Args:
            n_bytes: that are to come.
            entry: that they are for.

        Raises:
            DataError: that much does not fit.
        """
        left = [each for each in self.entries() if each.folder != entry.folder]
        while self._room_bytes < n_bytes:
            while left and not _give_up(left[0]):
                left.pop(0)
            if not left:
                raise self._full(n_bytes)
            left.pop(0)

    @property
    def _room_bytes(self) -> float:
        usage = shutil.disk_usage(self._folder)
        kept_free = min(SHARE_KEPT_FREE * usage.total, MOST_KEPT_FREE_BYTES)
        room = usage.free - kept_free
        if self._limit_bytes is not None:
            taken = sum(each.n_bytes for each in self.entries())
            room = min(room, self._limit_bytes - taken)
        return room

    def _full(self, n_bytes: int) -> DataError:
        room = max(0.0, self._room_bytes)
        limit = self._limit_bytes
        what = "The disk" if limit is None else f"The cache (--cache-size {limit:,} bytes)"
        return DataError(
            f"{what} at {self._folder} on {os.uname().nodename} has room for {room / 1e9:,.2f} GB, "
            f"and {n_bytes / 1e9:,.2f} GB of data are to come. Make room there, or name another "
            "folder: --cache DIR"
        )


@contextlib.contextmanager
def held(
    lock: Path, *, alone: bool = False, waiting: Callable[[], object] | None = None
) -> Iterator[None]:
    """Hold an entry while the block runs, alone or together with others; waits for its turn.

    Args:
        waiting: called now and then meanwhile; paces the wait, and ends it by an exception.
    """
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with lock.open("a") as stream:
        while waiting is not None:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(stream, kind | fcntl.LOCK_NB)
                break
            waiting()
        else:
            fcntl.flock(stream, kind)
        yield


@contextlib.contextmanager
def held_now(lock: Path) -> Iterator[bool]:
    """Hold an entry alone if nobody else holds it; whether that is so."""
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _is_as_noted(path: Path, noted: Whole) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (noted.size, noted.mtime_ns)


def _give_up(entry: Entry) -> bool:
    """Delete an entry, unless someone uses it or did so lately; whether it is gone."""
    if time.time() - entry.used_at_s < RECENT_S:
        return False
    with held_now(entry.lock) as is_held:
        if not is_held:
            return False
        gone = entry.folder.with_name(f"{GONE}{uuid.uuid4().hex}")
        entry.folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _replace(path: Path, value: Any) -> None:
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # of a disk that is full
