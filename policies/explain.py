"""Why n and not n - 1 or n + 1, and what each number rests on."""

from dataclasses import dataclass, replace
from typing import Literal

from policies.approximation import factor_text
from policies.candidates import ceiling, obtainable
from policies.cost_model import nodes_cost_usd_per_h, speed_of
from policies.decentralized_placement import carried
from policies.paths import Paths, paths_between
from policies.reasons import farthest_rtt_s, parts_of, versus
from policies.schema import DEFAULT_PATH, Basis, Candidate, Decision, Interval, Situation
from policies.stage_reasons import stage_facts, stages_against, stages_text
from policies.startup import startup_parts
from policies.wording import count, dollars, duration, exchange_name, percent, size, workers


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that a decision rests on, in words, and where it comes from.

    "given" is what a person or a price list says.
    """

    name: str
    value: str
    basis: Basis | Literal["given"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision in sentences: why it, why not one fewer, why not one more, on what grounds.

    `not_fewer` is None for one worker, `not_otherwise` (the other way to exchange gradients)
    where there was no other. What a plan gives up is among its decision's notes.
    """

    why: str
    not_fewer: str | None
    not_more: str
    rests_on: tuple[Fact, ...]
    not_otherwise: str | None = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences that there are, in order."""
        every = (self.why, self.not_fewer, self.not_more, self.not_otherwise)
        return tuple(s for s in every if s is not None)


def explain(decision: Decision, situation: Situation) -> Explanation:
    """Why n and not n - 1 or n + 1: one readable sentence each, with numbers and their basis."""
    nodes = tuple(sorted(situation.nodes, key=lambda node: node.id))
    situation = replace(situation, nodes=nodes)
    paths = paths_between(nodes, situation.network)
    if decision.chosen.strategy == "pipeline":
        return _explain_stages(decision, situation, paths)
    return Explanation(
        _why(decision, situation, paths),
        _not_fewer(decision, situation, paths),
        _not_more(decision, situation, paths),
        _facts(decision.candidate, situation, paths),
        _not_otherwise(decision),
    )


def _explain_stages(decision: Decision, situation: Situation, paths: Paths) -> Explanation:
    """Why these stages, and not one fewer or one more."""
    chosen, links = decision.candidate, paths.default.links
    return Explanation(
        f"{stages_text(chosen, situation)}{_chance(decision, situation)}.",
        stages_against(decision, chosen.plan.n_workers - 1, situation),
        stages_against(decision, chosen.plan.n_workers + 1, situation),
        (
            *(Fact(*fact) for fact in stage_facts(chosen, situation, links)),
            *_price(chosen, situation),
            _startup(chosen, situation),
            Fact("step", _range(chosen.prediction.step_s), "predicted"),
            Fact("time", _range(chosen.prediction.time_s), "predicted"),
        ),
    )


def _row(decision: Decision, n: int) -> Candidate | None:
    return next((c for c in decision.candidates if c.plan.n_workers == n), None)


def _why(decision: Decision, situation: Situation, paths: Paths) -> str:
    chosen = decision.candidate
    parts, step = parts_of(chosen, situation, paths), chosen.prediction.step_s
    text = f"{workers(chosen.plan.n_workers)}: a step takes {duration(step.mean)} (predicted)"
    if parts.n_workers > 1:
        fraction = parts.exchange_s / parts.total_s
        text += (
            f", {percent(fraction)} of it for exchanging gradients ({exchange_name(chosen.plan)})"
        )
    time, cost = chosen.prediction.time_s, chosen.prediction.cost_usd
    text += f"; the whole takes {duration(time.mean)}"
    if cost.mean > 0:
        text += f" and costs {dollars(cost.mean)}"
    return f"{text}{_chance(decision, situation)}."


def _chance(decision: Decision, situation: Situation) -> str:
    limits = situation.limits
    bounds = []
    if limits.budget_usd is not None:
        bounds.append(f"the budget of {dollars(limits.budget_usd)}")
    if limits.deadline_s is not None:
        bounds.append(f"the deadline of {duration(limits.deadline_s)}")
    if not bounds:
        return ""
    return f", within {' and '.join(bounds)} with a probability of {percent(decision.p_fits)}"


def _not_fewer(decision: Decision, situation: Situation, paths: Paths) -> str | None:
    chosen = decision.candidate
    n = chosen.plan.n_workers
    if n == 1:
        return None
    if situation.limits.workers == n:
        return f"Not {count(n - 1)}: {n} was asked for."
    fewer = _row(decision, n - 1)
    if fewer is None:
        return f"Not {count(n - 1)}: not among the candidates."
    return f"Not {count(n - 1)}: it would {versus(fewer, chosen, situation, paths)}."


def _not_more(decision: Decision, situation: Situation, paths: Paths) -> str:
    chosen = decision.candidate
    n = chosen.plan.n_workers
    if situation.limits.workers == n:
        return f"Not {count(n + 1)}: {n} was asked for."
    more = _row(decision, n + 1)
    if more is None:
        found = obtainable(situation.nodes, situation.limits)
        limit = ceiling(situation, (pool for each in found for pool in each))
        return f"Not {count(n + 1)}: {limit.reason}."
    return f"Not {count(n + 1)}: it would {versus(more, chosen, situation, paths)}."


def _not_otherwise(decision: Decision) -> str | None:
    """What the same number of workers would take with the other way to exchange gradients."""
    rival, chosen = decision.rival, decision.candidate
    if rival is None:
        return None
    step_s, mine_s = rival.prediction.step_s.mean, chosen.prediction.step_s.mean
    return (
        f"Not {exchange_name(rival.plan)}: a step would take {duration(step_s)} instead of "
        f"{duration(mine_s)} (predicted), the whole {duration(rival.prediction.time_s.mean)}."
    )


def _facts(chosen: Candidate, situation: Situation, paths: Paths) -> tuple[Fact, ...]:
    work, workload = situation.work, situation.workload
    gradients = f"{size(workload.payload_bytes)} in {workload.n_tensors:,} tensors"
    return (
        *_speeds(chosen, situation),
        Fact("gradients", gradients, "measured"),
        Fact("work", f"{work.steps:,} steps of {work.global_batch:,} rows", "measured"),
        *_network(chosen, situation, paths),
        *_approximation(chosen, situation, paths),
        *_price(chosen, situation),
        _startup(chosen, situation),
        Fact("step", _range(chosen.prediction.step_s), "predicted"),
        Fact("time", _range(chosen.prediction.time_s), "predicted"),
    )


def _startup(chosen: Candidate, situation: Situation) -> Fact:
    parts = startup_parts(chosen.plan, situation.nodes, situation.workload)
    return Fact("start-up, without experience", duration(parts.total_s), "predicted")


def _range(x: Interval) -> str:
    return f"{duration(x.mean)} ({duration(x.low)} to {duration(x.high)}, 90 %)"


def _speeds(chosen: Candidate, situation: Situation) -> list[Fact]:
    held = set(chosen.plan.nodes)
    facts: dict[str, Fact] = {}
    for node in situation.nodes:
        if node.id not in held:
            continue
        speed, measured = speed_of(node, situation.workload)
        value = f"{duration(speed.c0_s)} + {duration(speed.c1_s)} per row on {speed.cpus:g} CPUs"
        if not measured:
            value += f" (taken from {speed.kind})"
        facts[node.kind] = Fact(
            f"speed of {node.kind}", value, "measured" if measured else "assumed"
        )
    return list(facts.values())


def _network(chosen: Candidate, situation: Situation, paths: Paths) -> list[Fact]:
    if chosen.plan.n_workers == 1:
        return []
    parts = parts_of(chosen, situation, paths)
    local = len(set(chosen.plan.nodes)) == 1
    known = paths.links_of(chosen.plan).known
    assumed = parts.assumed_links or (local and not known.diagonal().any())
    ring = chosen.plan.strategy == "allreduce" or chosen.plan.options.algorithm == "ring"
    where = "on the longest edge" if ring else "between the farthest two"
    value = f"{duration(farthest_rtt_s(chosen, paths))} round trip {where}"
    if chosen.plan.options.path != DEFAULT_PATH:
        value += f", over {chosen.plan.options.path}"
    if parts.inferred_links and not assumed:
        value += " (some links inferred from others)"
    return [Fact("ring" if ring else "links", value, "assumed" if assumed else "measured")]


def _approximation(chosen: Candidate, situation: Situation, paths: Paths) -> list[Fact]:
    """What a step is worth, and what goes over links, where training is not exact."""
    if chosen.steps_factor is None:
        return []
    links, step_s = paths.links_of(chosen.plan), chosen.prediction.step_s.mean
    part = carried(chosen.plan, links, situation.workload.payload_bytes, step_s)
    factor = chosen.steps_factor
    return [
        Fact("narrowest link", f"carries {percent(part)} of the gradients of a step", "predicted"),
        Fact("steps to the same accuracy", factor_text(factor), factor.basis),
    ]


def _price(chosen: Candidate, situation: Situation) -> list[Fact]:
    held = [node for node in situation.nodes if node.id in set(chosen.plan.nodes)]
    sources = sorted({node.price_source for node in held})
    value = f"{dollars(nodes_cost_usd_per_h(chosen.plan, situation.nodes))} per hour"
    basis: Literal["assumed", "given"] = "assumed" if "assumed" in sources else "given"
    return [Fact("price", f"{value} ({', '.join(sources)})", basis)]
