"""Remembers which clusters were brought up from here, so that none is forgotten."""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from launcher.codec import Codec, DecodeError
from launcher.errors import StorageError
from launcher.small_file import read_object, replace_file

logger = logging.getLogger(__name__)

_CODEC = Codec()


@dataclass(frozen=True, slots=True)
class Entry:
    """A cluster; times are seconds since the epoch.

    Attributes:
        file: the cluster file's absolute path.
        folder: where the command was called: paths in the file may begin there.
        usd_per_h: of the machines that are up from the start.
        ended_at: when it was taken down; None while it may be up.
        cost_usd: what it had cost when it was last looked at.
        image_by_name: what the file's names for images meant when it came up. A cluster that is up
            keeps them: for another image Ray would end the head and rent a new one.
        up_s: how long it took to come up the last time; None: not known.
    """

    name: str
    file: str
    folder: str
    provider: str
    usd_per_h: float
    begun_at: float
    ended_at: float | None = None
    cost_usd: float | None = None
    image_by_name: Mapping[str, str] = field(default_factory=dict)
    up_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterBook:
    """A folder with one small file per cluster file; a cluster that comes up again begins anew."""

    folder: Path

    def write(self, entry: Entry) -> None:
        """Note a cluster.

        Raises:
            StorageError: the folder cannot be written.
        """
        with self._writing():
            replace_file(self._path(entry.file), json.dumps(_CODEC.encode(entry)))

    def begin(self, entry: Entry) -> Entry:
        """Note a cluster that comes up; one that is up already keeps its beginning."""
        known = self.find(Path(entry.file))
        if known is not None and known.ended_at is None:
            entry = replace(entry, begun_at=known.begun_at, cost_usd=known.cost_usd)
        self.write(entry)
        return entry

    def end(self, file: Path, now: float) -> None:
        """Note that a cluster is down."""
        entry = self.find(file)
        if entry is not None and entry.ended_at is None:
            self.write(replace(entry, ended_at=now))

    def find(self, file: Path) -> Entry | None:
        """What is known of a file's cluster, if anything."""
        return _read(self._path(str(file.absolute())))

    def open_entries(self) -> Iterator[Entry]:
        """The clusters that may be up, the oldest first."""
        found = [_read(path) for path in self.folder.glob("*.json")]
        left = [entry for entry in found if entry is not None and entry.ended_at is None]
        yield from sorted(left, key=lambda entry: entry.begun_at)

    @contextmanager
    def alone_with(self, file: Path, say: Callable[[str], None]) -> Iterator[None]:
        """Be the only one on this machine who brings a cluster up or down; waits for others.

        Two who bring it up at once would rent two heads, or end each other's Ray.

        Raises:
            StorageError: the folder cannot be written.
        """
        lock = self._path(str(file.absolute())).with_suffix(".lock")
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            stream = lock.open("a")
        with stream:
            _lock(stream, lambda: say(f"waiting for another command that brings {file} up or down"))
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self.folder}, which remembers clusters, cannot be written: {error.strerror}. "
                "Make it writable, or make room there."
            ) from error

    def _path(self, file: str) -> Path:
        name = hashlib.sha256(os.path.normpath(file).encode()).hexdigest()[:16]
        return self.folder / f"{name}.json"


def _lock(stream: IO[str], waiting: Callable[[], None]) -> None:
    """Lock a file; `waiting` is called if that takes a while."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(stream, fcntl.LOCK_EX)
    except OSError as error:  # a network's file system may know no locks
        logger.warning("%s cannot be locked: %s", stream.name, error.strerror)


def _read(path: Path) -> Entry | None:
    """An entry; None if there is none, or it is damaged: nothing else rests on it."""
    try:
        return _CODEC.decode(Entry, read_object(path))
    except DecodeError:
        return None
