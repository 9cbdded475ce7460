"""Brings what a run has left in storage home: model, artifacts, record, checkpoints, code."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Final

from launcher.errors import DataError, UsageError
from launcher.small_file import read_object, replace_file
from launcher.worker.staging.copying import Copying, FullError
from launcher.worker.staging.manifest import DataFile
from launcher.worker.staging.origin import DataChangedError, DataMissingError, Origin

BOOK: Final = ".launch-fetched.json"  # what was fetched, so that what others wrote is told apart
PARTS: Final = ".launch-parts"  # what has arrived of files that are not whole
ARTIFACTS, CHECKPOINTS, RECORD = "artifacts", "checkpoints", "run.json"
KINDS: Final = ("model", ARTIFACTS, "record", CHECKPOINTS, "code")
MAX_LISTINGS: Final = 5
_MAX_NAMED = 3


def kind_of(path: str) -> str | None:
    """Which part of a run a file in its folder is; None: nothing for people."""
    top, _, rest = path.partition("/")
    if any(part.startswith(".") and part.endswith(".part") for part in path.split("/")):
        return None
    if rest:
        return top if top in (ARTIFACTS, CHECKPOINTS) else None
    if top == RECORD:
        return "record"
    if top in ("code.zip", "code.json"):
        return "code"
    return "model" if top.startswith("model") else None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What is in the folder now; `new` has come with this call. Paths are relative to it."""

    folder: Path
    paths: tuple[str, ...]
    n_bytes: int
    new: tuple[str, ...]

    def of(self, kind: str) -> tuple[str, ...]:
        """The files of one kind."""
        return tuple(path for path in self.paths if kind_of(path) == kind)

    @property
    def log_folders(self) -> tuple[Path, ...]:
        """Where TensorBoard's logs are, each run of theirs in a folder of its own."""
        logs = (path for path in self.paths if ".tfevents." in path)
        return tuple(sorted({self.folder / Path(path).parent for path in logs}))


@dataclass(slots=True)
class Fetching:
    """Copies files of a run into a folder.

    Attributes:
        origin: the run's folder in storage.
        folder: where to.
        is_overwriting: whether files may go that were not fetched, or have changed since.
        tell: told how many bytes there are of how many.
        announce: told which files are about to be read, in this order.
    """

    origin: Origin
    folder: Path
    is_overwriting: bool = False
    tell: Callable[[int, int], object] = lambda _there, _all: None
    announce: Callable[[Sequence[DataFile]], object] = lambda _files: None
    _noted: dict[str, list[Any]] = field(default_factory=dict)
    _n_there: int = 0
    _new: list[str] = field(default_factory=list)

    def fetched(self, kinds: Collection[str] = KINDS) -> Fetched:
        """Blocks until all is there. What has arrived before is kept; called again it goes on.

        Raises:
            UsageError: another file is in the way.
            DataError: storage cannot be read, or the folder not written.
        """
        for _ in range(MAX_LISTINGS - 1):
            with contextlib.suppress(DataChangedError, DataMissingError):
                return self._round(kinds)
        return self._round(kinds)

    def _round(self, kinds: Collection[str]) -> Fetched:
        """All as it is listed now; a run that goes on may change it meanwhile."""
        files = self._files(kinds)
        self._noted = self._read_book()
        due = [file for file in files if not self._is_there(file)]
        self._refuse_clashes([file for file in due if self._is_in_the_way(file)])
        n_bytes = sum(file.size or 0 for file in files)
        self._n_there = n_bytes - sum(file.size or 0 for file in due)
        self.announce(due)
        try:
            for file in due:
                self._fetch(file, n_bytes)
        except FullError as error:
            raise DataError(
                f"The disk at {self.folder} is full. Make room, or name another folder: --to DIR"
            ) from error
        except OSError as error:
            raise DataError(
                f"{self.folder} cannot be written: {error.strerror}. Name another folder: --to DIR"
            ) from error
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)
        return Fetched(self.folder, tuple(file.path for file in files), n_bytes, tuple(self._new))

    def _files(self, kinds: Collection[str]) -> Sequence[DataFile]:
        """What there is of these kinds, the record last: it then tells of what is there."""
        found = [
            DataFile(each.key, 0, each.key, each.size, each.version)
            for each in self.origin.found()
            if kind_of(each.key) in kinds and ".." not in each.key.split("/")
        ]
        return sorted(found, key=lambda file: (file.path == RECORD, file.path))

    def _is_there(self, file: DataFile) -> bool:
        """Whether it was fetched before, and neither copy has changed since."""
        noted = self._noted.get(file.path)
        return noted is not None and self._is_ours(file) and noted[:2] == [file.size, file.version]

    def _is_ours(self, file: DataFile) -> bool:
        """Whether what is in its place was fetched, and has not changed since."""
        noted, target = self._noted.get(file.path), self.folder / file.path
        return noted is not None and target.is_file() and noted[2] == _stamp(target)

    def _is_in_the_way(self, file: DataFile) -> bool:
        """Whether another file is in its place; one of the same size is compared later."""
        target = self.folder / file.path
        if not target.exists() or self.is_overwriting or self._is_ours(file):
            return False
        return not target.is_file() or target.stat().st_size != file.size

    def _fetch(self, file: DataFile, n_bytes: int) -> None:
        def arrived(there_bytes: int, _fetched_bytes: int) -> None:
            self._n_there += there_bytes
            self.tell(self._n_there, n_bytes)

        target = self.folder / file.path
        part = self.folder / PARTS / hashlib.sha256(f"{file}".encode()).hexdigest()[:32]
        part.parent.mkdir(parents=True, exist_ok=True)
        sha256 = Copying(self.origin, file, part, arrived, Event()).sha256()
        is_free = not target.exists() or self.is_overwriting or self._is_ours(file)
        if is_free:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
        else:
            part.unlink()
            if _sha256(target) != sha256:
                self._refuse_clashes([file])
        self._noted[file.path] = [file.size, file.version, _stamp(target)]
        self._new.append(file.path)
        self._write_book()

    def _refuse_clashes(self, files: Sequence[DataFile]) -> None:
        if not files:
            return
        names = ", ".join(file.path for file in files[:_MAX_NAMED])
        more = f" and {len(files) - _MAX_NAMED} more" if len(files) > _MAX_NAMED else ""
        raise UsageError(
            f"{self.folder} holds other files than the run's: {names}{more}. Name another folder "
            "(--to DIR), or replace them (--overwrite)."
        )

    def _read_book(self) -> dict[str, list[Any]]:
        return read_object(self.folder / BOOK)

    def _write_book(self) -> None:
        replace_file(self.folder / BOOK, json.dumps(self._noted))


def _stamp(path: Path) -> list[int]:
    status: os.stat_result = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
