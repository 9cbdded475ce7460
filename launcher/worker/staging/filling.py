"""Brings what a node lacks of a run's data, once for all who use it there."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from launcher.errors import DataError
from launcher.worker.staging.cache import Cache, Entry, held
from launcher.worker.staging.copying import Copying, FullError, StoppedError
from launcher.worker.staging.local import LocalOrigin
from launcher.worker.staging.manifest import DataFile, Manifest
from launcher.worker.staging.origin import Origin
from launcher.worker.staging.origins import open_origin
from launcher.worker.staging.relay import Fetch, RelayOrigin
from launcher.worker.staging.wanted import DataPlace, Look, Report, Wanted

N_AT_ONCE: Final = 8  # files; a single stream rarely fills a link to an object store
NOTE_EVERY_S: Final = 30.0
NOTE_BYTES: Final = 64 << 20  # a file so large is noted at once
POLL_S: Final = 0.5


def look(wanted: Wanted) -> Look:
    """What is here already. Blocks while it looks at each file.

    Raises:
        DataError: the cache cannot be used.
    """
    in_place, cache = _in_place(wanted.manifest), wanted.open_cache()
    entry = cache.entry(wanted.manifest.fingerprint)
    absent = {i for i, source in enumerate(wanted.manifest.sources) if source.is_local} - in_place
    known = cache.held_by_others(entry)
    missing = [
        file
        for file in _missing(wanted.manifest.files, entry, in_place)
        if wanted.manifest.identity(file) not in known
    ]
    return Look(sum(_left_bytes(file, entry) for file in missing), frozenset(absent))


def _in_place(manifest: Manifest) -> frozenset[int]:
    """The local sources that this machine sees as they were listed."""
    return frozenset(
        index
        for index, source in enumerate(manifest.sources)
        if source.is_local and LocalOrigin(source.uri).is_same(manifest.files_of(index))
    )


def _missing(
    files: Sequence[DataFile], entry: Entry, in_place: frozenset[int]
) -> tuple[DataFile, ...]:
    whole = entry.whole()
    return tuple(f for f in files if f.source not in in_place and not entry.has(f, whole))


def _left_bytes(file: DataFile, entry: Entry) -> int:
    """What has yet to come of a file; at least one byte, so that none is overlooked."""
    part = entry.part(file)
    there = part.stat().st_size if part.exists() else 0
    return max((file.size or 0) - there, 1)


@dataclass(slots=True)
class Filling:
    """Brings one manifest's data to this node.

    Attributes:
        fetch: reads through the driver's machine.
        tell: takes reports.
        stop: ends it early.
    """

    wanted: Wanted
    fetch: Fetch | None
    tell: Callable[[Report], None]
    stop: threading.Event

    def run(self) -> Report:
        """Blocks until all data are here.

        Raises:
            DataError: they cannot be brought.
            StoppedError: `stop` was set.
        """
        manifest, in_place = self.wanted.manifest, _in_place(self.wanted.manifest)
        seen = Report(sum(f.size or 0 for f in manifest.files if f.source in in_place))
        if in_place and len(manifest.sources) == 1 and manifest.sources[0].is_folder:
            return replace(seen, place=DataPlace(manifest.sources[0].uri))
        cache = self.wanted.open_cache()
        entry = cache.entry(manifest.fingerprint)
        entry.used()
        with held(entry.lock, waiting=self._wait):
            if self._is_linked(entry, in_place) and not _missing(manifest.files, entry, in_place):
                return self._over(entry, manifest.n_bytes, 0)
        with held(entry.lock, alone=True, waiting=self._wait):
            entry.make({"from": [source.public for source in manifest.sources]})
            self._show_in_place(entry, in_place)
            self._adopt(cache, entry, _missing(manifest.files, entry, in_place))
            missing = _missing(manifest.files, entry, in_place)
            cache.make_room(sum(_left_bytes(file, entry) for file in missing), entry)
            there = manifest.n_bytes - sum(file.size or 0 for file in missing)
            crew = Crew(self, entry, missing, replace(seen, there_bytes=there))
            return self._over(entry, manifest.n_bytes, crew.fetched_bytes())

    def origin(self, index: int) -> Origin:
        """How a source is read from here.

        Raises:
            DataError: it is not seen from here, and there is no way through the driver.
        """
        source = self.wanted.manifest.sources[index]
        if index in self.wanted.through_driver and self.fetch is not None:
            return RelayOrigin(self.fetch)
        if source.is_local:
            raise DataError(
                f"{source.public} is not the same on {os.uname().nodename} as when it was listed. "
                "Launch again when it does not change any more."
            )
        return open_origin(source)

    def _adopt(self, cache: Cache, entry: Entry, missing: Sequence[DataFile]) -> None:
        """Take over what other entries have of these files."""
        known = cache.held_by_others(entry) if missing else {}
        whole = entry.whole()
        for file in missing:
            held_there = known.get(self.wanted.manifest.identity(file))
            adopted = None if held_there is None else entry.adopt(file, *held_there)
            if adopted is not None:
                whole[file.path] = adopted
        if missing and known:
            entry.note(whole)

    def _show_in_place(self, entry: Entry, in_place: frozenset[int]) -> None:
        """Link to the sources that this machine sees, and no more to those that it saw once."""
        for index, source in enumerate(self.wanted.manifest.sources):
            name, target = self._link(index)
            if index in in_place:
                entry.link(name, target)
            elif source.is_local and (entry.files / name).is_symlink():
                (entry.files / name).unlink()

    def _link(self, index: int) -> tuple[str, Path]:
        """The name of a source that is used in place, and where it lies."""
        source = self.wanted.manifest.sources[index]
        return source.folder or Path(source.uri).name, Path(source.uri)

    def _is_linked(self, entry: Entry, in_place: frozenset[int]) -> bool:
        links = (self._link(index) for index in in_place)
        return all((entry.files / name).is_symlink() for name, _ in links)

    def _wait(self) -> None:
        """Another launch brings the same data just now: say so."""
        self.tell(Report(is_waiting=True))
        if self.stop.wait(POLL_S):
            raise StoppedError

    def _over(self, entry: Entry, n_bytes: int, fetched_bytes: int) -> Report:
        entry.used()
        whole = entry.whole()
        lines = "".join(f"{path}\0{each.sha256}\n" for path, each in sorted(whole.items()))
        place = DataPlace(str(entry.files), str(entry.lock))
        digest = hashlib.sha256(lines.encode()).hexdigest()
        return Report(n_bytes, fetched_bytes, place=place, digest=digest, n_copied=len(whole))


class Crew:
    """Threads that copy files, until all are there or one fails."""

    def __init__(
        self, filling: Filling, entry: Entry, files: Sequence[DataFile], report: Report
    ) -> None:
        self._filling, self._entry, self._report = filling, entry, report
        self._todo = iter(files)
        self._n_threads = min(N_AT_ONCE, len(files))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        names = {file.path for file in filling.wanted.manifest.files}
        self._whole = {path: each for path, each in entry.whole().items() if path in names}
        self._noted_at_s = time.monotonic()
        self._origin_by_source: dict[int, Origin] = {}

    def fetched_bytes(self) -> int:
        """Blocks until all files are there; how many bytes came over the network.

        Raises:
            DataError: a file cannot be brought.
            StoppedError: the filling was stopped.
        """
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(POLL_S)
                if self._filling.stop.is_set():
                    self._stop.set()
        self._entry.note(self._whole)
        if self._error is not None:
            raise self._error
        return self._report.fetched_bytes

    def _work(self) -> None:
        try:
            while not self._stop.is_set() and (file := self._next()) is not None:
                self._copy(file)
        except FullError:
            self._fail(
                DataError(
                    f"The disk at {self._entry.folder.parent} on {os.uname().nodename} is full. "
                    "Make room there, or name another folder: --cache DIR"
                )
            )
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            is_first = self._error is None or isinstance(self._error, StoppedError)
            self._error = error if is_first else self._error
        self._stop.set()

    def _next(self) -> DataFile | None:
        with self._lock:
            return next(self._todo, None)

    def _copy(self, file: DataFile) -> None:
        copying = Copying(
            self._origin(file.source), file, self._entry.part(file), self._arrived, self._stop
        )
        sha256 = copying.sha256()
        identity = self._filling.wanted.manifest.identity(file)
        whole = self._entry.finish(file, sha256, identity)
        with self._lock:
            self._whole[file.path] = whole
            is_due = time.monotonic() - self._noted_at_s > NOTE_EVERY_S
            if is_due or whole.size >= NOTE_BYTES:
                self._entry.note(self._whole)
                self._noted_at_s = time.monotonic()

    def _origin(self, source: int) -> Origin:
        with self._lock:
            if source not in self._origin_by_source:
                self._origin_by_source[source] = self._filling.origin(source)
            return self._origin_by_source[source]

    def _arrived(self, there_bytes: int, fetched_bytes: int) -> None:
        with self._lock:
            self._report = replace(
                self._report,
                there_bytes=self._report.there_bytes + there_bytes,
                fetched_bytes=self._report.fetched_bytes + fetched_bytes,
            )
            self._filling.tell(self._report)
