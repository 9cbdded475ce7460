"""Predictions with honest intervals: the prior, corrected by experience, as log-normals."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from policies.constants import CONSTANTS, S_PER_H
from policies.cost_model import (
    StepParts,
    checkpoints_s,
    evaluation_s,
    nodes_cost_usd_per_h,
    step_parts,
)
from policies.data_ahead import bringing_s, egress_usd
from policies.efficiency import Efficiency
from policies.links import Links
from policies.node_start import lingering_usd, node_start
from policies.pauses import LearnedPauses
from policies.residual import Residual
from policies.robust import Correction
from policies.schema import Candidate, Interval, Plan, Prediction, Situation, StepsFactor
from policies.spot import losses
from policies.startup import StartupParts, startup_parts

# Half width of a 90 % interval in standard deviations.
Z90: Final = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A positive quantity whose logarithm is normal with mean `mu` and deviation `sigma`."""

    mu: float
    sigma: float

    @property
    def mean(self) -> float:
        """Expectation."""
        return math.exp(self.mu + self.sigma**2 / 2.0)

    @property
    def variance(self) -> float:
        """Variance."""
        return math.expm1(self.sigma**2) * self.mean**2

    def interval(self, scale: float = 1.0) -> Interval:
        """Mean and central 90 % interval of `scale` times the quantity."""
        spread = Z90 * self.sigma
        low, high = math.exp(self.mu - spread), math.exp(self.mu + spread)
        return Interval(scale * self.mean, scale * low, scale * high)

    def p_at_most(self, limit: float) -> float:
        """Probability that the quantity is at most `limit`."""
        if limit <= 0.0:
            return 0.0
        if math.isinf(limit):
            return 1.0
        return NormalDist(self.mu, max(self.sigma, 1e-9)).cdf(math.log(limit))


def from_moments(mean: float, variance: float) -> LogNormal:
    """The log-normal with this mean and variance (Fenton 1960, for sums of log-normals)."""
    sigma2 = math.log1p(variance / mean**2)
    return LogNormal(math.log(mean) - sigma2 / 2.0, math.sqrt(sigma2))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a plan's remaining work will take, as the policy sees it before it chooses.

    `lingering_usd` is paid beside the time: after the run, for nodes that it starts, and for data
    on their way to nodes that lack them. `same_accuracy` is the time until it is as good as exact
    training is after this work, where it changes the curve by `efficiency`.
    """

    plan: Plan
    parts: StepParts
    step: LogNormal
    time: LogNormal
    usd_per_h: float
    p_fits: float
    lingering_usd: float = 0.0
    same_accuracy: LogNormal | None = None
    efficiency: Efficiency | None = None

    @property
    def compared(self) -> LogNormal:
        """The time by which plans are compared: to the same accuracy, in seconds."""
        return self.time if self.same_accuracy is None else self.same_accuracy

    @property
    def compared_usd(self) -> float:
        """What the same accuracy is expected to cost."""
        return self.usd_per_h / S_PER_H * self.compared.mean + self.lingering_usd

    @property
    def cost_usd(self) -> float:
        """Expected cost of the remaining work."""
        return self.usd_per_h / S_PER_H * self.time.mean + self.lingering_usd

    @property
    def candidate(self) -> Candidate:
        """The plan with its prediction, as a record holds it."""
        cost_usd = self.time.interval(self.usd_per_h / S_PER_H).plus(self.lingering_usd)
        same = self.same_accuracy.interval() if self.same_accuracy is not None else None
        prediction = Prediction(self.step.interval(), self.time.interval(), cost_usd, same)
        return Candidate(self.plan, prediction, self.p_fits, _steps_factor(self.efficiency))


def forecast(plan: Plan, situation: Situation, links: Links, residual: Residual) -> Forecast:
    """Predict step time, time, cost and the probability to fit of one plan."""
    batch = situation.work.global_batch
    parts = step_parts(plan, situation.nodes, links, situation.workload, batch)
    step = corrected(parts.total_s, residual.step(parts))
    return forecast_of(plan, parts, step, situation, residual)


def forecast_of(
    plan: Plan, parts: StepParts, step: LogNormal, situation: Situation, residual: Residual
) -> Forecast:
    """Predict time, cost and the probability to fit of a plan whose step is known."""
    startup = startup_time(startup_parts(plan, situation.nodes, situation.workload), residual)
    starting = node_start(plan, situation.nodes, residual.node_start_by_type)
    if starting is not None:
        startup = _sum(startup, corrected(CONSTANTS.node_start_s, starting))
    if situation.data is not None:
        data_s, variance = bringing_s(plan, situation.data)
        startup = from_moments(startup.mean + data_s, startup.variance + variance)
    time = _job_time(situation, parts, step, startup, residual.pauses)
    time = _with_losses(time, plan, situation, startup)
    usd_per_h = nodes_cost_usd_per_h(plan, situation.nodes) + situation.upkeep_usd_per_h
    lingering = lingering_usd(plan, situation.nodes)
    if situation.data is not None:
        lingering += egress_usd(plan, situation.data)
    p_fits = time.p_at_most(room_s(situation, usd_per_h, lingering))
    found = Forecast(plan, parts, step, time, usd_per_h, p_fits, lingering)
    if plan.strategy != "decentralized":
        return found
    worth = residual.efficiency
    longer = LogNormal(step.mu + worth.mu, math.hypot(step.sigma, worth.sigma))
    same = _job_time(situation, parts, longer, startup, residual.pauses)
    same = _with_losses(same, plan, situation, startup)
    return replace(found, same_accuracy=same, efficiency=worth)


def _steps_factor(worth: Efficiency | None) -> StepsFactor | None:
    if worth is None:
        return None
    return StepsFactor(LogNormal(worth.mu, worth.sigma).interval(), worth.basis)


def startup_time(parts: StartupParts, residual: Residual) -> LogNormal:
    """From the first node held to the first step, in seconds."""
    return corrected(parts.total_s, residual.startup.of(parts))


def corrected(prior_s: float, correction: Correction) -> LogNormal:
    """What the prior says, in seconds, as experience corrects it."""
    return LogNormal(math.log(max(prior_s, 1e-9)) + correction.mean, correction.std)


def _sum(a: LogNormal, b: LogNormal) -> LogNormal:
    """The sum of two independent times."""
    return from_moments(a.mean + b.mean, a.variance + b.variance)


def _job_time(
    situation: Situation,
    parts: StepParts,
    step: LogNormal,
    startup: LogNormal,
    pauses: LearnedPauses,
) -> LogNormal:
    """Start-up + steps · step + checkpoints + evaluation + the way down.

    All steps share one error (of the model, not of chance), so the error of their sum is
    proportional to their number; so do all evaluations, and all checkpoints.
    """
    work, weights_bytes = situation.work, situation.workload.weights_bytes
    training_s = work.steps * step.mean
    evaluation = corrected(evaluation_s(parts, work), pauses.evaluation)
    checkpoints = corrected(checkpoints_s(training_s, work, weights_bytes), pauses.checkpoint)
    rest = (startup, evaluation, checkpoints)
    mean = training_s + CONSTANTS.release_s + math.fsum(each.mean for each in rest)
    variance = work.steps**2 * step.variance + math.fsum(each.variance for each in rest)
    return from_moments(mean, variance)


def _with_losses(
    time: LogNormal, plan: Plan, situation: Situation, startup: LogNormal
) -> LogNormal:
    """A job's time with what losses of its nodes are expected to add."""
    lost = losses(plan, situation.nodes, time.mean, startup.mean)
    if not lost.n:
        return time
    return from_moments(time.mean + lost.mean_s, time.variance + lost.variance)


def room_s(situation: Situation, usd_per_h: float, lingering_usd: float = 0.0) -> float:
    """Seconds that the remaining budget and deadline leave for a plan at this price.

    Args:
        situation: knows the limits and what is spent.
        usd_per_h: price of the plan's nodes.
        lingering_usd: what they cost beside the time.
    """
    limits = situation.limits
    room = math.inf
    if limits.deadline_s is not None:
        room = limits.deadline_s - situation.spent_s
    if limits.budget_usd is not None:
        left_usd = limits.budget_usd - situation.spent_usd - lingering_usd
        if usd_per_h > 0.0:
            room = min(room, left_usd / usd_per_h * S_PER_H)
        elif left_usd < 0.0:  # nodes for nothing, and data that cost more than there is
            room = 0.0
    return max(room, 0.0)
