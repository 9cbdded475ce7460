"""How long training may go without a sign of progress before it counts as stuck."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from launcher.worker.activity import Activity, Phase

STEP_S: Final = 60.0
STEPS: Final = 20  # medians of a step
MEDIAN_OF: Final = 500  # the newest steps

# What may be long and is no step: importing and connecting, compiling, writing; and what the
# script does itself, which may be anything. Outside of `fit` it may take all the time it wants.
BOUND_S_BY_PHASE: Final[Mapping[Phase, float]] = {
    Phase.STARTING: 600.0,
    Phase.SCRIPT: float("inf"),
    Phase.COMPILING: 900.0,
    Phase.BETWEEN: 1800.0,
    Phase.EVALUATING: 300.0,
    Phase.SAVING: 900.0,
}


def bound_s(phase: Phase, step_times_s: Sequence[float]) -> float:
    """The longest that a phase may last without progress, given the steps measured so far."""
    recent = step_times_s[-MEDIAN_OF:]
    step_s = max(STEP_S, STEPS * median(recent)) if recent else STEP_S
    return step_s if phase == Phase.STEP else max(step_s, BOUND_S_BY_PHASE[phase])


@dataclass(slots=True)
class Patience:
    """Watches the progress of all ranks together: one that moves is one the others wait for."""

    _ticks_by_rank: dict[int, int] = field(default_factory=dict)
    _moved_at_s: float = 0.0

    def note(self, activities: Sequence[Activity], now_s: float) -> None:
        """Take what the ranks do now."""
        ticks = {each.rank: each.ticks for each in activities}
        if any(self._ticks_by_rank.get(rank) != count for rank, count in ticks.items()):
            self.moved(now_s)
            self._ticks_by_rank |= ticks

    def moved(self, now_s: float) -> None:
        """Note progress, such as a step that was reported."""
        self._moved_at_s = now_s

    def idle_s(self, now_s: float) -> float:
        """For how long no rank has made any progress, in seconds."""
        return now_s - self._moved_at_s

    def is_over(
        self, activities: Sequence[Activity], step_times_s: Sequence[float], now_s: float
    ) -> bool:
        """Whether there was no progress for longer than what any rank does may take."""
        phases = [each.phase for each in activities]
        limit_s = max((bound_s(phase, step_times_s) for phase in phases), default=float("inf"))
        return self.idle_s(now_s) > limit_s
