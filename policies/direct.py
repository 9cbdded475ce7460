"""What a sum of gradients takes when workers talk to each other directly (strategy `direct`).

Workers sit on nodes: R sets of at most M nodes are looked at together. A phase of an algorithm is
a matrix of bytes between nodes: it takes the longest latency and the time of the narrowest pipe
or interface (docs/exchange.md has the algorithms).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Bools, Floats, Ints
from policies.constants import CONSTANTS
from policies.links import Links
from policies.schema import Plan
from policies.tcp_windows import congestion_s, restart_s

# In which pieces vectors travel.
SEGMENT_BYTES: Final = 1 << 20
# Every worker keeps a connection to every other and two threads for each.
MAX_WORKERS: Final = 64


@dataclass(frozen=True, slots=True)
class Mesh:
    """The pipes between workers on R sets of M nodes.

    `counts` are the workers on each node, shape `(R, M)`, 0 where a row has fewer nodes.
    `one_way_s` and `s_per_byte` have shape `(R, M, M)`, with loopback on the diagonal,
    `nic_s_per_byte` shape `(2, R, M)`: sending, receiving. `idle_s` is how long connections have
    carried nothing when a sum begins, shape `(R,)`.
    """

    counts: Floats
    one_way_s: Floats
    s_per_byte: Floats
    nic_s_per_byte: Floats
    idle_s: Floats

    @property
    def n_workers(self) -> int:
        """Workers of every set."""
        return int(self.counts[0].sum())

    @property
    def pairs(self) -> Floats:
        """Directed pairs of workers by their nodes, shape `(R, M, M)`."""
        own = np.eye(self.counts.shape[1]) * self.counts[:, :, None]
        found: Floats = self.counts[:, :, None] * self.counts[:, None, :] - own
        return found


@dataclass(frozen=True, slots=True)
class Sum:
    """Seconds of one sum by cause, each of shape `(R,)`.

    `core_s` is CPU time of a whole core, of which `bucket_s` would be needed again for each
    further bucket. `windows_s` is the part of `transfer_s` that TCP's windows cause.
    """

    latency_s: Floats
    transfer_s: Floats
    core_s: Floats
    bucket_s: Floats
    windows_s: Floats

    def software_s(self, cpus: Floats | float) -> Floats:
        """CPU time of workers that hold so many CPUs, shape `(R,)`."""
        slowed: Floats = self.core_s / np.clip(cpus, 0.01, 1.0)
        return slowed

    def total_s(self, cpus: Floats | float) -> Floats:
        """All of it for workers that hold so many CPUs, shape `(R,)`."""
        whole: Floats = self.latency_s + self.transfer_s + self.software_s(cpus)
        return whole

    def hidden_s(self, compute_s: Floats | float, cpus: Floats | float) -> Floats:
        """What buckets that leave during the backward pass would save, shape `(R,)`.

        Args:
            compute_s: of a step.
            cpus: that a worker holds.
        """
        k = CONSTANTS
        most_s = np.minimum(k.hidden_transfer * self.transfer_s, k.hiding_compute * compute_s)
        buckets_s = (k.n_buckets - 1.0) * self.bucket_s / np.clip(cpus, 0.01, 1.0)
        saved: Floats = np.maximum(most_s - buckets_s, 0.0)
        return saved


def mesh_of(links: Links, members: Ints, counts: Ints, idle_s: Floats | float = 0.0) -> Mesh:
    """The mesh of sets of nodes: their indices and workers, both of shape `(R, M)`."""
    src, dst = members[:, :, None], members[:, None, :]
    return Mesh(
        counts.astype(float),
        links.one_way_s[src, dst],
        links.s_per_byte[src, dst],
        links.nic_s_per_byte[:, members],
        np.broadcast_to(idle_s, len(members)),
    )


def one_shot(mesh: Mesh, payload_bytes: float) -> Sum:
    """Everybody sends the whole to everybody: L + (n-1)·S/B."""
    n = mesh.n_workers
    phase = _Phase(mesh, mesh.pairs * payload_bytes, idle=True)
    return _sum([phase], n - 1, (n - 1) * payload_bytes, payload_bytes)


def two_shot(mesh: Mesh, payload_bytes: float) -> Sum:
    """Everybody sums a part and tells it: 2·L + 2·(n-1)/n·S/B."""
    n = mesh.n_workers
    first, then = (_Phase(mesh, mesh.pairs * (payload_bytes / n), idle=x) for x in (True, False))
    return _sum([first, then], 2 * (n - 1), (n - 1) / n * payload_bytes, payload_bytes)


def two_level(mesh: Mesh, payload_bytes: float, groups: Ints) -> Sum:
    """Two-shot inside each site, one-shot between: 2·l + 2·(m-1)/m·S/b + L + (s-1)·S/B.

    Args:
        mesh: nodes in the order of their ranks.
        payload_bytes: gradients of one worker.
        groups: the site of each node, shape `(R, M)`.
    """
    together = (groups[:, :, None] == groups[:, None, :]) & (mesh.counts[:, None, :] > 0)
    members = np.maximum((together * mesh.counts[:, None, :]).sum(axis=-1), 1.0)
    inside = np.where(together, mesh.pairs * payload_bytes / members[:, :, None], 0.0)
    first, last = (_Phase(mesh, inside, idle=idle) for idle in (True, False))
    between = _Phase(mesh, _shared(mesh, together, members) * payload_bytes, idle=True)
    n_sites = (mesh.counts / members).sum(axis=-1)
    largest = members.max(axis=-1)
    added = ((largest - 1.0) + (n_sites - 1.0)) / largest * payload_bytes
    n_messages = 2.0 * (largest - 1.0) + (n_sites - 1.0)
    return _sum([first, between, last], n_messages, added, payload_bytes)


def _shared(mesh: Mesh, together: Bools, members: Floats) -> Floats:
    """The part of the vector that workers of two nodes of different sites both own.

    The workers of a node own the elements from `begin` to `end` of their site's, as fractions.
    """
    earlier = np.tril(np.ones(together.shape[1:]), k=-1)
    begin = (together * earlier * mesh.counts[:, None, :]).sum(axis=-1) / members
    end = begin + mesh.counts / members
    last = np.minimum(end[:, :, None], end[:, None, :])
    first = np.maximum(begin[:, :, None], begin[:, None, :])
    overlap: Floats = np.where(together, 0.0, np.maximum(last - first, 0.0))
    return np.where(overlap > 1e-9, overlap, 0.0)


def ring(
    one_way_s: Floats, s_per_byte: Floats, payload_bytes: float, idle_s: Floats | float = 0.0
) -> Sum:
    """Neighbours only: 2·(n-1) edges, one after the other.

    Args:
        one_way_s: latencies of the edges in the order of ranks, shape `(R, n)`.
        s_per_byte: inverse bandwidths of the same edges.
        payload_bytes: gradients of one worker.
        idle_s: since the last sum, shape `(R,)`.
    """
    n = one_way_s.shape[-1]
    sent_bytes = 2.0 * (n - 1) / n * payload_bytes
    core_s = _core_s(2.0 * (n - 1), sent_bytes, sent_bytes / 2.0, payload_bytes)
    path_s = CONSTANTS.direct_latency * slowest_path_s(one_way_s)
    idle_s = np.asarray(idle_s)[..., None]
    again_s = restart_s(payload_bytes / n, 2.0 * one_way_s, s_per_byte, idle_s)
    transfer_s = (sent_bytes * s_per_byte + again_s).max(axis=-1)
    transfer_s = transfer_s + congestion_s(transfer_s, 2.0 * one_way_s.max(axis=-1))
    windows_s = transfer_s - sent_bytes * s_per_byte.max(axis=-1)
    bucket_s = _bucket_s(2.0 * (n - 1))
    core_s, bucket_s = (np.broadcast_to(x, path_s.shape) for x in (core_s, bucket_s))
    return Sum(path_s, transfer_s, core_s, bucket_s, windows_s)


def slowest_path_s(one_way_s: Floats) -> Floats:
    """The slowest 2(n-1) consecutive edges of rings: two laps but for the fastest two edges."""
    pairs_s = one_way_s + np.roll(one_way_s, -1, axis=-1)
    path_s: Floats = 2.0 * one_way_s.sum(axis=-1) - pairs_s.min(axis=-1)
    return path_s


class _Phase:
    """Messages that leave at the same time; bytes between nodes, shape `(R, M, M)`.

    Those that their connections carry first have to open the windows of these again, if `idle`.
    """

    def __init__(self, mesh: Mesh, sent_bytes: Floats, *, idle: bool) -> None:
        used = sent_bytes > 0.0
        self.latency_s: Floats = np.where(used, mesh.one_way_s, 0.0).max(axis=(-2, -1))
        pipes_s = sent_bytes * mesh.s_per_byte
        again_s = _restart_s(mesh, sent_bytes) if idle else 0.0
        away = sent_bytes * ~np.eye(sent_bytes.shape[-1], dtype=bool)
        out_s = (_through_interface(away, -1) * mesh.nic_s_per_byte[0]).max(axis=-1)
        in_s = (_through_interface(away, -2) * mesh.nic_s_per_byte[1]).max(axis=-1)
        nic_s = np.maximum(out_s, in_s)
        self.plain_s: Floats = np.maximum(pipes_s.max(axis=(-2, -1)), nic_s)
        self.transfer_s: Floats = np.maximum((pipes_s + again_s).max(axis=(-2, -1)), nic_s)
        per_worker = sent_bytes.sum(axis=-1) / np.maximum(mesh.counts, 1.0)
        self.worker_bytes: Floats = per_worker.max(axis=-1)


def _restart_s(mesh: Mesh, sent_bytes: Floats) -> Floats:
    """What the first messages after a pause take longer, by nodes, shape `(R, M, M)`."""
    message_bytes = sent_bytes / np.maximum(mesh.pairs, 1.0)
    idle_s = mesh.idle_s[:, None, None]
    return restart_s(message_bytes, 2.0 * mesh.one_way_s, mesh.s_per_byte, idle_s)


def _through_interface(sent_bytes: Floats, axis: int) -> Floats:
    """Bytes of each node, counted for more where they are several streams, shape `(R, M)`."""
    several = (sent_bytes > 0.0).sum(axis=axis) > 1
    found: Floats = sent_bytes.sum(axis=axis) * np.where(several, CONSTANTS.shared_interface, 1.0)
    return found


def _sum(
    phases: list[_Phase], n_messages: Floats | float, added_bytes: Floats | float, payload: float
) -> Sum:
    latency_s = np.sum([phase.latency_s for phase in phases], axis=0)
    transfer_s = np.sum([phase.transfer_s for phase in phases], axis=0)
    sent_bytes = np.sum([phase.worker_bytes for phase in phases], axis=0)
    core_s = _core_s(n_messages, sent_bytes, added_bytes, payload)
    farthest_s = 2.0 * np.max([phase.latency_s for phase in phases], axis=0)
    transfer_s = transfer_s + congestion_s(transfer_s, farthest_s)
    return Sum(
        CONSTANTS.direct_latency * latency_s,
        transfer_s,
        core_s,
        _bucket_s(n_messages),
        transfer_s - np.sum([phase.plain_s for phase in phases], axis=0),
    )


def _bucket_s(n_messages: Floats | float) -> Floats:
    """CPU seconds of one more sum of next to nothing, on a whole core."""
    k = CONSTANTS
    return np.asarray(k.bucket_cpu_s + k.direct_message_cpu_s * n_messages, dtype=float)


def _core_s(
    n_messages: Floats | float,
    sent_bytes: Floats | float,
    added_bytes: Floats | float,
    payload_bytes: float,
) -> Floats:
    """CPU seconds of one worker on a whole core."""
    k = CONSTANTS
    n_pieces = n_messages + sent_bytes / SEGMENT_BYTES
    whole_s = k.direct_sum_cpu_s + k.direct_message_cpu_s * n_pieces
    whole_s = whole_s + k.direct_byte_cpu_s * sent_bytes + k.direct_add_cpu_s * added_bytes
    return np.asarray(whole_s + k.direct_pack_cpu_s * payload_bytes, dtype=float)


def sum_of(plan: Plan, links: Links, payload_bytes: float, idle_s: float = 0.0) -> Sum:
    """The sum of a plan of several workers by its algorithm, shape `(1,)`."""
    payload = max(payload_bytes, 1.0)
    if plan.options.algorithm == "ring":
        src = np.array([[links.index[node] for node in plan.nodes]])
        dst = np.roll(src, -1, axis=-1)
        return ring(links.one_way_s[src, dst], links.s_per_byte[src, dst], payload, idle_s)
    n_by_node = Counter(plan.nodes)
    members = np.array([[links.index[node] for node in n_by_node]])
    mesh = mesh_of(links, members, np.array([list(n_by_node.values())]), idle_s)
    if plan.options.algorithm == "two_level":
        return two_level(mesh, payload, _groups(plan))
    return (
        two_shot(mesh, payload) if plan.options.algorithm == "two_shot" else one_shot(mesh, payload)
    )


def _groups(plan: Plan) -> Ints:
    """The site of each node in rank order, shape `(1, M)`."""
    site_by_rank = {rank: i for i, site in enumerate(plan.options.sites) for rank in site}
    first = {node: rank for rank, node in reversed(list(enumerate(plan.nodes)))}
    return np.array([[site_by_rank.get(first[node], -1) for node in dict.fromkeys(plan.nodes)]])
