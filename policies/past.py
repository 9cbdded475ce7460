"""Past runs as they can be judged afterwards: where their time went, and what was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.constants import S_PER_H
from policies.cost_model import evaluation_s, nodes_cost_usd_per_h
from policies.rows import prior_of
from policies.schema import Experience, Plan, Situation, Work


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that has ended, with all that a policy needs to be asked about it again.

    `situation` is that of its first decision, free to choose n where a person had fixed it
    (`asked`). `before` is what had been measured until then, by other runs. `segments` are its own
    stretches of timed steps; `n_starts` counts those that began for another reason than a move
    from plan to plan, and `moving_s` is what the moves took. `time_s` and `cost_usd` are the
    whole run's.
    """

    run: str
    seed: int
    situation: Situation
    segments: tuple[Experience, ...]
    n_starts: int
    moving_s: float
    time_s: float
    cost_usd: float
    before: tuple[Experience, ...] = ()
    asked: int | None = None

    @property
    def steps(self) -> int:
        """Steps that were made and timed."""
        return sum(each.steps for each in self.segments)

    @property
    def main(self) -> Experience:
        """The segment of most steps."""
        return max(self.segments, key=lambda each: each.steps)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that it trained under, in their order."""
        return tuple(dict.fromkeys(each.plan for each in self.segments))

    @property
    def work(self) -> Work:
        """The part of the work that was done."""
        declared = self.situation.work
        part = self.steps / declared.steps if declared.steps > 0 else 1.0
        return replace(declared, steps=self.steps, epochs=declared.epochs * part)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the time of a run went, in seconds.

    `before_s` came before the decision. `known_s` are start-ups and steps, as timed;
    `evaluation_s` is what evaluation took, or what the cost model says of it, as far as there is
    time left for it; `moving_s` is what moves between plans took. `rest_s` is what any plan would
    have taken: checkpoints, the way down, setbacks. `usd` is what all but `before_s` cost at the
    prices of the nodes in use.
    """

    before_s: float
    known_s: float
    evaluation_s: float
    moving_s: float
    rest_s: float
    usd: float


def ledger(past: PastRun) -> Ledger:
    """Where the time of a run went."""
    held_s = [each.steps * each.step_s + (each.startup_s or 0.0) for each in past.segments]
    rates = [nodes_cost_usd_per_h(each.plan, each.nodes) for each in past.segments]
    known_s, before_s = math.fsum(held_s), past.situation.spent_s
    left_s = max(past.time_s - before_s - known_s - past.moving_s, 0.0)
    in_evaluation_s = min(_evaluation_s(past), left_s)
    known_usd = math.fsum(s * rate for s, rate in zip(held_s, rates, strict=True)) / S_PER_H
    other_s = past.moving_s + left_s
    usd = known_usd * (1.0 + other_s / known_s) if known_s > 0 else 0.0
    return Ledger(before_s, known_s, in_evaluation_s, past.moving_s, left_s - in_evaluation_s, usd)


def _evaluation_s(past: PastRun) -> float:
    """All evaluation of a run: as measured at the end of an epoch, else as the prior says."""
    each_s = past.main.evaluation_s
    if each_s is not None and math.isfinite(each_s) and each_s > 0.0:
        return each_s * past.work.epochs
    return evaluation_s(prior_of(past.main), past.work)


def flaw_of(each: Experience) -> str | None:
    """What keeps a segment from being judged, as a clause; None where nothing does."""
    known = {node.id for node in each.nodes if node.cpus > 0}
    if len(each.plan.nodes) != each.plan.n_workers or not known.issuperset(each.plan.nodes):
        return "its plan names nodes that its record does not know"
    if not each.workload.node_kinds:
        return "its script was profiled on no node"
    if not (math.isfinite(each.step_s) and each.step_s > 0.0):
        return f"its record has steps of {each.step_s} s"
    if each.startup_s is not None and not (math.isfinite(each.startup_s) and each.startup_s >= 0):
        return f"its record has a start-up of {each.startup_s} s"
    try:
        total_s = prior_of(each).total_s
    except (ValueError, ArithmeticError, LookupError) as error:
        return f"its record makes no sense ({error})"
    return None if math.isfinite(total_s) and total_s > 0.0 else "its record makes no sense"


def sound(segments: Sequence[Experience]) -> tuple[Experience, ...]:
    """The segments that can be judged."""
    return tuple(each for each in segments if flaw_of(each) is None)
