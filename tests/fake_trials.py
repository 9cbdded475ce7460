"""Stands for the drivers of a search's trials: each poll shows an epoch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.config import Request
from launcher.follow import Followed
from launcher.journal import Entry
from launcher.ownership import Driver
from launcher.record import CODEC, Outcome, RunRecord
from tests.fakes import FakeClock, a_record

Metrics = Callable[[Mapping[str, str], int], Mapping[str, float]]
EPOCH_S = 10.0
USD_PER_EPOCH = 0.01


def params_of(request: Request) -> dict[str, str]:
    """A trial's arguments by name."""
    words = request.args
    return {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }


@dataclass(slots=True)
class FakeDriver:
    """One trial. It ends after its epochs, at its budget, when it is told to, or by `code`."""

    request: Request
    metrics: Metrics
    epochs: int
    clock: FakeClock
    code: int | None = None
    epoch: int = 0
    stopped: bool = False
    ended: bool = False

    def entries(self) -> list[Entry]:
        if self.ended:
            return []
        if self.code is not None:
            return [self._result(self.code, "failed", "launch: it says so\n")]
        if self.stopped:
            return [self._result(130, "interrupted")]
        if self.epoch == self.epochs:
            return [self._result(0, "done")]
        budget = self.request.budget_usd
        if budget is not None and self.cost_usd + USD_PER_EPOCH > budget:
            is_begun = self.epoch > 0
            return [self._result(5 if is_begun else 3, "budget", "launch: over the budget\n")]
        self.epoch += 1
        self.clock.sleep(EPOCH_S)
        known = dict(self.metrics(params_of(self.request), self.epoch))
        detail = {"epoch": self.epoch, "epochs": self.epochs, "epoch_ended": True}
        return [Entry("training", {**detail, "cost_usd": self.cost_usd, "metrics": known})]

    @property
    def cost_usd(self) -> float:
        return self.epoch * USD_PER_EPOCH

    def is_alive(self) -> bool:
        return not self.ended

    def stop(self) -> None:
        self.stopped = True

    def answer(self, index: int, text: str) -> None:
        raise AssertionError("a trial asks nothing")

    def _result(self, code: int, status: str, text: str = "") -> Entry:
        self.ended = True
        record = self.record(status)
        return Entry("result", {"exit_code": code, "text": text, "record": CODEC.encode(record)})

    def record(self, status: str) -> RunRecord:
        took_s, model = self.epoch * EPOCH_S, f"/models/{self.request.name}.keras"
        outcome = Outcome(took_s, self.cost_usd, model=model if status == "done" else None)
        record = a_record(str(self.request.name))
        return replace(record, status=status, outcome=outcome)  # type: ignore[arg-type]


@dataclass(slots=True)
class FakeTrials:
    """Starts fake drivers; `codes` are the exit codes of those that fail at once, by number."""

    metrics: Metrics
    clock: FakeClock
    epochs: int = 9
    codes: Mapping[int, int] = field(default_factory=dict)
    drivers: list[FakeDriver] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    most_at_once: int = 0

    def start(self, request: Request) -> Followed:
        code = self.codes.get(len(self.drivers))
        driver = FakeDriver(request, self.metrics, self.epochs, self.clock, code)
        self.drivers.append(driver)
        self.most_at_once = max(self.most_at_once, sum(not each.ended for each in self.drivers))
        return driver

    def go_on(self, run: str, request: Request) -> Followed:
        self.resumed.append(run)
        before = next(each for each in self.drivers if each.request.name == run)
        driver = FakeDriver(request, self.metrics, self.epochs, self.clock, epoch=before.epoch)
        self.drivers.append(driver)
        return driver

    def find(self, driver: Driver) -> Followed | None:
        return None


@dataclass(slots=True)
class FakeRuns:
    """The records of runs that have been started."""

    trials: FakeTrials

    def has(self, run: str) -> bool:
        return any(each.request.name == run and each.epoch for each in self.trials.drivers)

    def load(self, run: str) -> RunRecord:
        driver = next(each for each in self.trials.drivers if each.request.name == run)
        return driver.record("interrupted")

    def holder(self, run: str) -> None:
        return None


@dataclass(slots=True)
class Said:
    """A view that keeps what it was told."""

    notes: list[str] = field(default_factory=list)
    n_changes: int = 0

    def stage(self, text: str) -> None:
        self.notes.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def changed(self, record: Any, doing: Mapping[int, str]) -> None:
        self.n_changes += 1
