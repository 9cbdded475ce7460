"""Past runs through another policy: what it would have chosen, and lost or saved."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from policies.constants import CONSTANTS, S_PER_H
from policies.contenders import Asked, Choice, Contender
from policies.cost_model import nodes_cost_usd_per_h
from policies.data_ahead import bringing_s, egress_usd
from policies.forecast import from_moments
from policies.hindsight import Judged, are_alike
from policies.past import PastRun, ledger
from policies.rows import prior_of
from policies.schema import Basis, Interval, Plan

# A policy that tries plans pays for a start-up and so many steps of each; one worker was profiled
# anyway.
TRIAL_STEPS: Final = 20
NOTHING: Final = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A past run, and what it would have taken with the plan that a policy would have chosen.

    Attributes:
        steps: that were made; both sides make as many.
        plans: those that it trained under.
        took_s: of the whole run, measured.
        took_usd: the same in dollars.
        plan: what the policy would have chosen.
        step_s: of that plan.
        time_s: what the whole run would have taken, trials included.
        cost_usd: the same in dollars.
        lost_s: how much longer that is; below zero, what the policy would have saved.
        lost_usd: the same in dollars.
        basis: "measured" where the plan is the run's own or was measured in runs alike.
        measured_in: those runs, this one alone where nothing would have been different.
        tried: plans that the policy would have tried before it chose; their time and price
            are in `time_s` and `cost_usd`.
        exceeded: the limits that it would have broken.
        asked: n, where a person had fixed it.
    """

    run: str
    steps: int
    plans: tuple[Plan, ...]
    took_s: float
    took_usd: float
    plan: Plan
    step_s: Interval
    time_s: Interval
    cost_usd: Interval
    lost_s: Interval
    lost_usd: Interval
    basis: Basis
    measured_in: tuple[str, ...]
    tried: tuple[Plan, ...] = ()
    exceeded: tuple[Literal["budget", "deadline"], ...] = ()
    asked: int | None = None

    @property
    def is_same(self) -> bool:
        """Whether nothing would have been different."""
        return self.measured_in == (self.run,) and not self.tried and self.lost_s == NOTHING


@dataclass(frozen=True, slots=True)
class Total:
    """What a policy would have lost over many runs; below zero, what it would have saved.

    Bounds add, as one model makes all predictions: its errors do not cancel out.
    """

    n_runs: int
    n_same: int
    n_measured: int
    n_predicted: int
    n_exceeded: int
    took_s: float
    took_usd: float
    lost_s: Interval
    lost_usd: Interval


def replayed(asked: Asked, contender: Contender) -> Replayed:
    """Ask a policy about a past run.

    Raises:
        NoPlanError: it would have refused the run.
    """
    choice, past = contender.choose(asked), asked.past
    judged = asked.judged(choice.plan)
    trials = [asked.judged(plan) for plan in choice.tried if plan.n_workers > 1]
    if not trials and _is_own(judged, past, first_only=contender.moves):
        step_s, time_s, usd = past.segments[0].step_s, past.time_s, past.cost_usd
        return _row(past, choice, _exactly(step_s), _exactly(time_s), _exactly(usd), (past.run,))
    time, cost = _whole(past, judged)
    time = time.plus(math.fsum(_trial_s(each) for each in trials))
    cost = cost.plus(math.fsum(_trial_s(each) * each.usd_per_h for each in trials) / S_PER_H)
    return _row(past, choice, judged.step.interval(), time, cost, judged.measured_in)


def total(runs: Sequence[Replayed]) -> Total:
    """Sum over runs."""
    return Total(
        n_runs=len(runs),
        n_same=sum(each.is_same for each in runs),
        n_measured=sum(each.basis == "measured" and not each.is_same for each in runs),
        n_predicted=sum(each.basis == "predicted" for each in runs),
        n_exceeded=sum(bool(each.exceeded) for each in runs),
        took_s=math.fsum(each.took_s for each in runs),
        took_usd=math.fsum(each.took_usd for each in runs),
        lost_s=_sum([each.lost_s for each in runs]),
        lost_usd=_sum([each.lost_usd for each in runs]),
    )


def _sum(intervals: Sequence[Interval]) -> Interval:
    return Interval(
        math.fsum(x.mean for x in intervals),
        math.fsum(x.low for x in intervals),
        math.fsum(x.high for x in intervals),
    )


def _is_own(judged: Judged, past: PastRun, *, first_only: bool) -> bool:
    """Whether a plan is the one that the run trained under, as far as time and price go."""
    own = past.segments[:1] if first_only else past.segments
    return all(
        are_alike(prior_of(each), judged.parts)
        and math.isclose(nodes_cost_usd_per_h(each.plan, each.nodes), judged.usd_per_h)
        for each in own
    )


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)


def _row(
    past: PastRun,
    choice: Choice,
    step_s: Interval,
    time_s: Interval,
    cost_usd: Interval,
    measured_in: tuple[str, ...],
) -> Replayed:
    return Replayed(
        run=past.run,
        steps=past.steps,
        plans=past.plans,
        took_s=past.time_s,
        took_usd=past.cost_usd,
        plan=choice.plan,
        step_s=step_s,
        time_s=time_s,
        cost_usd=cost_usd,
        lost_s=time_s.plus(-past.time_s),
        lost_usd=cost_usd.plus(-past.cost_usd),
        basis="measured" if measured_in else "predicted",
        measured_in=measured_in,
        tried=choice.tried,
        exceeded=_exceeded(past, time_s, cost_usd),
        asked=past.asked,
    )


def _whole(past: PastRun, judged: Judged) -> tuple[Interval, Interval]:
    """Time and cost of the run under another plan.

    What differs is taken from the plan: start-ups, steps, and evaluation in proportion to
    computing. All else stays as it was in the run, so that no error of the model in it is taken
    for a gain.
    """
    own, main = ledger(past), prior_of(past.main)
    in_evaluation_s = own.evaluation_s * judged.parts.compute_s / main.compute_s
    data_s, data_usd = _data(past, judged.plan)
    beside_s = own.rest_s + in_evaluation_s + data_s
    moving = from_moments(
        past.n_starts * judged.startup.mean + past.steps * judged.step.mean,
        past.n_starts**2 * judged.startup.variance + past.steps**2 * judged.step.variance,
    )
    usd_per_s = judged.usd_per_h / S_PER_H
    fixed_usd = past.cost_usd - own.usd + usd_per_s * beside_s + judged.lingering_usd + data_usd
    time_s = moving.interval().plus(own.before_s + beside_s)
    cost_usd = moving.interval(usd_per_s).plus(fixed_usd)
    return time_s, Interval(*(max(x, 0.0) for x in (cost_usd.mean, cost_usd.low, cost_usd.high)))


def _data(past: PastRun, plan: Plan) -> tuple[float, float]:
    """Seconds and dollars that bringing data to a plan's nodes takes beyond the run's own."""
    data, own = past.situation.data, past.segments[0].plan
    if data is None:
        return 0.0, 0.0
    more_s = bringing_s(plan, data)[0] - bringing_s(own, data)[0]
    return more_s, egress_usd(plan, data) - egress_usd(own, data)


def _trial_s(of: Judged) -> float:
    return of.startup.mean + TRIAL_STEPS * of.step.mean + CONSTANTS.release_s


def _exceeded(
    past: PastRun, time_s: Interval, usd: Interval
) -> tuple[Literal["budget", "deadline"], ...]:
    limits, found = past.situation.limits, []
    if limits.budget_usd is not None and usd.mean > limits.budget_usd >= past.cost_usd:
        found.append("budget")
    if limits.deadline_s is not None and time_s.mean > limits.deadline_s >= past.time_s:
        found.append("deadline")
    return tuple(found)  # type: ignore[arg-type] # of literals
