"""Why a model is trained in these stages, in plain English with numbers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from policies.links import Links
from policies.pipeline import Split
from policies.schema import Basis, Candidate, Decision, ModelLayers, Node, Situation
from policies.stages import slowness, split_on
from policies.wording import count, dollars, duration, size, workers


class StageFact(NamedTuple):
    """A number that a decision for stages rests on, in words, and where it comes from."""

    name: str
    value: str
    basis: Basis


def stages_text(chosen: Candidate, situation: Situation) -> str:
    """What a plan in stages takes, as a clause."""
    plan, prediction = chosen.plan, chosen.prediction
    names = _cut_names(chosen, _layers(situation))
    text = (
        f"{workers(plan.n_workers)}, each a stage of the model, cut after {names}: a step takes "
        f"{duration(prediction.step_s.mean)} (predicted), the whole "
        f"{duration(prediction.time_s.mean)}"
    )
    usd = prediction.cost_usd.mean
    return f"{text} and costs {dollars(usd)}" if usd > 0 else text


def stages_against(decision: Decision, n: int, situation: Situation) -> str:
    """Why there are not n stages."""
    chosen = decision.candidate
    if situation.limits.workers == chosen.plan.n_workers:
        return f"Not {count(n)}: {chosen.plan.n_workers} was asked for."
    other = _row(decision, n)
    if other is None:
        return f"Not {count(n)}: {_why_none(n, situation)}."
    extra_s = other.prediction.time_s.mean - chosen.prediction.time_s.mean
    extra_usd = other.prediction.cost_usd.mean - chosen.prediction.cost_usd.mean
    how = "longer" if extra_s > 0 else "less"
    text = f"it would take {duration(abs(extra_s))} {how}"
    if abs(extra_usd) > 0.005 * chosen.prediction.cost_usd.mean:
        text += f" and cost {dollars(abs(extra_usd))} {'more' if extra_usd > 0 else 'less'}"
    return f"Not {count(n)}: {text}."


def _row(decision: Decision, n: int) -> Candidate | None:
    """The candidate of n stages; for one, the worker that trains the whole model."""
    wanted = "pipeline" if n > 1 else None
    found = [c for c in decision.candidates if c.plan.n_workers == n]
    return next((c for c in found if wanted is None or c.plan.strategy == wanted), None)


def _why_none(n: int, situation: Situation) -> str:
    if n == 1:
        return "the whole model does not fit in one node's memory"
    if n > len(situation.nodes):
        return f"there are {len(situation.nodes)} nodes"
    return "the model cannot be cut so that each stage fits in its node's memory"


def stage_facts(chosen: Candidate, situation: Situation, links: Links) -> Iterator[StageFact]:
    """What the prediction of a plan in stages rests on."""
    layers, nodes = _layers(situation), {node.id: node for node in situation.nodes}
    order = [nodes[name] for name in chosen.plan.nodes]
    split = split_on(order, links, layers)
    if isinstance(split, Split):
        yield from _stage_lines(split, order, layers)
    for a, b in pairwise(order):
        known = bool(links.known[links.index[a.id], links.index[b.id]])
        value = f"{duration(links.rtt_s(a.id, b.id))} round trip"
        yield StageFact(f"link {a.ip}–{b.ip}", value, "measured" if known else "assumed")


def _stage_lines(split: Split, order: list[Node], layers: ModelLayers) -> Iterator[StageFact]:
    """What each stage computes, holds and sends."""
    for stage, node in zip(split.stages, order, strict=True):
        first, last = layers.parts[stage.first].name, layers.parts[stage.stop - 1].name
        value = (
            f"{first} to {last}: {duration(stage.compute_s)} a micro-batch, holds "
            f"{size(stage.memory_bytes)}"
        )
        if stage.sent_bytes:
            value += f", sends {size(stage.sent_bytes)}"
        if (slow := slowness(node, layers)) > 1.05:
            value += f" ({slow:.1f} × slower node)"
        yield StageFact(f"stage on {node.ip}", value, "measured")


def _cut_names(chosen: Candidate, layers: ModelLayers) -> str:
    return ", ".join(layers.parts[cut - 1].name for cut in chosen.plan.options.cuts)


def _layers(situation: Situation) -> ModelLayers:
    layers = situation.workload.layers
    if layers is None:
        raise ValueError("the layers of the model were not measured")
    return layers
