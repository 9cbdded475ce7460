"""The record of a hyper-parameter search: `STORAGE/tunes/NAME/tune.json`, one document, one writer.

Each trial is a run of its own, with its own record in `STORAGE/runs`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import numpy as np

from launcher.config import Request
from launcher.errors import RecordError, StorageError, UsageError
from launcher.names import draw_name
from launcher.ownership import Driver, Ownership
from launcher.record import CODEC, timestamp
from launcher.storage import Storage

SCHEMA = 1
FILE = "tune.json"
MAX_DRAWS = 100
Mode = Literal["min", "max"]
TrialStatus = Literal[
    "running", "paused", "done", "stopped", "budget", "deadline", "interrupted", "failed"
]
TuneStatus = Literal["running", "done", "budget", "deadline", "interrupted", "failed"]
OPEN: frozenset[str] = frozenset({"running", "paused"})


@dataclass(frozen=True, slots=True)
class EpochValue:
    """What the metric was after an epoch, counted from 1."""

    epoch: int
    value: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration, and the run that trains it.

    Attributes:
        run: the run's name.
        status: `stopped` means early, because others were better; `paused` that it can go on.
        nodes: ids of those that it has to itself; empty for all.
        allotment_usd: what it may cost.
        started_s: when, in seconds since the search began.
        time_s: that its driver took.
        training_s: the part of it in which nodes trained.
        width_s: what a whole trial of its width was predicted to train.
    """

    number: int
    run: str
    params: Mapping[str, Any]
    status: TrialStatus = "running"
    nodes: tuple[str, ...] = ()
    n_workers: int | None = None
    epochs: int | None = None
    values: tuple[EpochValue, ...] = ()
    allotment_usd: float | None = None
    cost_usd: float = 0.0
    started_s: float = 0.0
    time_s: float = 0.0
    training_s: float | None = None
    width_s: float | None = None
    model: str | None = None
    error: str | None = None

    @property
    def value(self) -> float | None:
        """The metric after the last epoch, which is what the model has; None if not a number."""
        if not self.values or not math.isfinite(self.values[-1].value):
            return None
        return self.values[-1].value

    @property
    def epoch(self) -> int:
        """Epochs that it has been trained for."""
        return self.values[-1].epoch if self.values else 0


@dataclass(frozen=True, slots=True)
class TuneRecord:
    """One search, from what was asked to what was found.

    Attributes:
        request: what all trials share; its budget and deadline are the search's.
        script: as the user typed it.
        passes_variable: whether parameters go into `$LAUNCH_PARAMS`, not into arguments.
        space: the text of the file that describes the search space.
        n_trials: at most so many.
        stops_early: whether trials that will not win are stopped.
        spent_s: in earlier stretches.
    """

    schema: int
    name: str
    status: TuneStatus
    created: str
    request: Request
    script: str
    passes_variable: bool
    space_file: str
    space: str
    metric: str | None
    mode: Mode | None
    searcher: str
    n_trials: int
    stops_early: bool = True
    max_at_once: int | None = None
    term: int = 1
    trials: tuple[Trial, ...] = ()
    spent_s: float = 0.0
    reason: str = ""

    @property
    def cost_usd(self) -> float:
        """What all trials have cost so far."""
        return sum(trial.cost_usd for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The best trial that was trained to its end, else the best of the others."""
        rated = [trial for trial in self.trials if trial.value is not None]
        whole = [trial for trial in rated if trial.status == "done"]
        if not rated:
            return None
        sign = -1.0 if self.mode == "max" else 1.0
        return min(whole or rated, key=lambda trial: sign * (trial.value or 0.0))

    def with_trial(self, trial: Trial) -> "TuneRecord":
        """With a new trial, or one changed."""
        others = {each.number: each for each in self.trials} | {trial.number: trial}
        return replace(self, trials=tuple(others[number] for number in sorted(others)))


@dataclass(frozen=True, slots=True)
class TuneStore:
    """The searches in one storage."""

    storage: Storage

    def claim(self, name: str | None, driver: Driver, rng: np.random.Generator) -> str:
        """A name that no other search has: this one, or a drawn one.

        Raises:
            UsageError: the name is taken.
            StorageError: no free name was found.
        """
        if name is not None:
            if not self._ownership(name).take(1, driver):
                raise UsageError(
                    f"There is already a search named {name} in {self.storage.public_uri}. Choose "
                    f"another --name, or go on with it: launch tune --resume {name}"
                )
            return name
        for _ in range(MAX_DRAWS):
            drawn = f"tune-{draw_name(rng)}"
            if self._ownership(drawn).take(1, driver):
                return drawn
        raise StorageError(
            f"No free name was found in {self.storage.public_uri}. Give one by --name."
        )

    def take_over(self, record: TuneRecord, driver: Driver) -> TuneRecord:
        """Make a driver the search's one writer.

        One on another machine, of which is not known whether it lives, ends when it writes next.

        Raises:
            UsageError: another process of this machine drives it.
        """
        ownership = self._ownership(record.name)
        holder = ownership.holder()
        process = holder.driver.process if holder is not None and holder.driver else None
        lives_here = process is not None and process.is_here and process.is_alive
        if holder is not None and record.status == "running" and lives_here:
            raise UsageError(
                f"{record.name} is driven by {holder.owner}. Wait, or stop that first."
            )
        term = max(ownership.reached(), record.term) + 1
        if not ownership.take(term, driver):
            raise UsageError(
                f"{record.name} has just been resumed by someone else. Leave it to them."
            )
        return replace(record, term=term)

    def save(self, record: TuneRecord) -> None:
        """Replace the record. Only the search's one writer may call this.

        Raises:
            TakenOverError: someone else drives the search now.
            StorageError: storage cannot be written.
        """
        self._ownership(record.name).require(record.term)
        document = json.dumps(CODEC.encode(record), indent=1, ensure_ascii=False)
        self.folder(record.name).write(FILE, document.encode())

    def load(self, name: str) -> TuneRecord:
        """Read a search's record.

        Raises:
            RecordError: there is none of that name, or it is damaged.
        """
        folder = self.folder(name)
        try:
            return CODEC.decode(TuneRecord, json.loads(folder.read(FILE)))
        except FileNotFoundError:
            raise RecordError(
                f"There is no search named {name!r} in {self.storage.public_uri}. Give --storage "
                "if it is kept elsewhere."
            ) from None
        except (ValueError, TypeError) as error:
            raise RecordError(
                f"{folder.path(FILE)} is damaged: {error}. Delete it, or start another search."
            ) from error

    def folder(self, name: str) -> Storage:
        """A search's own folder."""
        return self.storage.folder(f"tunes/{name}")

    def _ownership(self, name: str) -> Ownership:
        return Ownership(self.folder(name), name)


class TuneBook:
    """The record of the search that this process drives; written at each change.

    Args:
        save: writes it.
    """

    def __init__(self, record: TuneRecord, save: Callable[[TuneRecord], None]) -> None:
        self.record, self._save = record, save

    def write(self, **changes: Any) -> None:
        """Change the record, and write it."""
        self.record = replace(self.record, **changes)
        self._save(self.record)

    def trial(self, trial: Trial) -> None:
        """Add a trial or change one, and write the record."""
        self.record = self.record.with_trial(trial)
        self._save(self.record)


def new_tune_record(now: datetime, **asked: Any) -> TuneRecord:
    """The record of a search that begins now."""
    return TuneRecord(schema=SCHEMA, status="running", created=timestamp(now), **asked)
