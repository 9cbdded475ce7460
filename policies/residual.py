"""The learned part: Bayesian regression of log(observed / prior) on what a step consists of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from sklearn.linear_model import BayesianRidge

from policies.cost_model import StepParts, startup_s, step_parts
from policies.links import Floats, links_between
from policies.schema import Experience, Node, Situation

# How far the prior may be off, as standard deviations of log(observed / prior).
# Measured c0 and c1 at that n: two profiled batch sizes, noise of minutes.
COMPUTE: Final = 0.055
OWN_COMPUTE: Final = 0.03
# c1 at another number of CPUs, per factor e; workers that share a node; a kind not profiled.
CPU_SCALING: Final = 0.2
SHARING: Final = 0.15
SMALLER_BATCH: Final = 0.15
ASSUMED_SPEED: Final = 0.35
# The exchange: 19 % at worst where the constants were fitted, more elsewhere.
EXCHANGE: Final = 0.20
OWN_EXCHANGE: Final = 0.10
LATENCY: Final = 0.12
TRANSFER: Final = 0.12
SOFTWARE: Final = 0.20
RING_LENGTH: Final = 0.08
ASSUMED_LINKS: Final = 0.7
# From run to run of the very same plan.
NOISE: Final = 0.04

STARTUP: Final = 0.2
STARTUP_NOISE: Final = 0.12

# Rows of another script count this much of an own row; a segment of few steps counts less.
OTHER_WEIGHT: Final = 0.5
FEW_STEPS: Final = 20
# Pseudo-observations behind the two variances, so that a few rows cannot move them far.
HYPER_WEIGHT: Final = 50.0


@dataclass(frozen=True, slots=True)
class Correction:
    """log(observed / prior): its mean and standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Residual:
    """Posterior of the regression: weights `(d,)`, their covariance `(d, d)`, noise variance.

    Features are scaled so that every weight is a standard normal before any experience.
    """

    weights: Floats
    covariance: Floats
    noise_variance: float
    startup: Correction
    n_rows: int

    def step(self, parts: StepParts) -> Correction:
        """What experience says of a step with these parts."""
        x = features(parts, own=True)
        variance = float(x @ self.covariance @ x) + self.noise_variance + _assumed_variance(parts)
        return Correction(float(x @ self.weights), math.sqrt(variance))


def features(parts: StepParts, *, own: bool) -> Floats:
    """Features of log(observed / prior), shape `(11,)`.

    To first order, log(observed / prior) = Σ fraction of the step · log error of that part.
    So each feature is a part's fraction of the prior step (a number without a unit), times a
    dimensionless group (n, CPUs measured / held, workers per node), times how far that part
    of the prior may be off.
    """
    total_s = max(parts.total_s, 1e-12)
    compute, exchange = parts.compute_s / total_s, parts.exchange_s / total_s
    n, log_ratio = parts.n_workers, math.log(parts.cpu_ratio)
    return np.array(
        [
            COMPUTE * compute,
            OWN_COMPUTE * compute * own,
            CPU_SCALING * compute * log_ratio,
            SHARING * compute * (1.0 - 1.0 / parts.sharing),
            SMALLER_BATCH * compute * (1.0 - 1.0 / n),
            EXCHANGE * exchange,
            OWN_EXCHANGE * exchange * own,
            LATENCY * parts.latency_s / total_s,
            TRANSFER * parts.transfer_s / total_s,
            SOFTWARE * parts.software_s / total_s,
            RING_LENGTH * exchange * math.log2(n),
        ]
    )


def _assumed_variance(parts: StepParts) -> float:
    """What no experience of other nodes or links can narrow."""
    total_s = max(parts.total_s, 1e-12)
    compute = ASSUMED_SPEED * parts.compute_s / total_s if parts.assumed_speed else 0.0
    exchange = ASSUMED_LINKS * parts.exchange_s / total_s if parts.assumed_links else 0.0
    return compute**2 + exchange**2


def learn(situation: Situation, experience: Sequence[Experience]) -> Residual:
    """The posterior after `experience`; rows of the situation's own script weigh more."""
    fingerprint = situation.workload.fingerprint
    usable = [e for e in experience if _usable(e)]
    rows = [_row(e, fingerprint) for e in usable if e.steps > 0 and _is_time(e.step_s)]
    startup = _learn_startup(usable, fingerprint)
    if not rows:
        n_features = len(features(StepParts(1.0), own=True))
        return Residual(np.zeros(n_features), np.eye(n_features), NOISE**2, startup, 0)
    x = np.array([row.x for row in rows])
    y = np.array([row.log_ratio for row in rows])
    weight = np.array([row.weight for row in rows])
    model = _ridge().fit(x, y, sample_weight=weight)
    return Residual(model.coef_, model.sigma_, 1.0 / float(model.alpha_), startup, len(rows))


def _usable(e: Experience) -> bool:
    """Whether a record tells enough for the prior to be computed."""
    known = {node.id for node in e.nodes if node.cpus > 0}
    placed = len(e.plan.nodes) == e.plan.n_workers and known.issuperset(e.plan.nodes)
    return placed and bool(e.workload.node_kinds)


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0.0


def _ridge() -> BayesianRidge:
    """Weights ~ N(0, 1), noise ~ N(0, NOISE²), both variances free to move a little.

    Without an intercept of its own: scikit-learn would leave the intercept's uncertainty out.
    """
    return BayesianRidge(
        fit_intercept=False,
        alpha_1=HYPER_WEIGHT,
        alpha_2=HYPER_WEIGHT * NOISE**2,
        lambda_1=HYPER_WEIGHT,
        lambda_2=HYPER_WEIGHT,
        alpha_init=1.0 / NOISE**2,
        lambda_init=1.0,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    x: Floats
    log_ratio: float
    weight: float


def _row(e: Experience, fingerprint: str) -> _Row:
    nodes = _held_nodes(e)
    links = links_between(nodes, e.network)
    parts = step_parts(e.plan, nodes, links, e.workload, e.global_batch)
    own = e.workload.fingerprint == fingerprint
    trust = 1.0 / (1.0 + _assumed_variance(parts) / NOISE**2)
    weight = (1.0 if own else OTHER_WEIGHT) * e.steps / (e.steps + FEW_STEPS) * trust
    return _Row(features(parts, own=own), math.log(e.step_s / parts.total_s), weight)


def _held_nodes(e: Experience) -> tuple[Node, ...]:
    held = set(e.plan.nodes)
    return tuple(node for node in e.nodes if node.id in held)


def _learn_startup(experience: Sequence[Experience], fingerprint: str) -> Correction:
    """Normal posterior of log(observed / prior start-up) under a known noise."""
    precision, total = 1.0 / STARTUP**2, 0.0
    for e in experience:
        if e.startup_s is None or not _is_time(e.startup_s):
            continue
        own = e.workload.fingerprint == fingerprint
        weight = (1.0 if own else OTHER_WEIGHT) / STARTUP_NOISE**2
        precision += weight
        total += weight * math.log(e.startup_s / startup_s(e.plan, e.nodes, e.workload))
    return Correction(total / precision, math.sqrt(1.0 / precision + STARTUP_NOISE**2))
