"""The prior: what a step, a job and an hour of a plan take by known laws."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.arrays import Floats
from policies.constants import CONSTANTS
from policies.links import Links, links_between
from policies.schema import KindSpeed, Node, Plan, Situation, Work, Workload


@dataclass(frozen=True, slots=True)
class StepParts:
    """A step's time by cause, in seconds, and what it rests on.

    `sharing` is the largest number of workers on one node; `cpu_ratio` the CPUs at which the
    pace-setting node was measured over those its worker holds; `doubt_s` how much less the
    latency is if links of much jitter were only measured badly.
    """

    compute_s: float
    latency_s: float = 0.0
    transfer_s: float = 0.0
    software_s: float = 0.0
    n_workers: int = 1
    sharing: int = 1
    cpu_ratio: float = 1.0
    assumed_speed: bool = False
    assumed_links: bool = False
    inferred_links: bool = False
    doubt_s: float = 0.0

    @property
    def exchange_s(self) -> float:
        """What the exchange of gradients adds to the step."""
        whole_s = self.latency_s + self.transfer_s + self.software_s
        return whole_s - CONSTANTS.overlap * min(whole_s, self.compute_s)

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.exchange_s


def whole_cpus(cpus: float) -> float:
    """What Ray can hand out of `cpus`: whole CPUs, or the fraction when below one."""
    return float(math.floor(cpus + 1e-9)) if cpus >= 1.0 else cpus


def held_cpus(plan: Plan, nodes: Sequence[Node]) -> dict[str, float]:
    """CPUs that each worker of a plan holds, by node id.

    Ray gives all workers the common minimum; the rest of a node is held for its workers, so
    a worker has its whole share unless the plan asks for less than the common minimum.
    """
    n_by_node = Counter(plan.nodes)
    share_by_node = {n.id: n.cpus / n_by_node[n.id] for n in nodes if n.id in n_by_node}
    asked = plan.options.cpus_per_worker
    if asked >= whole_cpus(min(share_by_node.values())):
        return share_by_node
    return dict.fromkeys(share_by_node, asked)


def speed_of(node: Node, workload: Workload) -> tuple[KindSpeed, bool]:
    """The measured speed of a node's kind, else that of the kind most like it.

    Returns:
        The speed, and whether it was measured on this very kind.

    Raises:
        ValueError: the workload was profiled on no node at all.
    """
    if not workload.node_kinds:
        raise ValueError("The workload has no measured speed: profile it on one node first.")
    for speed in workload.node_kinds:
        if speed.kind == node.kind:
            return speed, True

    def distance(speed: KindSpeed) -> tuple[bool, float, str]:
        alike = (speed.gpus > 0) == (node.gpus > 0)
        return not alike, abs(math.log(max(speed.cpus, 0.01) / max(node.cpus, 0.01))), speed.kind

    return min(workload.node_kinds, key=distance), False


def compute_s(speed: KindSpeed, cpus: float, gpus: float, rows: float, sharing: int) -> float:
    """Time of c0 + c1·rows on a worker that holds `cpus` of a node shared by `sharing` workers."""
    k = CONSTANTS
    crowd = 1.0 + k.contention * (sharing - 1)
    core = min(1.0, speed.cpus) / min(1.0, cpus) if speed.cpus > 0 and cpus > 0 else 1.0
    slowdown = 1.0 if gpus > 0 else math.pow(_cpu_ratio(speed, cpus), k.cpu_exponent)
    return crowd * (max(speed.c0_s, 0.0) * core + max(speed.c1_s, 0.0) * rows * slowdown)


def _cpu_ratio(speed: KindSpeed, cpus: float) -> float:
    return speed.cpus / cpus if speed.cpus > 0 and cpus > 0 else 1.0


def ring_parts(
    one_way_s: Floats, s_per_byte: Floats, payload_bytes: float
) -> tuple[Floats, Floats]:
    """Latency and transfer time of a ring all-reduce, in seconds.

    A chunk travels 2(n-1) consecutive edges, so latency is the slowest such path: two laps
    but for the fastest pair of neighbouring edges. Every edge carries 2(n-1) chunks of
    payload/n, so the narrowest sets the transfer time (α-β model, Thakur et al. 2005).

    Args:
        one_way_s: latency of the edges in ring order, shape `(..., n)`, n ≥ 2.
        s_per_byte: inverse bandwidth of the same edges, shape `(..., n)`.
        payload_bytes: gradients of one worker.
    """
    k, n = CONSTANTS, one_way_s.shape[-1]
    pairs_s = one_way_s + np.roll(one_way_s, -1, axis=-1)
    path_s = 2.0 * one_way_s.sum(axis=-1) - pairs_s.min(axis=-1)
    agreement_s = k.agreement_rtts * 2.0 * one_way_s.max(axis=-1)
    transfer_s = 2.0 * (n - 1) / n * payload_bytes * s_per_byte.max(axis=-1)
    return k.latency_per_hop * path_s + agreement_s, transfer_s


def software_s(n_workers: int, payload_bytes: float, cpus: float) -> float:
    """CPU time of one all-reduce in gRPC and TensorFlow, for a worker that holds `cpus`."""
    if n_workers == 1:
        return 0.0
    k, n_hops = CONSTANTS, 2 * (n_workers - 1)
    sent_bytes = n_hops / n_workers * payload_bytes
    core_s = k.hop_cpu_s * n_hops + k.byte_cpu_s * sent_bytes
    return core_s / min(1.0, max(cpus, 0.01))


def step_parts(
    plan: Plan, nodes: Sequence[Node], links: Links, workload: Workload, global_batch: int
) -> StepParts:
    """A step of `plan` by cause: max over ranks of (c0 + c1·b_i), then the ring all-reduce."""
    n, n_by_node, cpus_by_node = plan.n_workers, Counter(plan.nodes), held_cpus(plan, nodes)
    rows, gpus = math.ceil(global_batch / n), plan.options.gpus_per_worker
    pace_s, cpu_ratio, assumed = 0.0, 1.0, False
    held = [node for node in nodes if node.id in n_by_node]
    alike = {(x.kind, x.cpus, cpus_by_node[x.id], n_by_node[x.id]): x for x in held}
    for (_, _, cpus, sharing), node in alike.items():
        speed, measured = speed_of(node, workload)
        node_s = compute_s(speed, cpus, gpus, rows, sharing)
        assumed |= not measured
        if node_s > pace_s:
            pace_s, cpu_ratio = node_s, 1.0 if gpus > 0 else _cpu_ratio(speed, cpus)
    parts = StepParts(pace_s, 0.0, 0.0, 0.0, n, max(n_by_node.values()), cpu_ratio, assumed)
    return parts if n == 1 else _with_exchange(parts, plan, links, workload, cpus_by_node)


def _with_exchange(
    parts: StepParts,
    plan: Plan,
    links: Links,
    workload: Workload,
    cpus_by_node: Mapping[str, float],
) -> StepParts:
    src = np.array([links.index[node] for node in plan.nodes])
    dst = np.roll(src, -1)
    one_way_s, s_per_byte = links.one_way_s[src, dst], links.s_per_byte[src, dst]
    latency_s, transfer_s = ring_parts(one_way_s, s_per_byte, workload.payload_bytes)
    sure_s, _ = ring_parts(one_way_s * (1.0 - links.doubt[src, dst]), s_per_byte, 0.0)
    return StepParts(
        parts.compute_s,
        float(latency_s),
        float(transfer_s),
        software_s(plan.n_workers, workload.payload_bytes, min(cpus_by_node.values())),
        plan.n_workers,
        parts.sharing,
        parts.cpu_ratio,
        parts.assumed_speed,
        bool((~(links.known | links.inferred)[src, dst] & (src != dst)).any()),
        bool((links.inferred[src, dst] & (src != dst)).any()),
        float(latency_s - sure_s),
    )


def step_time_s(plan: Plan, situation: Situation) -> float:
    """The prior's step time of a plan, in seconds."""
    links = links_between(situation.nodes, situation.network, plan.options.path)
    batch = situation.work.global_batch
    return step_parts(plan, situation.nodes, links, situation.workload, batch).total_s


def nodes_cost_usd_per_h(plan: Plan, nodes: Sequence[Node]) -> float:
    """Price of all nodes that a plan holds; a node counts whole, however many workers it has."""
    held = set(plan.nodes)
    return math.fsum(node.price_usd_per_h for node in nodes if node.id in held)


def evaluation_s(parts: StepParts, work: Work) -> float:
    """All evaluation batches of the remaining work: forward passes without an exchange."""
    return CONSTANTS.forward * parts.compute_s * work.validation_steps * work.epochs


def checkpoints_s(training_s: float, work: Work, payload_bytes: int) -> float:
    """All snapshots of the remaining work: one per epoch and one per minute."""
    k = CONSTANTS
    each_s = k.checkpoint_s + k.checkpoint_copies * payload_bytes / k.checkpoint_bytes_per_s
    return each_s * (work.epochs + training_s / k.checkpoint_every_s)
