"""What the policy believes of a cluster and a script: links, steps by n, start-ups."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from policies.arrays import Bools
from policies.candidates import strategies
from policies.constants import CONSTANTS
from policies.cost_model import StepParts
from policies.forecast import Forecast, LogNormal, startup_time
from policies.hindsight import Hindsight
from policies.links import Links
from policies.past import sound
from policies.recommend import POLICY, rows_to_show
from policies.residual import Residual
from policies.robust import Correction, Prior
from policies.schema import Basis, Experience, Interval, Plan, Situation, Strategy
from policies.startup import startup_parts
from policies.survey import Survey, survey

STRATEGIES: Final[tuple[Strategy, ...]] = ("allreduce", "direct")
# Beyond so many groups of near nodes, all that lies between them is one class.
MAX_GROUPS: Final = 4


@dataclass(frozen=True, slots=True)
class Reached:
    """What training reaches over a class of links, by the way of exchanging gradients.

    `latency_s` is what one message takes one way, `bandwidth_bytes_per_s` what a long one gets.
    """

    strategy: Strategy
    latency_s: Interval
    bandwidth_bytes_per_s: Interval


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Links alike: inside a group of near nodes (`src` equals `dst`), or between two.

    Where there are many groups, one class `is_between` all of them, with all nodes at both ends.

    `rtt_s` and `bandwidth_bytes_per_s` are medians of what the probe found, where `basis` says
    "measured", jitter and lost messages counted in; of inferred ("predicted") or assumed links
    otherwise.
    """

    src: tuple[str, ...]
    dst: tuple[str, ...]
    n_links: int
    is_between: bool
    rtt_s: float
    bandwidth_bytes_per_s: float
    basis: Basis
    reached: tuple[Reached, ...]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The mean of the steps that were measured with a plan alike, in seconds, and in which runs."""

    step_s: float
    startup_s: float | None
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanBelief:
    """The best plan of an n and a way to exchange: its step and start-up, in seconds.

    `efficiency` is the speed-up over one worker, divided by n. Its interval takes the errors of
    the two steps for independent, so it is rather too wide.
    """

    plan: Plan
    step_s: Interval
    efficiency: Interval
    startup_s: Interval
    measured: MeasuredStep | None


@dataclass(frozen=True, slots=True)
class NodeStartBelief:
    """How long nodes of a type take to join after they were asked for, in seconds."""

    node_type: str
    took_s: Interval
    n_seen: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """How much was measured: stretches of training, in how many runs, and of this script."""

    n_segments: int
    n_runs: int
    n_own_segments: int
    n_own_runs: int


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What the policy believes of the cluster and the script of a run.

    `changed_at_s` is since when the cluster is another, in seconds since 1970, if it was noticed:
    what was measured before counts for little. `knows_sweep` says that they also rest on a sweep
    of another cluster.
    """

    run: str
    policy: str
    evidence: Evidence
    links: tuple[LinkClass, ...]
    plans: tuple[PlanBelief, ...]
    node_starts: tuple[NodeStartBelief, ...]
    changed_at_s: float | None = None
    knows_sweep: bool = False


def believed(
    run: str,
    situation: Situation,
    experience: Sequence[Experience],
    groups: Sequence[frozenset[str]],
    prior: Prior | None = None,
) -> Beliefs:
    """What the policy believes.

    Args:
        run: whose cluster and script they are.
        situation: of that run; what it may take and cost does not matter here.
        experience: every segment that was measured.
        groups: ids of nodes that are near each other, the largest first.
        prior: what the model believes before any of that.

    Raises:
        ValueError: the situation makes no sense.
    """
    limits = replace(
        situation.limits, budget_usd=None, deadline_s=None, workers=None, max_workers=None
    )
    usable = sound(experience)
    found = survey(replace(situation, limits=limits), usable, prior)
    change = found.residual.change
    return Beliefs(
        run=run,
        policy=POLICY,
        evidence=_evidence(usable, situation.workload.fingerprint),
        links=tuple(_link_classes(found, groups)),
        plans=_plans(found, Hindsight(usable, prior)),
        node_starts=_node_starts(found.residual, usable),
        changed_at_s=None if change is None else change.at_s,
        knows_sweep=prior is not None,
    )


def _evidence(usable: Sequence[Experience], script: str) -> Evidence:
    own = [each for each in usable if each.workload.fingerprint == script]
    return Evidence(
        len(usable), len({each.run for each in usable}), len(own), len({each.run for each in own})
    )


def _link_classes(found: Survey, groups: Sequence[frozenset[str]]) -> list[LinkClass]:
    """Inside each group, then from the largest group to each other one, or between all of many."""
    links = found.paths.default.links
    known = [[links.index[node] for node in sorted(g) if node in links.index] for g in groups]
    members = [each for each in known if each]
    pairs = [(each, each) for each in members if len(each) > 1]
    if 1 < len(members) <= MAX_GROUPS:
        pairs += [(members[0], each) for each in members[1:]]
    classes = [_link_class(found.residual, links, *pair) for pair in pairs]
    if len(members) > MAX_GROUPS:
        every = [i for each in members for i in each]
        group = np.repeat(np.arange(len(members)), [len(each) for each in members])
        apart = group[:, None] != group[None, :]
        classes.append(_link_class(found.residual, links, every, every, apart))
    return classes


def _link_class(
    residual: Residual,
    links: Links,
    src: Sequence[int],
    dst: Sequence[int],
    apart: Bools | None = None,
) -> LinkClass:
    at = np.ix_(src, dst)
    counted = (np.array(src)[:, None] != np.array(dst)[None, :]) if apart is None else apart
    one_way_s = float(np.median(links.one_way_s[at][counted]))
    s_per_byte = float(np.median(links.s_per_byte[at][counted]))
    names = list(links.index)
    basis: Basis = "measured" if links.known[at][counted].any() else "assumed"
    if basis == "assumed" and links.inferred[at][counted].any():
        basis = "predicted"
    return LinkClass(
        tuple(names[i] for i in src),
        tuple(names[i] for i in dst),
        int(counted.sum()) // (2 if src == dst else 1),
        apart is not None,
        2.0 * one_way_s,
        1.0 / s_per_byte,
        basis,
        tuple(_reached(residual, each, one_way_s, s_per_byte) for each in STRATEGIES),
    )


def _reached(
    residual: Residual, strategy: Strategy, one_way_s: float, s_per_byte: float
) -> Reached:
    """Of a step that is nothing but latency, and of one that is nothing but transfer."""
    k = CONSTANTS
    hop_s = one_way_s * (k.direct_latency if strategy == "direct" else k.latency_per_hop)
    alone = StepParts(
        0.0, n_workers=2, strategy=strategy, algorithm="one_shot" if strategy == "direct" else None
    )
    waiting = residual.step(replace(alone, latency_s=hop_s))
    sending = residual.step(replace(alone, transfer_s=s_per_byte))
    slower = LogNormal(-math.log(s_per_byte) - sending.mean, sending.std)
    return Reached(strategy, _corrected(hop_s, waiting).interval(), slower.interval())


def _corrected(prior: float, correction: Correction) -> LogNormal:
    return LogNormal(math.log(prior) + correction.mean, correction.std)


def _plans(found: Survey, hindsight: Hindsight) -> tuple[PlanBelief, ...]:
    """The best plan of each n and way to exchange; of many n, those that tell most."""
    by_n = found.all_forecasts()
    fastest = min(by_n, key=lambda n: by_n[n].step.mean)
    alone = by_n[1].step
    beliefs = []
    for n in rows_to_show(sorted(by_n), fastest):
        for strategy in strategies(found.situation, n):
            best = found.best_of(n, [strategy])
            if best is not None:
                beliefs.append(_plan_belief(best, alone, found, hindsight))
    return tuple(beliefs)


def _plan_belief(
    best: Forecast, alone: LogNormal, found: Survey, hindsight: Hindsight
) -> PlanBelief:
    n, workload = best.plan.n_workers, found.situation.workload
    sigma = math.hypot(alone.sigma, best.step.sigma) if n > 1 else 0.0
    efficiency = LogNormal(alone.mu - best.step.mu - math.log(n), sigma)
    parts = startup_parts(best.plan, found.situation.nodes, workload)
    return PlanBelief(
        best.plan,
        best.step.interval(),
        efficiency.interval(),
        startup_time(parts, found.residual).interval(),
        _measured(hindsight, workload.fingerprint, best.parts),
    )


def _measured(hindsight: Hindsight, script: str, parts: StepParts) -> MeasuredStep | None:
    segments = hindsight.alike(script, parts)
    if not segments:
        return None
    weights = [each.steps for each in segments]
    step_s = float(np.average([each.step_s for each in segments], weights=weights))
    timed_s = [each.startup_s for each in segments if each.startup_s]
    startup_s = math.fsum(timed_s) / len(timed_s) if timed_s else None
    return MeasuredStep(step_s, startup_s, tuple(dict.fromkeys(each.run for each in segments)))


def _node_starts(residual: Residual, usable: Sequence[Experience]) -> tuple[NodeStartBelief, ...]:
    """Of the types that can be started."""
    seen = dict.fromkeys((each.run, start) for each in usable for start in each.node_starts)
    learned: Mapping[str, Correction] = residual.node_start_by_type
    return tuple(
        NodeStartBelief(
            name,
            _corrected(CONSTANTS.node_start_s, correction).interval(),
            sum(start.node_type == name for _, start in seen),
        )
        for name, correction in learned.items()
    )
