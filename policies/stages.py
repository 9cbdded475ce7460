"""Plans that train a model in stages on several nodes: where it is cut, on which, in what order."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from typing import Final

from policies.candidates import Pool
from policies.constants import CONSTANTS
from policies.cost_model import StepParts
from policies.forecast import Forecast, corrected, forecast_of
from policies.links import Links
from policies.paths import paths_between
from policies.pipeline import Hop, NoSplit, Split, StageNode, best_split
from policies.robust import Correction
from policies.schema import Experience, ModelLayers, Node, Plan, StageKind, Workload
from policies.survey import Survey
from policies.wording import size

# How far a predicted step may be off, as standard deviation of its logarithm: before any run in
# stages was seen, and from one run to the next.
ASSUMED: Final = 0.2
NOISE: Final = 0.1
# Of a node's memory, what the process, TensorFlow and chance leave to the model.
USABLE: Final = 0.85
# All orders of so many nodes are looked at; of more, chains along the best links.
EXACT_UP_TO: Final = 4
MAX_CHAINS: Final = 8
MAX_STAGES: Final = 16


@dataclass(frozen=True, slots=True)
class Staged:
    """A plan in stages, how the model is cut for it, and what it will take."""

    split: Split
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class NotStaged:
    """There is no such plan."""

    reason: str


def best_staged(found: Survey, n_stages: int, learned: Correction) -> Staged | NotStaged:
    """The quickest plan of so many stages, each on a node of its own.

    Args:
        found: what the candidates of a decision share.
        n_stages: two or more.
        learned: what experience says of steps in stages.
    """
    layers = found.situation.workload.layers
    if layers is None or layers.refusal is not None:
        return NotStaged(layers.refusal if layers and layers.refusal else "it was not measured")
    pools = _pools(found, n_stages)
    if not pools:
        return NotStaged(f"there are not {n_stages} nodes")
    weights_bytes = found.situation.workload.weights_bytes
    roomy = [(pool, _roomy(pool, layers, weights_bytes)) for pool in pools]
    if all(len(nodes) < n_stages for _, nodes in roomy):
        return NotStaged(
            f"{n_stages} nodes must have memory for all of its weights ({size(weights_bytes)}), "
            "before and after training"
        )
    splits = [
        (split, pool, order)
        for pool, nodes in roomy
        if len(nodes) >= n_stages
        for order in _orders(nodes, found.paths.default.links, layers, n_stages)
        for split in [split_on(order, found.paths.default.links, layers)]
    ]
    whole = [each for each in splits if isinstance(each[0], Split)]
    if not whole:
        return NotStaged(next(s.reason for s, *_ in splits if isinstance(s, NoSplit)))
    split, pool, order = min(whole, key=lambda each: _step_s(each[0]))
    assert isinstance(split, Split)
    return _forecast(found, split, _plan(pool, order, split, layers), learned)


def _step_s(split: Split | NoSplit) -> float:
    return split.step_s if isinstance(split, Split) else math.inf


def _pools(found: Survey, n_stages: int) -> list[Pool]:
    """Pools on Ray's own network with that many nodes."""
    pools = [g.site.pool for g in found.grounds if g.direct is not None]
    return [pool for pool in pools if len(pool.nodes) >= n_stages]


def _roomy(pool: Pool, layers: ModelLayers, weights_bytes: int) -> list[Node]:
    """The nodes of a pool that have memory for all weights, as every worker has at times."""
    limits = [(node, _usable_bytes(node, layers)) for node in pool.nodes]
    return [node for node, limit in limits if limit is None or weights_bytes <= limit]


def _orders(
    nodes: Sequence[Node], links: Links, layers: ModelLayers, n: int
) -> Iterator[tuple[Node, ...]]:
    """Orders of n of the nodes that may be good ones."""
    nodes = sorted(nodes, key=lambda node: (slowness(node, layers), node.id))
    if len(nodes) <= EXACT_UP_TO:
        yield from permutations(nodes, n)
        return
    for start in nodes[:MAX_CHAINS]:
        yield _chain(start, nodes, links, layers, n)


def _chain(
    start: Node, nodes: Sequence[Node], links: Links, layers: ModelLayers, n: int
) -> tuple[Node, ...]:
    """From one node on, always the one reached soonest; of equally near ones the fastest."""
    usual_bytes = sorted(part.cut_bytes for part in layers.parts)[len(layers.parts) // 2]
    chain = [start]
    while len(chain) < n:
        rest = [node for node in nodes if node not in chain]
        hops = {node.id: _hop(chain[-1], node, links) for node in rest}
        chain.append(
            min(
                rest,
                key=lambda node: (
                    round(hops[node.id].latency_s + hops[node.id].transfer_s(usual_bytes), 4),
                    slowness(node, layers),
                ),
            )
        )
    return tuple(chain)


def split_on(nodes: Sequence[Node], links: Links, layers: ModelLayers) -> Split | NoSplit:
    """The model cut for these nodes, in their order."""
    hops = [_hop(a, b, links) for a, b in pairwise(nodes)]
    stages = [_stage_node(node, layers) for node in nodes]
    return best_split(layers.parts, stages, hops, layers.micro_batches, layers.pass_s)


def _stage_node(node: Node, layers: ModelLayers) -> StageNode:
    """A node as a stage finds it; messages take as long as those of `direct`."""
    k, core = CONSTANTS, min(1.0, max(node.usable_cpus, 0.01))
    byte_s = (k.direct_byte_cpu_s + k.direct_pack_cpu_s) / core
    return StageNode(
        slowness(node, layers), _usable_bytes(node, layers), k.direct_message_cpu_s / core, byte_s
    )


def _hop(a: Node, b: Node, links: Links) -> Hop:
    """The link between two nodes, as its slower direction is."""
    i, j = links.index[a.id], links.index[b.id]
    latency_s = max(links.one_way_s[i, j], links.one_way_s[j, i])
    s_per_byte = max(links.s_per_byte[i, j], links.s_per_byte[j, i])
    return Hop(float(latency_s), float(1.0 / s_per_byte))


def _kind(node: Node, layers: ModelLayers) -> StageKind | None:
    return next((kind for kind in layers.kinds if kind.kind == node.kind), None)


def slowness(node: Node, layers: ModelLayers) -> float:
    """How many times as long as the first profiled kind a node computes."""
    kind = _kind(node, layers)
    return kind.slowness if kind is not None else 1.0


def _usable_bytes(node: Node, layers: ModelLayers) -> int | None:
    kind = _kind(node, layers)
    if kind is None or kind.memory_bytes is None:
        return None
    return int(USABLE * kind.memory_bytes)


def whole_bytes(layers: ModelLayers) -> int:
    """What the model takes where one node trains all of it, a whole batch at once."""
    return sum(part.state_bytes + layers.micro_batches * part.kept_bytes for part in layers.parts)


def fitting(nodes: Sequence[Node], layers: ModelLayers) -> tuple[Node, ...]:
    """The nodes that have the memory to train the whole model, as far as that is known."""
    limits = [(node, _usable_bytes(node, layers)) for node in nodes]
    needed = whole_bytes(layers)
    return tuple(node for node, limit in limits if limit is None or needed <= limit)


def _plan(pool: Pool, order: Sequence[Node], split: Split, layers: ModelLayers) -> Plan:
    options = pool.options({node.id: 1 for node in order})
    options = replace(options, cuts=split.cuts, micro_batches=layers.micro_batches)
    return Plan(len(order), tuple(node.id for node in order), "pipeline", options)


def _forecast(found: Survey, split: Split, plan: Plan, learned: Correction) -> Staged:
    held = tuple(found.node_by_id[name] for name in sorted(set(plan.nodes)))
    situation = replace(found.situation, nodes=held)
    compute_s = max(stage.compute_s for stage in split.stages)
    n_micro = plan.options.micro_batches
    parts = StepParts(
        compute_s * n_micro,
        latency_s=max(0.0, split.step_s - compute_s * n_micro),
        n_workers=plan.n_workers,
        strategy="pipeline",
    )
    step = corrected(split.step_s, learned)
    return Staged(split, forecast_of(plan, parts, step, situation, found.residual))


def learned_correction(experience: Sequence[Experience], workload: Workload) -> Correction:
    """Logarithm of how much longer steps in stages take than predicted, and its deviation.

    A normal posterior; runs of other scripts count as half a run.
    """
    precision, total = 1.0 / ASSUMED**2, 0.0
    for each in experience:
        predicted_s = _predicted_s(each)
        if predicted_s is None or each.step_s <= 0.0:
            continue
        own = each.workload.fingerprint == workload.fingerprint
        weight = (1.0 if own else 0.5) / NOISE**2
        precision += weight
        total += weight * math.log(each.step_s / predicted_s)
    return Correction(total / precision, math.hypot(1.0 / math.sqrt(precision), NOISE))


def _predicted_s(each: Experience) -> float | None:
    """What a past run's step in stages would have been predicted to take."""
    layers = each.workload.layers
    if each.plan.strategy != "pipeline" or layers is None:
        return None
    by_id = {node.id: node for node in each.nodes}
    if any(name not in by_id for name in each.plan.nodes):
        return None
    links = paths_between(each.nodes, each.network).default.links
    split = split_on([by_id[name] for name in each.plan.nodes], links, layers)
    same = isinstance(split, Split) and split.cuts == each.plan.options.cuts
    return split.step_s if same and isinstance(split, Split) else None
