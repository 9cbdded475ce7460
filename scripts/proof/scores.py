"""What choices and predictions were worth, with intervals clustered by workload."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import numpy as np

from policies.forecast import Forecast
from policies.question import Arm

from .problems import Problem

DRAWS: Final = 500
Z90: Final = 1.6449


@dataclass(frozen=True, slots=True)
class Said:
    """A step as it was predicted, in seconds; the deviation of its logarithm where it has one."""

    step_s: float
    sigma: float | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """What a contender did with a problem: its choice, predictions, and what trying cost.

    `spent` is a fraction of the cost of the best plan's job; `forecasts` are the recommender's.
    """

    problem: Problem
    arm: Arm
    said: Mapping[Arm, Said]
    spent: float = 0.0
    forecasts: Mapping[Arm, Forecast] = field(default_factory=dict)

    @property
    def regret(self) -> float:
        """Measured step of the choice over the best, minus one."""
        return self.problem.truth[self.arm].step_s / self.problem.best_s - 1.0

    @property
    def is_best(self) -> bool:
        """Whether the choice is the best, or so near that the measurement cannot tell them apart.

        That is, within one standard deviation of the difference of two measured logarithms.
        """
        truth = self.problem.truth
        best = min(truth.values(), key=lambda each: each.step_s)
        apart = math.hypot(truth[self.arm].error, best.error) if truth[self.arm] != best else 0.0
        return math.log1p(self.regret) <= apart + 1e-12

    @property
    def errors(self) -> list[float]:
        """|predicted / measured - 1| of all arms of several workers that it predicts."""
        return [
            abs(said.step_s / self.problem.truth[arm].step_s - 1.0)
            for arm, said in self.said.items()
            if arm.n_workers > 1
        ]

    @property
    def held(self) -> list[float]:
        """1 for each 90 % interval that holds the measured step of several workers, else 0."""
        found = []
        for arm, said in self.said.items():
            if arm.n_workers > 1 and said.sigma is not None:
                off = math.log(self.problem.truth[arm].step_s / said.step_s)
                found.append(float(abs(off + said.sigma**2 / 2) <= Z90 * said.sigma))
        return found

    @property
    def chosen_error(self) -> list[float]:
        """|predicted / measured - 1| of its choice, where it predicts that."""
        said = self.said.get(self.arm)
        if said is None:
            return []
        return [abs(said.step_s / self.problem.truth[self.arm].step_s - 1.0)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 90 % interval, drawn again by whole workloads; NaN: nothing to score."""

    value: float
    low: float
    high: float

    def shown(self, scale: float = 100.0, digits: int = 1) -> str:
        """As text, in percent by default."""
        if math.isnan(self.value):
            return "-"
        return f"{scale * self.value:.{digits}f}"


class Scored(Protocol):
    """What came of a problem."""

    @property
    def problem(self) -> Problem:
        """Whose workload it counts for."""


T = TypeVar("T", bound=Scored)


def estimate(
    played: Sequence[T], values: Callable[[T], Sequence[float]], *, median: bool = False
) -> Estimate:
    """Mean or median of values over all problems, with an interval clustered by workload."""
    by_workload: dict[str, list[float]] = {}
    for each in played:
        by_workload.setdefault(each.problem.workload, []).extend(values(each))
    groups = [np.array(found) for found in by_workload.values() if len(found)]
    if not groups:
        return Estimate(math.nan, math.nan, math.nan)
    every = np.concatenate(groups)
    value = float(np.median(every) if median else np.mean(every))
    if len(groups) < 2:
        return Estimate(value, math.nan, math.nan)
    drawn = np.random.default_rng(0).integers(0, len(groups), (DRAWS, len(groups)))
    low, high = np.quantile((_medians if median else _means)(groups, drawn), (0.05, 0.95))
    return Estimate(value, float(low), float(high))


def _means(groups: Sequence[np.ndarray], drawn: np.ndarray) -> np.ndarray:
    sums = np.array([group.sum() for group in groups])
    sizes = np.array([len(group) for group in groups])
    found: np.ndarray = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return found


def _medians(groups: Sequence[np.ndarray], drawn: np.ndarray) -> np.ndarray:
    return np.array([np.median(np.concatenate([groups[i] for i in row])) for row in drawn])


@dataclass(frozen=True, slots=True)
class Score:
    """A contender's line of a table; fractions. `whole` is regret and what was spent on trials."""

    name: str
    n_problems: int
    strict: Estimate
    hit: Estimate
    within_5: Estimate
    within_10: Estimate
    regret: Estimate
    worst: float
    step_error: Estimate
    chosen_error: Estimate
    coverage: Estimate
    spent: Estimate
    whole: Estimate


def score(name: str, played: Sequence[Played]) -> Score:
    """All figures of a contender."""
    return Score(
        name,
        len(played),
        estimate(played, lambda p: [float(p.regret <= 0.0)]),
        estimate(played, lambda p: [float(p.is_best)]),
        estimate(played, lambda p: [float(p.regret <= 0.05)]),
        estimate(played, lambda p: [float(p.regret <= 0.10)]),
        estimate(played, lambda p: [p.regret]),
        max(p.regret for p in played),
        estimate(played, lambda p: p.errors, median=True),
        estimate(played, lambda p: p.chosen_error, median=True),
        estimate(played, lambda p: p.held),
        estimate(played, lambda p: [p.spent]),
        estimate(played, lambda p: [p.regret + p.spent]),
    )
