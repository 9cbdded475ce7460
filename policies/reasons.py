"""Why this n and not another, in plain English with numbers."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from policies.approximation import against_exact
from policies.bandit import ALIKE
from policies.candidates import Ceiling
from policies.cost_model import StepParts, step_parts
from policies.paths import Paths
from policies.schema import Candidate, Situation
from policies.wording import count, dollars, duration, ordinal, percent, share, workers

# Differences below these fractions are not worth a word.
SAME_TIME: Final = ALIKE
SAME_COST: Final = 0.005
# A node this far off (round trip) is worth naming its distance.
FAR_S: Final = 0.002


def parts_of(candidate: Candidate, situation: Situation, paths: Paths) -> StepParts:
    """A candidate's step by cause, as the prior sees it."""
    batch = situation.work.global_batch
    return step_parts(
        candidate.plan, situation.nodes, paths.links_of(candidate.plan), situation.workload, batch
    )


def reason_line(
    rows: Mapping[int, Candidate],
    n: int,
    limit: Ceiling,
    situation: Situation,
    paths: Paths,
    rival: Candidate | None = None,
) -> str:
    """The one line of a decision: what n gains over one worker, and why not one more.

    `rows` holds candidates by their number of workers, `limit` why there are not more, `rival`
    exchanges gradients in the other way.
    """
    chosen, one, above = rows[n], rows.get(1), rows.get(n + 1)
    if situation.limits.workers is not None:
        return f"{workers(n)}, as asked{_against_one(chosen, one)}{_against_rival(chosen, rival)}."
    more = _why_not_more(chosen, above, limit, situation, paths)
    if n == 1:
        return f"1 worker: {more}."
    gain = f"{_against_one(chosen, one)}{_against_rival(chosen, rival)}"
    return f"{workers(n)}{gain}. {more[0].upper()}{more[1:]}."


def _against_one(chosen: Candidate, one: Candidate | None) -> str:
    if one is None or chosen.plan.n_workers == 1:
        return ""
    ratio = chosen.prediction.time_s.mean / one.prediction.time_s.mean
    extra_usd = chosen.prediction.cost_usd.mean - one.prediction.cost_usd.mean
    what = f"{share(ratio)} the time of one" if ratio < 2 else f"{ratio:.1f} × the time of one"
    return f": {what}{_money(extra_usd, one.prediction.cost_usd.mean)}"


def _against_rival(chosen: Candidate, rival: Candidate | None) -> str:
    """Why workers talk directly, where that matters; an all-reduce is what everybody expects."""
    if rival is None or chosen.plan.strategy == "allreduce":
        return ""
    if chosen.plan.strategy == "decentralized":
        return against_exact(chosen, rival)
    ratio = rival.prediction.time_s.mean / chosen.prediction.time_s.mean
    if ratio <= 1.0 + SAME_TIME:
        return ""
    longer = duration(rival.prediction.time_s.mean - chosen.prediction.time_s.mean)
    return f", exchanging directly since an all-reduce would take {longer} longer"


def _money(extra_usd: float, base_usd: float) -> str:
    if abs(extra_usd) <= SAME_COST * base_usd:
        return " at the same price" if base_usd > 0 else ""
    return f" for {dollars(abs(extra_usd))} {'more' if extra_usd > 0 else 'less'}"


def _why_not_more(
    chosen: Candidate,
    above: Candidate | None,
    limit: Ceiling,
    situation: Situation,
    paths: Paths,
) -> str:
    n = chosen.plan.n_workers
    if above is None:
        return f"no more than {count(n)}, for {limit.reason}"
    who = "two" if n == 1 else ordinal(n + 1)
    return f"{who} would {versus(above, chosen, situation, paths)}"


def versus(other: Candidate, chosen: Candidate, situation: Situation, paths: Paths) -> str:
    """What another plan would do, its cause first: "share … and take 12 s longer"."""
    cause = _cause(other, chosen, situation, paths)
    effect = _effect(other, chosen)
    text = f"{cause} and {effect}" if cause else effect
    if other.p_fits < min(0.9, chosen.p_fits):
        text += f", {_misfit(other.p_fits)} the {_limit(situation)}"
    return text


def _misfit(p_fits: float) -> str:
    if p_fits < 0.01:
        return "over"
    return f"with a chance of only {percent(p_fits)} to keep"


def _limit(situation: Situation) -> str:
    limits = situation.limits
    if limits.budget_usd is not None and limits.deadline_s is not None:
        return "budget and deadline"
    if limits.budget_usd is not None:
        return f"budget of {dollars(limits.budget_usd)}"
    return f"deadline of {duration(limits.deadline_s or 0.0)}"


def _effect(other: Candidate, chosen: Candidate) -> str:
    mine, theirs = chosen.prediction, other.prediction
    extra_s = theirs.time_s.mean - mine.time_s.mean
    extra_usd = theirs.cost_usd.mean - mine.cost_usd.mean
    same_cost = abs(extra_usd) <= SAME_COST * mine.cost_usd.mean
    if abs(extra_s) <= SAME_TIME * mine.time_s.mean:
        return f"take as long{_money(extra_usd, mine.cost_usd.mean)}"
    if extra_s > 0:
        text = f"take {duration(extra_s)} longer"
        return text if same_cost or extra_usd > 0 else f"{text}, for {dollars(-extra_usd)} less"
    text = f"finish {duration(-extra_s)} sooner"
    return text if same_cost else f"{text}{_money(extra_usd, mine.cost_usd.mean)}"


def _cause(other: Candidate, chosen: Candidate, situation: Situation, paths: Paths) -> str:
    """What makes the larger plan gain less, or nothing when it is the smaller one."""
    if other.plan.n_workers < chosen.plan.n_workers:
        return ""
    mine, theirs = parts_of(chosen, situation, paths), parts_of(other, situation, paths)
    if theirs.sharing > mine.sharing and other.plan.options.gpus_per_worker == 0:
        return _shared_cores(other, situation)
    growth_s = {
        "compute": theirs.compute_s - mine.compute_s,
        "latency": theirs.latency_s - mine.latency_s,
        "payload": theirs.exchange_s - theirs.latency_s - mine.exchange_s + mine.latency_s,
    }
    largest = max(growth_s, key=lambda name: growth_s[name])
    if growth_s[largest] <= 0.0 or theirs.total_s <= 0.8 * mine.total_s:
        return ""
    if largest == "compute":
        return "wait for a slower node"
    far_s = farthest_rtt_s(other, paths)
    if largest == "latency" and far_s > 2.0 * farthest_rtt_s(chosen, paths) and far_s > FAR_S:
        return f"sit {duration(far_s)} away"
    return f"spend {duration(theirs.exchange_s)} of each step on exchanging gradients"


def _shared_cores(other: Candidate, situation: Situation) -> str:
    busiest = max(situation.nodes, key=lambda node: (other.plan.nodes.count(node.id), node.cpus))
    where = "this machine's" if len(situation.nodes) == 1 else "one node's"
    cores = f"{busiest.cpus:g} core{'' if busiest.cpus == 1 else 's'}"
    return f"share {where} {cores}"


def farthest_rtt_s(candidate: Candidate, paths: Paths) -> float:
    """Longest round trip of a plan in seconds: of its ring's edges, or of all pairs; 0 for one."""
    plan, links = candidate.plan, paths.links_of(candidate.plan)
    if plan.n_workers == 1:
        return 0.0
    ring = plan.nodes
    if plan.strategy == "allreduce" or plan.options.algorithm == "ring":
        return max(links.rtt_s(a, b) for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
    at = np.array([links.index[node] for node in dict.fromkeys(ring)])
    apart = ~np.eye(len(at), dtype=bool) if len(at) > 1 else np.ones((1, 1), dtype=bool)
    return 2.0 * float(links.one_way_s[np.ix_(at, at)][apart].max())
