"""Who drives a run: claims in its folder, of which each takes over from the one before.

A run has one driver at a time. A driver holds a *term*: it made the file `owner` (term 1) or
`owner.2`, `owner.3`, …, which storage lets exactly one of several make. Whoever holds the highest
term drives the run. A driver looks before it writes: one that was frozen meanwhile, finds that
another has taken over, and writes nothing more.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime

from launcher.errors import TakenOverError, UsageError
from launcher.process import Process, process
from launcher.record import RunRecord, ShownStatus, parse_timestamp
from launcher.storage import Storage

BEAT_S = 10.0  # a driver beats so often
SILENT_S = 60.0  # who has been seen silent for so long is gone …
SILENT_LATE_S = 25.0  # … and if by the clocks it had been silent for long before, after this
CLOCK_SKEW_S = 240.0  # clocks of two machines may differ by so much
LOOK_EVERY_S = 1.0

_CLAIM = re.compile(r"owner(?:\.(\d+))?(\.claims)?")


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that drives a stretch of a run, and where others can follow it.

    Attributes:
        journal: path on its machine of what it shows; empty if it keeps none.
        detached: whether it runs without a terminal.
    """

    process: Process
    journal: str = ""
    detached: bool = False

    def __str__(self) -> str:
        return str(self.process)


@dataclass(frozen=True, slots=True)
class Claim:
    """A driver's claim on a run for a term. `driver` is None where a claim cannot be read."""

    term: int
    driver: Driver | None = None

    @property
    def owner(self) -> str:
        """Who it is, for people."""
        return "someone" if self.driver is None else str(self.driver)


@dataclass(frozen=True, slots=True)
class Sign:
    """What changes while a run's driver lives."""

    term: int
    heartbeat_at: str


@dataclass(frozen=True, slots=True)
class Ownership:
    """The claims on one run.

    Attributes:
        folder: the run's folder in storage.
        run: its name, for messages.
    """

    folder: Storage
    run: str

    def holder(self) -> Claim | None:
        """The claim in force; None if nobody ever claimed the run."""
        term = self._highest(held=True)
        return self._read(term) if term else None

    def reached(self) -> int:
        """The highest term that anyone has held or tried to get; 0 if none."""
        return self._highest(held=False)

    def take(self, term: int, driver: Driver) -> bool:
        """Claim a term; True for exactly one of all who try."""
        token = uuid.uuid4().hex  # tells two claims of one process apart
        content = json.dumps({"owner": str(driver), "token": token, "driver": asdict(driver)})
        return self.folder.create(_file(term), content.encode())

    def require(self, term: int) -> None:
        """Raise TakenOverError if a later term is held by someone."""
        highest = self._highest(held=True)
        if highest > term:
            raise TakenOverError(self.run, self._read(highest).owner)

    def ask_to_stop(self, term: int) -> None:
        """Leave a request for the driver of a term, wherever it is."""
        self.folder.write(f"stop.{term}", b"")

    def is_asked_to_stop(self, term: int) -> bool:
        """Whether someone has left a request for the driver of that term."""
        return self.folder.exists(f"stop.{term}")

    def _highest(self, *, held: bool) -> int:
        return highest_term(self.folder.list(), held=held)

    def _read(self, term: int) -> Claim:
        try:
            driver = json.loads(self.folder.read(_file(term)))["driver"]
            return Claim(term, Driver(Process(**driver.pop("process")), **driver))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return Claim(term)  # being written, or from an earlier launcher


def highest_term(names: Iterable[str], *, held: bool) -> int:
    """The highest term among a run's files, 0 if none.

    With `held` only of claims that won; else also of those that are being decided.
    """
    found = [match for name in names if (match := _CLAIM.fullmatch(name)) is not None]
    return max((int(m[1] or 1) for m in found if not (held and m[2])), default=0)


def this_driver(journal: str = "", *, detached: bool = False) -> Driver:
    """This process as a driver."""
    return Driver(process(), journal, detached)


def shown_status(record: RunRecord, claim: Claim | None, now: datetime) -> ShownStatus:
    """The status for people: a running run may be lost, or detached."""
    if record.status != "running":
        return record.status
    if _is_silent(record, claim, now):
        return "lost"
    return "detached" if record.detached else "running"


def _is_silent(record: RunRecord, claim: Claim | None, now: datetime) -> bool:
    """Whether the driver of a running run seems to be gone, at one look.

    A process of this machine is asked for; of others only the heartbeat is known, by two clocks
    that may differ.
    """
    driver = None if claim is None else claim.driver
    if driver is not None and driver.process.is_here:
        return not driver.process.is_alive
    silent_s = (now - parse_timestamp(record.heartbeat_at)).total_seconds()
    return silent_s > SILENT_S + CLOCK_SKEW_S


@dataclass(slots=True)
class Watch:
    """Looks for a sign of life of a run's driver, by nothing but changes in storage."""

    clock: Callable[[], float]
    sleep: Callable[[float], None]
    now: Callable[[], datetime]
    say: Callable[[str], None] = field(default=lambda _: None)

    def require_gone(
        self, run: str, claim: Claim | None, read: Callable[[], tuple[int, RunRecord]]
    ) -> None:
        """Return when the driver of a run is gone for sure.

        Blocks for at most `SILENT_S`, and until the next beat of a driver that lives.

        Args:
            read: the highest term and the record as they are now.

        Raises:
            UsageError: it lives.
        """
        driver = None if claim is None else claim.driver
        if driver is not None and driver.process.is_here:
            _require_ended(run, driver.process)
            return
        term, record = read()
        first, began_s = _sign(term, record), self.clock()
        age_s = (self.now() - parse_timestamp(record.heartbeat_at)).total_seconds()
        needed_s = SILENT_LATE_S if age_s > SILENT_S else SILENT_S
        owner = record.owner if claim is None or claim.driver is None else claim.owner
        self.say(f"looking for up to {needed_s:.0f} s whether {run} is still driven by {owner}")
        while self.clock() - began_s < needed_s:
            self.sleep(LOOK_EVERY_S)
            term, record = read()
            if _sign(term, record) != first:
                raise _running(run, record.owner)


def _sign(term: int, record: RunRecord) -> Sign:
    return Sign(term, record.heartbeat_at)


def _require_ended(run: str, holder: Process) -> None:
    if holder.is_stopped:
        raise suspended(run, holder)
    if holder.is_alive:
        raise _running(run, str(holder))


def suspended(run: str, holder: Process) -> UsageError:
    """What to say where a process of this machine has a run and is stopped."""
    return UsageError(
        f"{run} is suspended: process {holder.pid} of this machine has it, stopped as by Ctrl-Z. "
        f"Let it go on (fg, or kill -CONT {holder.pid}), or end it: kill -9 {holder.pid}"
    )


def _running(run: str, owner: str) -> UsageError:
    return UsageError(
        f"{run} is still running (owner {owner}). Follow it: launch attach {run}, or stop it: "
        f"launch stop {run}"
    )


def _file(term: int) -> str:
    return "owner" if term == 1 else f"owner.{term}"
