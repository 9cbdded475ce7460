"""The learned part: Bayesian regression of log(observed / prior) on what a step consists of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from policies.arrays import Floats
from policies.cost_model import StepParts, step_parts
from policies.links import links_between
from policies.node_start import learn_node_starts
from policies.paths import paths_between
from policies.robust import Correction, Posterior, before_any_row, robust_fit
from policies.schema import Experience, Situation
from policies.startup import LearnedStartup, learn_startup

# How far the prior may be off, as standard deviations of log(observed / prior).
# Measured c0 and c1 at that n: two profiled batch sizes, noise of minutes.
COMPUTE: Final = 0.04
OWN_COMPUTE: Final = 0.02
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
# The same of `direct`, whose constants come from loopback and not from steps over a network: 8 %
# in the median of 36 sums between hosts, 40 % at worst.
DIRECT_EXCHANGE: Final = 0.25
DIRECT_SOFTWARE: Final = 0.30
ASSUMED_LINKS: Final = 0.7
INFERRED_LINKS: Final = 0.15
DOUBTED_LINKS: Final = 0.7
# What holds for one plan alone (this n, these links) and tells nothing of another.
PLAN_COMPUTE: Final = 0.02
PLAN_EXCHANGE: Final = 0.12
# From run to run of the very same plan, on machines that others use too; the exchange waits for
# the slowest of several machines and adds to it.
NOISE: Final = 0.09
NOISE_EXCHANGE: Final = 0.06

# Rows of another script count this much of an own row; a segment of few steps counts less.
OTHER_WEIGHT: Final = 0.5
FEW_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Setting:
    """Plans of one script that are alike: n, way to exchange, times alike to half an octave."""

    script: str
    n_workers: int
    exchange: str
    half_octaves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Residual:
    """Posterior of the regression, for plans of `script`.

    Features are scaled so that every weight is a standard normal before any experience.
    `column_by_setting` says where the posterior holds what belongs to one setting alone.
    """

    script: str
    posterior: Posterior
    column_by_setting: Mapping[Setting, int]
    startup: LearnedStartup
    n_rows: int
    node_start_by_type: Mapping[str, Correction] = field(default_factory=dict)

    def step(self, parts: StepParts) -> Correction:
        """What experience says of a step with these parts."""
        x = np.zeros(len(self.posterior.weights))
        shared = features(parts, own=True)
        x[: len(shared)] = shared
        column = self.column_by_setting.get(setting_of(self.script, parts))
        unseen = _plan_std(parts) ** 2
        if column is not None:
            x[column], unseen = _plan_std(parts), 0.0
        variance = self.posterior.variance(x) + unseen + _never_learned(parts)
        return Correction(self.posterior.mean(x), math.sqrt(variance))


def features(parts: StepParts, *, own: bool) -> Floats:
    """Features of log(observed / prior) that all plans share, shape `(17,)`.

    To first order, log(observed / prior) = Σ fraction of the step · log error of that part.
    So each feature is a part's fraction of the prior step (a number without a unit), times a
    dimensionless group (n, CPUs measured / held, workers per node), times how far that part
    of the prior may be off. Each strategy has features of its exchange for itself, so that runs of
    one say nothing of the other's.
    """
    total_s = max(parts.total_s, 1e-12)
    compute, log_ratio = parts.compute_s / total_s, math.log(parts.cpu_ratio)
    computing = [
        COMPUTE * compute,
        OWN_COMPUTE * compute * own,
        CPU_SCALING * compute * log_ratio,
        SHARING * compute * (1.0 - 1.0 / parts.sharing),
        SMALLER_BATCH * compute * (1.0 - 1.0 / parts.n_workers),
    ]
    exchanging = _exchange_features(parts, own=own)
    nothing = [0.0] * len(exchanging)
    if parts.strategy == "direct":
        return np.array([*computing, *nothing, *exchanging])
    return np.array([*computing, *exchanging, *nothing])


def _exchange_features(parts: StepParts, *, own: bool) -> list[float]:
    total_s = max(parts.total_s, 1e-12)
    exchange, direct = parts.exchange_s / total_s, parts.strategy == "direct"
    return [
        (DIRECT_EXCHANGE if direct else EXCHANGE) * exchange,
        OWN_EXCHANGE * exchange * own,
        LATENCY * parts.latency_s / total_s,
        TRANSFER * parts.transfer_s / total_s,
        (DIRECT_SOFTWARE if direct else SOFTWARE) * parts.software_s / total_s,
        RING_LENGTH * exchange * math.log2(parts.n_workers),
    ]


def setting_of(script: str, parts: StepParts) -> Setting:
    """The setting of a step with these parts."""
    times_s = (parts.compute_s, parts.latency_s, parts.transfer_s)
    half_octaves = tuple(round(2.0 * math.log2(max(t, 1e-6))) for t in times_s)
    return Setting(script, parts.n_workers, parts.algorithm or parts.strategy, half_octaves)


def _plan_std(parts: StepParts) -> float:
    """Deviation of what belongs to one setting alone; the floor of what others tell of it."""
    total_s = max(parts.total_s, 1e-12)
    compute, exchange = parts.compute_s / total_s, parts.exchange_s / total_s
    return math.hypot(PLAN_COMPUTE * compute, PLAN_EXCHANGE * exchange)


def _never_learned(parts: StepParts) -> float:
    """Variance that no experience narrows: what was assumed or badly measured, and chance."""
    total_s = max(parts.total_s, 1e-12)
    exchange = parts.exchange_s / total_s
    speed = ASSUMED_SPEED * parts.compute_s / total_s if parts.assumed_speed else 0.0
    links = INFERRED_LINKS * exchange if parts.inferred_links else 0.0
    links = ASSUMED_LINKS * exchange if parts.assumed_links else links
    doubt = DOUBTED_LINKS * parts.doubt_s / total_s
    return speed**2 + links**2 + doubt**2 + (NOISE_EXCHANGE * exchange) ** 2


def learn(situation: Situation, experience: Sequence[Experience]) -> Residual:
    """The posterior after `experience`; rows of the situation's own script weigh more."""
    script = situation.workload.fingerprint
    usable = [e for e in experience if _usable(e)]
    rows = [_row(e, script) for e in usable if e.steps > 0 and _is_time(e.step_s)]
    startup = learn_startup(usable, script, OTHER_WEIGHT)
    node_starts = learn_node_starts(situation.nodes, experience)
    n_shared = len(features(StepParts(1.0), own=True))
    if not rows:
        return Residual(script, before_any_row(n_shared, NOISE), {}, startup, 0, node_starts)
    settings = dict.fromkeys(row.setting for row in rows)
    column_by_setting = {setting: n_shared + i for i, setting in enumerate(settings)}
    x = np.zeros((len(rows), n_shared + len(settings)))
    for i, row in enumerate(rows):
        x[i, :n_shared], x[i, column_by_setting[row.setting]] = row.shared, row.plan_std
    y = np.array([row.log_ratio for row in rows])
    weight = np.array([row.weight for row in rows])
    posterior = robust_fit(x, y, weight, NOISE)
    return Residual(script, posterior, column_by_setting, startup, len(rows), node_starts)


def _usable(e: Experience) -> bool:
    """Whether a record tells enough for the prior to be computed."""
    known = {node.id for node in e.nodes if node.cpus > 0}
    placed = len(e.plan.nodes) == e.plan.n_workers and known.issuperset(e.plan.nodes)
    return placed and bool(e.workload.node_kinds)


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0.0


@dataclass(frozen=True, slots=True)
class _Row:
    setting: Setting
    shared: Floats
    plan_std: float
    log_ratio: float
    weight: float


def _row(e: Experience, script: str) -> _Row:
    parts = _parts(e)
    own = e.workload.fingerprint == script
    trust = 1.0 / (1.0 + _never_learned(parts) / NOISE**2)
    return _Row(
        setting_of(e.workload.fingerprint, parts),
        features(parts, own=own),
        _plan_std(parts),
        math.log(e.step_s / parts.total_s),
        (1.0 if own else OTHER_WEIGHT) * e.steps / (e.steps + FEW_STEPS) * trust,
    )


def _parts(e: Experience) -> StepParts:
    """The step that the prior said; what was not measured is inferred with the help of others."""
    held, path = frozenset(e.plan.nodes), e.plan.options.path
    parts = _parts_among(e, held, path)
    if e.network is None or not (parts.inferred_links or parts.assumed_links):
        return parts
    ends = [(x.src, x.dst) for x in e.network.links if x.path == path]
    met = {end for pair in ends if not held.isdisjoint(pair) for end in pair}
    return _parts_among(e, held | met, path)


def _parts_among(e: Experience, names: frozenset[str], path: str) -> StepParts:
    """The prior's step, its links seen from these nodes alone."""
    nodes = tuple(node for node in e.nodes if node.id in names)
    if e.plan.strategy == "direct":
        links = paths_between(nodes, e.network).links_of(e.plan)
    else:
        links = links_between(nodes, e.network, path)
    return step_parts(e.plan, nodes, links, e.workload, e.global_batch)
