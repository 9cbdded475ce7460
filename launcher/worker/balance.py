"""Shares of the batch that follow the ranks' speeds; pure arithmetic, the same on every rank."""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

QUICK_STEPS, QUICK_GAIN = 5, 0.20
MAX_QUICK_STEPS = 40
STEADY_STEPS, STEADY_GAIN = 20, 0.05
MIN_SHARE = 1e-3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """What one rank measured of one step; all zero where it measured nothing.

    Attributes:
        rows: that it computed.
        busy_s: from its data's arrival to its gradients, without waiting for others.
        step_s: from the beginning of the step to that of the next.
    """

    rows: float
    busy_s: float
    step_s: float


class Balance:
    """Gives each rank a share of the batch in proportion to its speed, rows/s.

    A great change of speeds is followed within a few steps, a small one when it has lasted.
    Quick changes must show in the mean and in the median of the last steps: one hiccup shows in
    the mean alone. Where speeds change so fast that following them does not save what it should,
    the next quick change needs twice as many steps. A lasting change must show without each
    rank's slowest step. No sum depends on the machine that makes it, so that all ranks agree.

    Where a step has a constant part, rows in proportion to speed even the times out in a few
    rounds, for the speed that is measured includes the constant part at the present slice.

    Args:
        shares: to begin with, each rank's positive part, any scale.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        self.shares = tuple(shares)
        self._window: list[tuple[Pace, ...]] = []
        self._quick_steps = QUICK_STEPS
        self._promised_s: float | None = None  # a step's duration after the last quick change

    def restart(self) -> None:
        """Forgets the measurements."""
        self._window.clear()
        self._quick_steps, self._promised_s = QUICK_STEPS, None

    def observe(self, paces: Sequence[Pace]) -> None:
        """Takes all ranks' measurements of one step, and corrects the shares if that pays."""
        if any(pace.rows <= 0 or pace.busy_s <= 0 for pace in paces):
            return
        self._window.append(tuple(paces))
        if len(self._window) < self._quick_steps:
            return
        recent = self._window[-self._quick_steps :]
        self._check_promise(recent)
        middle = _median_speeds(recent)
        quick_gain = min(self._gain(middle, recent), self._gain(_mean_speeds(recent), recent))
        if quick_gain > QUICK_GAIN:
            self._promised_s = _step_s(recent) * (1 - quick_gain / 2)
            self._follow(middle, quick_gain)
        elif len(self._window) >= max(STEADY_STEPS, self._quick_steps):
            speeds = _mean_speeds(self._window, n_dropped=1)
            gain = self._gain(speeds, self._window)
            if gain > STEADY_GAIN:
                self._follow(speeds, gain)
            self._window.clear()

    def _check_promise(self, recent: Sequence[Sequence[Pace]]) -> None:
        """Whether the last quick change has brought at least half of what it should."""
        if self._promised_s is None:
            return
        kept = _step_s(recent) <= self._promised_s
        self._quick_steps = QUICK_STEPS if kept else min(2 * self._quick_steps, MAX_QUICK_STEPS)
        self._promised_s = None

    def _gain(self, speeds: Sequence[float], window: Sequence[Sequence[Pace]]) -> float:
        """The part of a step that shares in proportion to `speeds` would save."""
        n_rows = statistics.median(fsum(pace.rows for pace in paces) for paces in window)
        total = fsum(self.shares)
        slowest = max(s / total / v for s, v in zip(self.shares, speeds, strict=True))
        return n_rows * (slowest - 1.0 / fsum(speeds)) / _step_s(window)

    def _follow(self, speeds: Sequence[float], gain: float) -> None:
        total = fsum(speeds)
        self.shares = tuple(max(speed / total, MIN_SHARE) for speed in speeds)
        self._window.clear()
        shown = ", ".join(f"{share:.3f}" for share in self.shares)
        _log.info("slices follow speed: %s of the batch; saves %.0f %%", shown, 100 * gain)


def _step_s(window: Sequence[Sequence[Pace]]) -> float:
    return statistics.median(max(pace.step_s for pace in paces) for paces in window)


def _mean_speeds(window: Sequence[Sequence[Pace]], n_dropped: int = 0) -> list[float]:
    """Each rank's mean speed, without its slowest steps."""
    speeds = []
    for paces in zip(*window, strict=True):
        kept = sorted(paces, key=lambda pace: pace.rows / pace.busy_s)[n_dropped:]
        speeds.append(fsum(pace.rows for pace in kept) / fsum(pace.busy_s for pace in kept))
    return speeds


def _median_speeds(window: Sequence[Sequence[Pace]]) -> list[float]:
    by_rank = zip(*window, strict=True)
    return [statistics.median(p.rows / p.busy_s for p in paces) for paces in by_rank]
