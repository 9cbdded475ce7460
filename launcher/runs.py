"""Where runs are kept: `STORAGE/runs/RUN/`, and the index that remembers each run's storage."""

import json
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from launcher.config import Request
from launcher.errors import RecordError, StorageError, UsageError
from launcher.names import draw_name
from launcher.ownership import Claim, Driver, Ownership, Watch, shown_status
from launcher.record import RunRecord, ShownStatus, dump_record, load_record, new_record
from launcher.storage import Storage
from policies.schema import Experience

logger = logging.getLogger(__name__)

RECORD_FILE = "run.json"
MAX_DRAWS = 100


@dataclass(frozen=True, slots=True)
class Runs:
    """What a listing found: readable records, newest first, and why others cannot be read."""

    records: tuple[RunRecord, ...]
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunIndex:
    """A folder with one small file per run: the URI of its storage, and its driver's host.

    A folder as storage is one of that host.
    """

    folder: Path

    def remember(self, run: str, storage_uri: str, host: str | None = None) -> None:
        """Note where a run is kept; its newest place wins. The host is this one if not given."""
        note = {"run": run, "storage": storage_uri, "host": host or socket.gethostname()}
        Storage.open(str(self.folder)).write(f"{run}.json", json.dumps(note).encode())

    def find(self, run: str) -> str | None:
        """The storage of a run, or None if this machine has not launched it."""
        return self._note(run).get("storage")

    def host(self, run: str) -> str | None:
        """The host that drove a run, or None if not known."""
        return self._note(run).get("host")

    def forget(self, run: str) -> None:
        """Drop the note on a run that never started."""
        (self.folder / f"{run}.json").unlink(missing_ok=True)

    def names(self) -> tuple[str, ...]:
        """All runs launched from this machine."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.json")))

    def _note(self, run: str) -> dict[str, str]:
        try:
            document = json.loads((self.folder / f"{run}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        found = document.items() if isinstance(document, dict) else ()
        return {key: value for key, value in found if isinstance(value, str)}


@dataclass(frozen=True, slots=True)
class RunStore:
    """The runs in one storage."""

    storage: Storage
    index: RunIndex

    def create(
        self,
        request: Request,
        *,
        now: datetime,
        driver: Driver,
        versions: Mapping[str, str],
        rng: np.random.Generator,
    ) -> RunRecord:
        """Claim a name (the request's, or a drawn one) and write the first record.

        Raises:
            UsageError: the request names a run that is already there.
            StorageError: storage cannot be written.
        """
        name = self._claim(request, driver, rng)
        public = self.storage.public_uri
        request = replace(request, name=name, storage=public)
        record = new_record(
            request,
            name,
            now=now,
            owner=str(driver),
            versions=versions,
            detached=driver.detached,
        )
        self.save(record)
        try:
            self.index.remember(name, public)
        except StorageError as error:
            logger.warning("%s Later commands need --storage %s to find the run.", error, public)
        return record

    def save(self, record: RunRecord) -> None:
        """Replace the record atomically. Only the run's one writer may call this.

        Raises:
            TakenOverError: someone else drives the run now.
            StorageError: storage cannot be written.
        """
        self.ownership(record.run).require(record.term)
        self.storage.write(self._file(record.run), dump_record(record).encode())

    def load(self, name: str) -> RunRecord:
        """Read a run's record.

        Raises:
            RecordError: there is no such run, or its record is damaged.
        """
        try:
            document = self.storage.read(self._file(name))
        except FileNotFoundError:
            raise RecordError(self._unknown(name)) from None
        return load_record(document, self.storage.path(self._file(name)))

    def take_over(self, record: RunRecord, driver: Driver, watch: Watch) -> RunRecord:
        """Make a driver the run's one writer; the record to go on with, not written yet.

        Blocks for up to a minute where it must be seen that nobody drives the run any more.

        Raises:
            UsageError: someone drives the run, or was faster.
        """
        ownership, name = self.ownership(record.run), record.run
        reached = ownership.reached()
        if record.status == "running" or reached > record.term:
            watch.require_gone(
                name, ownership.holder(), lambda: (ownership.reached(), self.load(name))
            )
            record = self.load(name)
        term = max(reached, record.term) + 1
        if not ownership.take(term, driver):
            raise UsageError(f"{name} has just been resumed by someone else: launch attach {name}")
        return replace(record, term=term, owner=str(driver), detached=driver.detached)

    def status(self, record: RunRecord, now: datetime) -> ShownStatus:
        """A run's status for people; a running one may be lost, or detached."""
        claim = self.holder(record.run) if record.status == "running" else None
        return shown_status(record, claim, now)

    def holder(self, name: str) -> Claim | None:
        """Who drives a run, or drove it last; None if not known."""
        return self.ownership(name).holder()

    def ownership(self, name: str) -> Ownership:
        """The claims on a run."""
        return Ownership(self.folder(name), name)

    def has(self, name: str) -> bool:
        """Whether a run of that name has a record here."""
        return self.storage.exists(self._file(name))

    def all(self) -> Runs:
        """Every run here, newest first; a damaged record does not hide the others."""
        records: list[RunRecord] = []
        damaged: list[str] = []
        for name in self.storage.list("runs"):
            try:
                records.append(load_record(*self._document(name)))
            except FileNotFoundError:
                continue  # a name just claimed, or a folder of someone else
            except (RecordError, StorageError) as error:
                damaged.append(str(error))
        records.sort(key=lambda record: record.created, reverse=True)
        return Runs(tuple(records), tuple(damaged))

    def experiences(self) -> tuple[Experience, ...]:
        """What all runs here measured, oldest first, for the policy to learn from."""
        return tuple(e for record in reversed(self.all().records) for e in record.experiences())

    def folder(self, name: str) -> Storage:
        """A run's own folder: checkpoints, model and artifacts lie there."""
        return self.storage.folder(f"runs/{name}")

    def _document(self, name: str) -> tuple[bytes, str]:
        return self.storage.read(self._file(name)), self.storage.path(self._file(name))

    def _claim(self, request: Request, driver: Driver, rng: np.random.Generator) -> str:
        if request.name is not None:
            if not self.ownership(request.name).take(1, driver):
                raise UsageError(
                    f"There is already a run named {request.name} in {self.storage.public_uri}. "
                    f"Choose another --name, or go on with it: launch resume {request.name}"
                )
            return request.name
        for _ in range(MAX_DRAWS):
            name = draw_name(rng)
            if self.index.find(name) is None and self.ownership(name).take(1, driver):
                return name
        raise StorageError(
            f"No free name for the run was found in {self.storage.public_uri}. Give one by --name."
        )

    def _unknown(self, name: str) -> str:
        host, uri = self.index.host(name), self.index.find(name)
        if host not in (None, socket.gethostname()) and uri is not None and "://" not in uri:
            return f"{name} is kept in {uri} on {host}. Call launch there."
        known = (*self.storage.list("runs"), *self.index.names())
        close = get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]}?" if close else "`launch runs` lists the runs there are."
        return f"There is no run named {name!r} in {self.storage.public_uri}. {hint}"

    @staticmethod
    def _file(name: str) -> str:
        return f"runs/{name}/{RECORD_FILE}"


def open_store(storage_uri: str, index: RunIndex, run: str | None = None) -> RunStore:
    """The store in `storage_uri`; for a run that is not there, the one the index remembers.

    Raises:
        StorageError: the storage cannot be opened.
        UsageError: `run` cannot be a run's name.
    """
    store = RunStore(Storage.open(storage_uri), index)
    if run is None:
        return store
    if "/" in run or "\\" in run or run in {"", ".", ".."}:
        raise RecordError(f"{run!r} is not a run's name. `launch runs` lists the runs there are.")
    if store.has(run):
        return store
    remembered = index.find(run)
    if remembered is None or remembered == storage_uri:
        return store
    elsewhere = RunStore(Storage.open(remembered), index)
    return elsewhere if elsewhere.has(run) else store
