"""Measured segments as rows of the regression: what the prior said of each, and how far off."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Floats, Ints
from policies.cost_model import StepParts, step_parts
from policies.features import (
    N_FEATURES,
    NOISE,
    OWN,
    Setting,
    features,
    never_learned,
    noise_std,
    plan_std,
    setting_of,
)
from policies.links import links_between
from policies.memo import remembered_of
from policies.paths import paths_between
from policies.robust import Prior
from policies.schema import DEFAULT_PATH, Experience, Node

# Rows of another script, and those of another cluster, count this much of an own row; a segment
# of few steps counts less.
OTHER_SCRIPT: Final = 0.5
OTHER_CLUSTER: Final = 0.5
FEW_STEPS: Final = 20
FEW_SWEPT: Final = 2
# Runs of a setting, at least, that agree on what is so many deviations off.
AGREEING: Final = 3
STRANGE: Final = 3.0
# Segments that are learned from, at most.
MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Rows:
    """R measured steps against the prior, in the order of `experience`.

    Attributes:
        parts: what the prior said of each.
        shared: features that all plans share, and the script's own where it is the one that is
            asked about, shape `(R, N_FEATURES)`.
        own: each row's script's own features, whichever it is, shape `(R, len(OWN))`.
        log_ratio: log(observed / prior), shape `(R,)`.
        weight: in (0, 1], shape `(R,)`.
        settings: what each row's plan was, with its number in `group`.
        group: of each row's setting, shape `(R,)`.
        plan_std: deviation of what belongs to that setting alone, shape `(R,)`.
        noise: deviation from run to run of a row of weight one.
    """

    experience: tuple[Experience, ...]
    parts: tuple[StepParts, ...]
    shared: Floats
    own: Floats
    log_ratio: Floats
    weight: Floats
    settings: dict[Setting, int]
    group: Ints
    plan_std: Floats
    noise: float

    def stretch(self, prior: Prior) -> Floats:
        """How many times as far as usual each setting may be off by itself, shape `(G,)`.

        One strange run is a disturbed one. Three runs of a setting that agree on what is beyond
        everything the prior holds for possible tell of that setting: a link that is read wrongly
        each time, say. Their median then lies one deviation off.
        """
        expected = self.log_ratio - self.shared @ prior.mean
        spread = np.sqrt(
            np.einsum("ij,ij->i", self.shared @ prior.covariance, self.shared)
            + self.plan_std**2
            + self.noise**2
        )
        found = np.ones(len(self.settings))
        for i in np.unique(self.group[np.abs(expected) > STRANGE * spread]):
            at = np.flatnonzero(self.group == i)
            off = abs(float(np.median(expected[at])))
            n_runs = len({self.experience[row].run for row in at})
            if n_runs >= AGREEING and off > STRANGE * float(np.median(spread[at])):
                found[i] = max(1.0, off / max(float(np.median(self.plan_std[at])), 1e-9))
        return found


def usable(e: Experience) -> bool:
    """Whether a record tells enough for the prior to be computed."""
    known = {node.id for node in e.nodes if node.cpus > 0}
    placed = len(e.plan.nodes) == e.plan.n_workers > 0 and known.issuperset(e.plan.nodes)
    return placed and bool(e.workload.node_kinds)


@np.errstate(all="ignore")  # of values that cannot be
def makes_sense(e: Experience) -> bool:
    """Whether the prior of a record's step and start-up are times."""
    lead_s = e.workload.setup_s + (e.workload.startup_s or 0.0)
    try:
        return is_time(prior_of(e).total_s) and math.isfinite(lead_s) and lead_s >= 0.0
    except (ValueError, ArithmeticError, LookupError):
        return False


def is_here(e: Experience, machines: Collection[tuple[str, str]]) -> bool:
    """Whether a segment ran on machines (address and kind) of the cluster in question."""
    held = set(e.plan.nodes)
    return any((node.ip, node.kind) in machines for node in e.nodes if node.id in held)


def machines_of(nodes: Sequence[Node]) -> frozenset[tuple[str, str]]:
    """What nodes are known by: Ray gives them new ids whenever it starts."""
    return frozenset((node.ip, node.kind) for node in nodes)


def relevant(
    experience: Sequence[Experience], script: str, nodes: Sequence[Node]
) -> list[Experience]:
    """What tells most of plans of `script` on `nodes`, at most `MOST` segments.

    Those of the script come first, then those of this cluster, then the newest. More would narrow
    no prediction: what is left then is chance, and what belongs to each plan alone.
    """
    known, machines = [e for e in experience if usable(e)], machines_of(nodes)

    def rank(e: Experience) -> tuple[bool, bool, float, str, float]:
        own, here = e.workload.fingerprint == script, is_here(e, machines)
        return not own, not here, -(e.measured_at_s or 0.0), e.run, e.step_s

    chosen = known if len(known) <= MOST else sorted(known, key=rank)[:MOST]
    return [e for e in chosen if makes_sense(e)]


def kinship(e: Experience, script: str, machines: Collection[tuple[str, str]]) -> float:
    """How much a segment tells of `script` on these machines, in (0, 1]."""
    own = 1.0 if e.workload.fingerprint == script else OTHER_SCRIPT
    return own * (1.0 if is_here(e, machines) else OTHER_CLUSTER)


def rows_of(
    experience: Sequence[Experience], script: str, nodes: Sequence[Node], prior: Prior
) -> Rows:
    """The rows of what was measured, for plans of `script` on `nodes`.

    Args:
        experience: measured segments.
        script: whose plans are asked about.
        nodes: of the cluster in question.
        prior: says how large deviations and noise are expected to be.
    """
    machines = machines_of(nodes)
    found = []
    for e in experience:
        if e.steps > 0 and is_time(e.step_s):
            weight = e.steps / (e.steps + FEW_STEPS) * kinship(e, script, machines)
            found.append(_Row(e, prior_of(e), e.workload.fingerprint == script, weight))
    return _rows(found, prior.noise, prior.alone)


def sweep_rows(experience: Sequence[Experience]) -> Rows:
    """The rows of a sweep, whose scripts are all told apart and whose first steps are left out."""
    timed = [e for e in experience if usable(e) and e.steps > 0 and is_time(e.step_s)]
    return _rows([_Row(e, prior_of(e), True, e.steps / (e.steps + FEW_SWEPT)) for e in timed])


@dataclass(frozen=True, slots=True)
class _Row:
    experience: Experience
    parts: StepParts
    own: bool
    weight: float


def _rows(found: Sequence[_Row], noise: float = 1.0, alone: float = 1.0) -> Rows:
    """Rows whose noise and own deviations are so many times as large as assumed."""
    settings: dict[Setting, int] = {}
    shared, own = np.zeros((len(found), N_FEATURES)), np.zeros((len(found), len(OWN)))
    group, figures = [], []
    for i, row in enumerate(found):
        e, parts = row.experience, row.parts
        setting = setting_of(e.workload.fingerprint, parts)
        shared[i] = features(parts, own=True)
        own[i] = shared[i, list(OWN)]
        if not row.own:
            shared[i, list(OWN)] = 0.0
        group.append(settings.setdefault(setting, len(settings)))
        # Less of what rests on assumptions.
        variance = (noise * noise_std(parts)) ** 2 + never_learned(parts)
        weight = row.weight * (noise * NOISE) ** 2 / variance
        figures.append((math.log(e.step_s / parts.total_s), weight, alone * plan_std(parts)))
    log_ratio, weights, std = np.array(figures).reshape(-1, 3).T
    every = tuple(row.experience for row in found)
    said = tuple(row.parts for row in found)
    numbers = np.array(group, np.int64)
    return Rows(every, said, shared, own, log_ratio, weights, settings, numbers, std, noise * NOISE)


def is_time(seconds: float) -> bool:
    """Whether a number can be what something took."""
    return math.isfinite(seconds) and seconds > 0.0


@remembered_of
def prior_of(e: Experience) -> StepParts:
    """The step that the prior said; what was not measured is inferred with the help of others."""
    held, path = frozenset(e.plan.nodes), e.plan.options.path
    parts = _prior_among(e, held, path)
    if e.network is None or not (parts.inferred_links or parts.assumed_links):
        return parts
    ends = [(x.src, x.dst) for x in e.network.links if x.path == path]
    met = {end for pair in ends if not held.isdisjoint(pair) for end in pair}
    return _prior_among(e, held | met, path)


def _prior_among(e: Experience, names: frozenset[str], path: str) -> StepParts:
    """The prior's step, its links seen from these nodes alone."""
    nodes = tuple(node for node in e.nodes if node.id in names)
    if e.plan.strategy == "direct" or path == DEFAULT_PATH:
        links = paths_between(nodes, e.network).links_of(e.plan)
    else:
        links = links_between(nodes, e.network, path)
    return step_parts(e.plan, nodes, links, e.workload, e.global_batch)
