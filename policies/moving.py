"""Whether to move to another plan in mid-run: what it saves against what moving costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from policies.bandit import P_FITS
from policies.constants import CONSTANTS, S_PER_H
from policies.forecast import Forecast, LogNormal, forecast, from_moments, room_s, startup_time
from policies.recommend import recommend
from policies.residual import Residual
from policies.robust import Prior
from policies.schema import Candidate, Decision, Experience, Interval, Plan, Prediction, Situation
from policies.startup import startup_parts
from policies.survey import survey
from policies.wording import dollars, duration, workers

# Steps are slow when they take so many times what they took; a change counts once it has lasted.
SLOWER: Final = 1.4
SETTLE_S: Final = 30.0
# A move must save its price over again, and a part of what is left; each move doubles that.
MARGIN: Final = 1.0
PART: Final = 0.03
# After a move, the next one waits for so many times its price, at least for a minute.
REST: Final = 3.0
REST_S: Final = 60.0
# From the order to stop until the nodes are free: the prior, worth one measurement.
STOP_S: Final = 2.5
# A plan that gains this much probability to keep the limits is worth moving to for that alone.
SAFER: Final = 0.3


@dataclass(frozen=True, slots=True)
class Pace:
    """What a step takes against what it took when last looked at.

    Attributes:
        usual_s: the reference; None until enough steps were made.
        slow_since_s: since when steps have been slow without a break.
    """

    usual_s: float | None = None
    slow_since_s: float | None = None

    def after(self, recent_s: float, now_s: float) -> "Pace":
        """With what steps take now; faster ones become the reference."""
        if self.usual_s is None or recent_s < self.usual_s:
            return Pace(recent_s)
        if recent_s < SLOWER * self.usual_s:
            return replace(self, slow_since_s=None)
        since_s = now_s if self.slow_since_s is None else self.slow_since_s
        return replace(self, slow_since_s=since_s)

    def is_slow(self, now_s: float) -> bool:
        """Whether steps have been slow for long enough to be more than a passing thing."""
        return self.slow_since_s is not None and now_s - self.slow_since_s >= SETTLE_S


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves of a stretch of training so far, but for those that losses and notices forced."""

    n: int = 0
    rests_until_s: float = -math.inf

    def after(self, price_s: float, now_s: float) -> "Moves":
        """With one more."""
        return Moves(self.n + 1, now_s + max(REST_S, REST * price_s))

    def least_s(self, left_s: float, price_s: float) -> float:
        """What the next move must save beyond its price, in seconds."""
        return float(2**self.n) * (MARGIN * price_s + PART * left_s)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the scale: what is left to do under a plan, from now on.

    Attributes:
        left_s: until training has ended, start-up included where there is one.
        p_fits: the probability to keep budget and deadline.
    """

    left_s: float
    usd: float
    p_fits: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to move, and why, as a clause."""

    moves: bool
    why: str


def weigh(
    stay: Side, go: Side, price_s: float, moves: Moves, now_s: float, *, by_cost: bool = False
) -> Verdict:
    """Move only when the saving on the remaining work beats the price, with hysteresis.

    Args:
        stay: under the current plan.
        go: under the other one, `price_s` included in its time and cost.
        price_s: from the order to stop until the first step under the other plan.
        moves: those made so far.
        now_s: on the clock of `moves`.
        by_cost: whether money is to be saved, not time.
    """
    saved_s, saved_usd = stay.left_s - go.left_s, stay.usd - go.usd
    what = f"{duration(abs(saved_s))} of {duration(stay.left_s)}"
    if by_cost:
        what = f"{dollars(abs(saved_usd))} of {dollars(stay.usd)}"
    saved, left = (saved_usd, stay.usd) if by_cost else (saved_s, stay.left_s)
    price = price_s * (stay.usd / max(stay.left_s, 1e-9)) if by_cost else price_s
    is_safer = go.p_fits >= P_FITS and go.p_fits >= stay.p_fits + SAFER
    if is_safer and saved < moves.least_s(left, price):
        return Verdict(True, "the current plan would hardly keep the limits any more")
    if saved <= 0.0:
        return Verdict(False, f"moving would lose {what}")
    if go.p_fits < min(P_FITS, stay.p_fits):
        return Verdict(False, f"moving would save {what}, but may break the limits")
    if now_s < moves.rests_until_s:
        return Verdict(False, f"moving would save {what}, but the last move was just now")
    if saved < moves.least_s(left, price):
        return Verdict(
            False, f"moving would save {what}, too little for its price of {duration(price_s)}"
        )
    return Verdict(True, f"it saves {what}, moving included")


@dataclass(frozen=True, slots=True)
class Outlook:
    """Both sides, and the decision that the policy would make for the remaining work."""

    decision: Decision
    current: Forecast
    stay: Side
    go: Side
    price_s: float

    @property
    def is_other(self) -> bool:
        """Whether another plan than the current one is the best."""
        return self.decision.chosen != self.current.plan

    def weighed(self, moves: Moves, now_s: float, *, by_cost: bool = False) -> Verdict:
        """See `weigh`."""
        if not self.is_other:
            return Verdict(False, "it is still the best plan")
        return weigh(self.stay, self.go, self.price_s, moves, now_s, by_cost=by_cost)

    def stayed(self, why: str) -> Decision:
        """The decision to stay, with what is left under the current plan."""
        own = self.current.candidate
        kept = Prediction(
            own.prediction.step_s,
            _scaled(own.prediction.time_s, self.stay.left_s),
            _scaled(own.prediction.cost_usd, self.stay.usd),
        )
        row = Candidate(own.plan, kept, self.stay.p_fits)
        others = [c for c in self.decision.candidates if c.plan != own.plan]
        rows = sorted([*others, row], key=lambda c: c.plan.n_workers)
        n = workers(own.plan.n_workers)
        return replace(
            self.decision,
            reason=f"Stayed with {n}: {why}.",
            chosen=own.plan,
            candidates=tuple(rows),
            p_fits=self.stay.p_fits,
            rival=None,
        )

    def moved(self, cause: str, why: str) -> Decision:
        """The decision to move."""
        return replace(self.decision, reason=f"{cause}: {why}. {self.decision.reason}")


def outlook(
    situation: Situation,
    experience: Sequence[Experience],
    current: Plan,
    *,
    at_step: int,
    step_s: float | None = None,
    stops_s: Sequence[float] = (),
    prior: Prior | None = None,
) -> Outlook:
    """What is left under the current plan, and under the best one.

    Slowness that the situation does not explain is taken to slow every plan alike.

    Args:
        situation: as it is now, with the work that is left.
        experience: measured segments, the current one's included.
        current: the plan in force.
        at_step: where training stands.
        step_s: what a step takes now, as measured.
        stops_s: how long earlier stops of this run took, until the next segment began.
        prior: see `recommend`.

    Raises:
        NoPlanError: no plan is possible.
    """
    decision = recommend(situation, experience, 0, at_step=at_step, prior=prior)
    found = survey(situation, experience, prior)
    own = forecast(current, found.situation, found.paths.links_of(current), found.residual)
    other = forecast(
        decision.chosen,
        found.situation,
        found.paths.links_of(decision.chosen),
        found.residual,
    )
    slower = 1.0 if step_s is None else step_s / max(own.step.mean, 1e-9)
    price_s = _stop_s(stops_s) + _startup(other.plan, situation, found.residual).mean
    stay = _side(own, situation, slower, found.residual)
    go = _side(other, situation, slower, found.residual, price_s)
    return Outlook(decision, own, stay, go, price_s)


def _stop_s(measured: Sequence[float]) -> float:
    """The mean of what was measured, with the prior as one more."""
    return (STOP_S + sum(measured)) / (1 + len(measured))


def _startup(plan: Plan, situation: Situation, residual: Residual) -> LogNormal:
    return startup_time(startup_parts(plan, situation.nodes, situation.workload), residual)


def _side(
    of: Forecast, situation: Situation, slower: float, residual: Residual, price_s: float = 0.0
) -> Side:
    """Time and cost from now on: training as slow as it is, and the price of getting there.

    All to the same accuracy, for a plan that changes the learning curve.
    """
    startup = _startup(of.plan, situation, residual)
    training_s = max(of.time.mean - startup.mean - CONSTANTS.release_s, 1e-3)
    training_s *= of.compared.mean / of.time.mean
    left_s = slower * training_s + price_s + CONSTANTS.release_s
    spread = of.time.variance - startup.variance
    time = from_moments(left_s, max(slower**2 * spread, 0.0) + (startup.variance if price_s else 0))
    p_fits = time.p_at_most(room_s(situation, of.usd_per_h))
    return Side(left_s, of.usd_per_h / S_PER_H * left_s, p_fits)


def _scaled(interval: Interval, mean: float) -> Interval:
    factor = mean / interval.mean if interval.mean > 0 else 1.0
    return Interval(mean, interval.low * factor, interval.high * factor)
