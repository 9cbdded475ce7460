"""The prior: what a step, a job and an hour of a plan take by known laws."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.arrays import Floats, Ints
from policies.constants import CONSTANTS
from policies.direct import slowest_path_s, sum_of
from policies.links import Links
from policies.paths import paths_between
from policies.schema import Algorithm, KindSpeed, Node, Plan, Situation, Strategy, Work, Workload
from policies.slices import Line, equal_rows, even_rows
from policies.tcp_windows import congestion_s, restart_s


@dataclass(frozen=True, slots=True)
class StepParts:
    """A step's time by cause, in seconds, and what it rests on.

    `sharing` is the largest number of workers on one node; `cpu_ratio` the CPUs at which the
    pace-setting node was measured over those its worker holds; `doubt_s` how much less the
    latency is if links of much jitter were only measured badly; `hidden_s` how much of the exchange
    goes on while the worker computes; `windows_s` how much of the transfer TCP's windows cause.
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
    hidden_s: float = 0.0
    windows_s: float = 0.0
    strategy: Strategy = "allreduce"
    algorithm: Algorithm | None = None

    @property
    def exchange_s(self) -> float:
        """What the exchange of gradients adds to the step."""
        return self.latency_s + self.transfer_s + self.software_s - self.hidden_s

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
    a worker has its whole share unless the plan asks for less than the common minimum. Nobody
    gets more than the operating system allows.
    """
    n_by_node = Counter(plan.nodes)
    used = [node for node in nodes if node.id in n_by_node]
    asked = plan.options.cpus_per_worker
    if asked >= whole_cpus(min(node.cpus / n_by_node[node.id] for node in used)):
        return {node.id: node.usable_cpus / n_by_node[node.id] for node in used}
    return {node.id: min(asked, node.usable_cpus / n_by_node[node.id]) for node in used}


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


def line_of(speed: KindSpeed, cpus: float, gpus: float, sharing: int, n_nodes: int = 1) -> Line:
    """The workers on nodes alike, `sharing` of them on each."""
    c0_s = compute_s(speed, cpus, gpus, 0.0, sharing)
    c1_s = compute_s(speed, cpus, gpus, 1.0, sharing) - c0_s
    return Line(c0_s, c1_s, sharing * n_nodes)


def slowest(workers: Sequence[Line], global_batch: int, strategy: Strategy) -> tuple[float, int]:
    """Compute time of a step of all workers, and which of them set the pace.

    An all-reduce has equal slices; else slices follow the workers' speeds. Where nobody waits for
    others (`decentralized`), who is too slow for its slice of one row sets no pace.
    """
    if strategy != "allreduce":
        rows = even_rows(workers, global_batch)
    else:
        n_workers = sum(line.n_workers for line in workers)
        rows = (equal_rows(n_workers, global_batch),) * len(workers)
    times_s = [line.step_s(b) for line, b in zip(workers, rows, strict=True)]
    pick = min if strategy == "decentralized" else max
    at = pick(range(len(times_s)), key=lambda i: times_s[i])
    return times_s[at], at


def slowest_of_sites(
    workers: Sequence[Line], sites: Sequence[str | None], global_batch: int, strategy: Strategy
) -> tuple[float, int]:
    """As `slowest`, where the workers of each site share batches of their own."""
    found = []
    for site in dict.fromkeys(sites):
        at = [i for i, each in enumerate(sites) if each == site]
        pace_s, slow = slowest([workers[i] for i in at], global_batch, strategy)
        found.append((pace_s, at[slow]))
    return max(found)


def _cpu_ratio(speed: KindSpeed, cpus: float) -> float:
    return speed.cpus / cpus if speed.cpus > 0 and cpus > 0 else 1.0


def ring_parts(
    one_way_s: Floats, s_per_byte: Floats, payload_bytes: float, idle_s: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """Latency and transfer time of a ring all-reduce, in seconds.

    A chunk travels 2(n-1) consecutive edges, so latency is the slowest such path: two laps
    but for the fastest pair of neighbouring edges. Every edge carries 2(n-1) chunks of
    payload/n, so the narrowest sets the transfer time (α-β model, Thakur et al. 2005).

    Args:
        one_way_s: latency of the edges in ring order, shape `(..., n)`, n ≥ 2.
        s_per_byte: inverse bandwidth of the same edges, shape `(..., n)`.
        payload_bytes: gradients of one worker.
        idle_s: since the last exchange, after which connections start slowly; shape `(...)`.
    """
    k, n = CONSTANTS, one_way_s.shape[-1]
    path_s = slowest_path_s(one_way_s)
    agreement_s = k.agreement_rtts * 2.0 * one_way_s.max(axis=-1)
    idle_s = np.asarray(idle_s)[..., None]
    again_s = restart_s(payload_bytes / n, 2.0 * one_way_s, s_per_byte, idle_s)
    transfer_s = (2.0 * (n - 1) / n * payload_bytes * s_per_byte + again_s).max(axis=-1)
    transfer_s = transfer_s + congestion_s(transfer_s, 2.0 * one_way_s.max(axis=-1))
    return k.latency_per_hop * path_s + agreement_s, transfer_s


def software_s(n_workers: int, payload_bytes: float, cpus: float) -> float:
    """CPU time of one all-reduce in gRPC and TensorFlow, for a worker that holds `cpus`."""
    if n_workers == 1:
        return 0.0
    k, n_hops = CONSTANTS, 2 * (n_workers - 1)
    sent_bytes = n_hops / n_workers * payload_bytes
    core_s = k.hop_cpu_s * n_hops + k.byte_cpu_s * sent_bytes
    return core_s / min(1.0, max(cpus, 0.01))


def unhindered_s(n_workers: int, payload_bytes: int, cpus: float) -> float:
    """What `decentralized` adds to a step of a worker that holds `cpus`: it waits for nobody."""
    k, n_peers = CONSTANTS, n_workers - 1
    core_s = k.direct_sum_cpu_s + k.direct_message_cpu_s * 2.0 * n_peers
    core_s += (k.direct_pack_cpu_s + k.peer_byte_cpu_s * n_peers) * payload_bytes
    return core_s / min(1.0, max(cpus, 0.01))


def step_parts(
    plan: Plan, nodes: Sequence[Node], links: Links, workload: Workload, global_batch: int
) -> StepParts:
    """A step of `plan` by cause: max over ranks of (c0 + c1·b_i), then the exchange."""
    n, n_by_node, cpus_by_node = plan.n_workers, Counter(plan.nodes), held_cpus(plan, nodes)
    gpus, held = plan.options.gpus_per_worker, [node for node in nodes if node.id in n_by_node]
    own = plan.options.asynchrony is not None and plan.options.asynchrony.own_data
    alike = Counter(
        (x.kind, x.cpus, cpus_by_node[x.id], n_by_node[x.id], x.site if own else None) for x in held
    )
    kinds = {(x.kind, x.cpus): x for x in held}
    lines, ratios, assumed = [], [], False
    for (kind, all_cpus, cpus, sharing, _), n_nodes in alike.items():
        speed, measured = speed_of(kinds[kind, all_cpus], workload)
        lines.append(line_of(speed, cpus, gpus, sharing, n_nodes))
        ratios.append(1.0 if gpus > 0 else _cpu_ratio(speed, cpus))
        assumed |= not measured
    sites = [site for *_, site in alike]
    pace_s, at = slowest_of_sites(lines, sites, global_batch, plan.strategy)
    parts = StepParts(pace_s, 0.0, 0.0, 0.0, n, max(n_by_node.values()), ratios[at], assumed)
    if n == 1:
        return parts
    cpus = min(cpus_by_node.values())
    if plan.strategy == "decentralized":
        own_s = unhindered_s(n, workload.payload_bytes, cpus_by_node[plan.nodes[0]])
        return replace(parts, software_s=own_s, strategy=plan.strategy)
    with_exchange = _with_direct if plan.strategy == "direct" else _with_ring
    whole = with_exchange(parts, plan, links, workload.payload_bytes, cpus)
    if plan.options.sync_batchnorm and workload.n_batch_norms:
        small = with_exchange(parts, plan, links, 0, cpus)
        whole = _with_small(whole, small, 2 * workload.n_batch_norms)
    if workload.n_slices:
        whole = _with_gathers(whole, parts, plan, links, cpus, workload.n_slices)
    return whole


def _with_gathers(
    whole: StepParts, parts: StepParts, plan: Plan, links: Links, cpus: float, n_slices: int
) -> StepParts:
    """With what it takes that rows of tables travel by themselves, first values, then indices.

    TensorFlow sums the numbers of rows before, and agrees on each gather. The bytes are counted
    in the payload.
    """
    if plan.strategy == "direct":
        shot = replace(plan, options=replace(plan.options, algorithm="one_shot"))
        return _with_small(whole, _with_direct(parts, shot, links, 0, cpus), 2 * n_slices)
    whole = _with_small(whole, _with_ring(parts, plan, links, 0, cpus), 2 * n_slices)
    ranks = np.array([links.index[node] for node in plan.nodes])
    longest_s = 2.0 * float(links.one_way_s[ranks, np.roll(ranks, -1)].max())
    agreement_s = CONSTANTS.gather_rtts * longest_s
    return replace(whole, latency_s=whole.latency_s + n_slices * agreement_s)


def _with_small(whole: StepParts, small: StepParts, n_small: int) -> StepParts:
    """With so many sums of next to nothing, such as batch statistics take."""
    return replace(
        whole,
        latency_s=whole.latency_s + n_small * small.latency_s,
        software_s=whole.software_s + n_small * small.software_s,
        doubt_s=whole.doubt_s + n_small * small.doubt_s,
    )


def _with_ring(
    parts: StepParts, plan: Plan, links: Links, payload_bytes: int, cpus: float
) -> StepParts:
    src = np.array([links.index[node] for node in plan.nodes])
    dst = np.roll(src, -1)
    one_way_s, s_per_byte = links.one_way_s[src, dst], links.s_per_byte[src, dst]
    latency_s, transfer_s = ring_parts(one_way_s, s_per_byte, payload_bytes, parts.compute_s)
    sure_s, _ = ring_parts(one_way_s * (1.0 - links.doubt[src, dst]), s_per_byte, 0.0)
    n = plan.n_workers
    plain_s = 2.0 * (n - 1) / n * payload_bytes * float(s_per_byte.max())
    parts = replace(
        parts,
        latency_s=float(latency_s),
        transfer_s=float(transfer_s),
        windows_s=float(transfer_s) - plain_s,
        software_s=software_s(n, payload_bytes, cpus),
        doubt_s=float(latency_s - sure_s),
    )
    return _with_basis(parts, links, src, dst)


def _with_direct(
    parts: StepParts, plan: Plan, links: Links, payload_bytes: int, cpus: float
) -> StepParts:
    names = list(dict.fromkeys(plan.nodes))
    links = links.among(names)
    found = sum_of(plan, links, payload_bytes, parts.compute_s)
    sure_s = found.latency_s
    if links.doubt.any():
        sure = sum_of(plan, replace(links, one_way_s=links.one_way_s * (1.0 - links.doubt)), 0.0)
        sure_s = sure.latency_s
    copies_s = gpu_copies_s(payload_bytes, plan.options.gpus_per_worker)
    parts = replace(
        parts,
        latency_s=found.latency_s.item(),
        transfer_s=found.transfer_s.item(),
        windows_s=found.windows_s.item(),
        software_s=found.software_s(cpus).item() + copies_s,
        doubt_s=(found.latency_s - sure_s).item(),
        hidden_s=found.hidden_s(parts.compute_s, cpus).item() if plan.options.overlap else 0.0,
        strategy="direct",
        algorithm=plan.options.algorithm,
    )
    src = np.arange(len(names))
    if plan.options.algorithm == "ring":
        return _with_basis(parts, links, src, np.roll(src, -1))
    return _with_basis(parts, links, src[:, None], src[None, :])


def gpu_copies_s(payload_bytes: int, gpus: float) -> float:
    """Time of a GPU's gradients to the CPU and back, where `direct` adds them."""
    return 2.0 * payload_bytes / CONSTANTS.gpu_copy_bytes_per_s if gpus > 0 else 0.0


def _with_basis(parts: StepParts, links: Links, src: Ints, dst: Ints) -> StepParts:
    """What the links that are used rest on."""
    known = links.known | links.inferred
    return replace(
        parts,
        assumed_links=bool((~known[src, dst] & (src != dst)).any()),
        inferred_links=bool((links.inferred[src, dst] & (src != dst)).any()),
    )


def step_time_s(plan: Plan, situation: Situation) -> float:
    """The prior's step time of a plan, in seconds."""
    links = paths_between(situation.nodes, situation.network).links_of(plan)
    batch = situation.work.global_batch
    return step_parts(plan, situation.nodes, links, situation.workload, batch).total_s


def nodes_cost_usd_per_h(plan: Plan, nodes: Sequence[Node]) -> float:
    """Price of all nodes that a plan holds; a node counts whole, however many workers it has."""
    held = set(plan.nodes)
    return math.fsum(node.price_usd_per_h for node in nodes if node.id in held)


def evaluation_s(parts: StepParts, work: Work) -> float:
    """All evaluation batches of the remaining work: forward passes without an exchange."""
    return CONSTANTS.forward * parts.compute_s * work.validation_steps * work.epochs


def checkpoint_s(weights_bytes: int) -> float:
    """What one checkpoint takes from training: a copy of weights and optimizer state."""
    k = CONSTANTS
    return k.checkpoint_s + k.checkpoint_copies * weights_bytes / k.checkpoint_bytes_per_s


def checkpoints_s(training_s: float, work: Work, weights_bytes: int) -> float:
    """All checkpoints of the remaining work: one per epoch and one per minute."""
    n_checkpoints = work.epochs + training_s / CONSTANTS.checkpoint_every_s
    return checkpoint_s(weights_bytes) * n_checkpoints
