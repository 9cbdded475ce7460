"""Which n of N nodes, and in what ring order.

The slowest node and the narrowest edge set the pace, every edge's latency counts, and so do the
price and how often nodes are lost. Up to eight nodes all subsets and all rings are looked at;
`greedy` takes over beyond.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations
from typing import Final

import numpy as np

from policies.arrays import Floats, Ints
from policies.candidates import Pool
from policies.cost_model import compute_s, line_of, ring_parts, software_s, speed_of
from policies.links import Links
from policies.schema import Plan, Workload
from policies.sites import sites_of
from policies.slices import Line
from policies.spot import part_lost

EXACT_UP_TO: Final = 8
MAX_PLANS: Final = 6
# Rings looked at together; bounds the memory of one look to a few megabytes.
RINGS_AT_ONCE: Final = 5040


@dataclass(frozen=True, slots=True)
class Site:
    """A pool of nodes with everything that placing workers on them needs.

    `price`, `lost`, `cpus` and `alike` have shape `(N,)` in the order of `pool.nodes`, as do the
    rows and columns of `links`. `lost[i]` is how much longer, as a part of it, a job takes on node
    `i` because the node may be taken back. `alike[i]` is the first node that computes just like
    node `i`. `groups` are partitions into near nodes, each of shape `(N,)`.
    """

    pool: Pool
    links: Links
    workload: Workload
    global_batch: int
    price: Floats
    lost: Floats
    cpus: Floats
    alike: tuple[int, ...]
    groups: tuple[Ints, ...]

    def node_s(self, i: int, n_workers: int, sharing: int) -> float:
        """Compute time of a step on node `i` when `sharing` of `n_workers` sit there."""
        node = self.pool.nodes[i]
        speed, _ = speed_of(node, self.workload)
        rows = math.ceil(self.global_batch / n_workers)
        return compute_s(speed, self.held(i, sharing), self.pool.gpus_per_worker, rows, sharing)

    def line(self, i: int, sharing: int, n_nodes: int) -> Line:
        """The workers on nodes like `i`, `sharing` on each."""
        speed, _ = speed_of(self.pool.nodes[i], self.workload)
        gpus = self.pool.gpus_per_worker
        return line_of(speed, self.held(i, sharing), gpus, sharing, n_nodes)

    def with_losses_s(self, step_s: float, members: Sequence[int]) -> float:
        """A step's time with its share of what losses of these nodes add to a job."""
        return step_s * (1.0 + math.fsum(self.lost[i] for i in members))

    def held(self, i: int, sharing: int) -> float:
        """CPUs that each of `sharing` workers holds on node `i`."""
        share = float(self.cpus[i]) / sharing
        return min(self.pool.cpus_per_worker or share, share)


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan with the two numbers that placements are compared by.

    `step_s` counts what losses of the plan's nodes add to a job, too.
    """

    plan: Plan
    step_s: float
    price_usd_per_h: float


def site_of(pool: Pool, links: Links, workload: Workload, global_batch: int) -> Site:
    """The site of a pool, its links cut out of all nodes' links."""
    inner = links.among([node.id for node in pool.nodes])
    price = np.array([node.price_usd_per_h for node in pool.nodes])
    lost = np.array([part_lost(node) for node in pool.nodes])
    cpus = np.array([node.usable_cpus for node in pool.nodes])
    first: dict[tuple[str, float], int] = {}
    alike = tuple(first.setdefault((n.kind, n.cpus), i) for i, n in enumerate(pool.nodes))
    groups = sites_of(inner.one_way_s)
    if max(pool.room) > 1:
        groups = (*groups, np.arange(len(pool.nodes)))
    return Site(pool, inner, workload, global_batch, price, lost, cpus, alike, groups)


def placements(site: Site, n_workers: int) -> tuple[Placed, ...]:
    """The plans of n workers on at most eight nodes that no other beats in time and in price."""
    found = []
    for members in subsets(site.pool, n_workers):
        counts = shares(site.pool, members, n_workers)
        found.append(place(site, members, counts, rings(len(members))))
    return undominated(found)


def subsets(pool: Pool, n_workers: int) -> Iterator[tuple[int, ...]]:
    """Sets of nodes with room for n workers, each of them used."""
    n_nodes = len(pool.nodes)
    for size in range(1, min(n_workers, n_nodes) + 1):
        for members in combinations(range(n_nodes), size):
            if sum(pool.room[i] for i in members) >= n_workers:
                yield members


def shares(pool: Pool, members: Sequence[int], n_workers: int) -> tuple[int, ...]:
    """Workers on each member, as even as its room allows."""
    if n_workers == len(members):
        return (1,) * n_workers
    counts = dict.fromkeys(members, 0)
    left = n_workers
    while left:
        open_nodes = [i for i in members if counts[i] < pool.room[i]]
        each = max(
            1, min([left // len(open_nodes), *(pool.room[i] - counts[i] for i in open_nodes)])
        )
        for i in open_nodes[: left // each]:
            counts[i] += each
            left -= each
    return tuple(counts[i] for i in members)


@lru_cache(maxsize=EXACT_UP_TO)
def rings(n_nodes: int) -> Ints:
    """All ring orders of n nodes that start at the first, shape `((n-1)!, n)`."""
    orders = [(0, *rest) for rest in permutations(range(1, n_nodes))]
    return np.array(orders, dtype=np.int64)


def place(site: Site, members: Sequence[int], counts: Sequence[int], orders: Ints) -> Placed:
    """The best ring of given nodes among `orders`, shape `(R, len(members))`."""
    n = sum(counts)
    pairs = list(zip(members, counts, strict=True))
    like = {(site.alike[i], k) for i, k in pairs}
    step_s = max(site.node_s(i, n, k) for i, k in like)
    order = orders[0]
    if n > 1:
        cpus = min(site.held(i, k) for i, k in like)
        order, ring_s = _best_ring(site, np.array(members), np.array(counts), orders, step_s)
        step_s += ring_s + software_s(n, site.workload.payload_bytes, cpus)
    ranks = [members[j] for j in order for _ in range(counts[j])]
    price = math.fsum(site.price[i] for i in members)
    return Placed(plan_of(site.pool, ranks), site.with_losses_s(step_s, members), price)


def _best_ring(
    site: Site, members: Ints, counts: Ints, orders: Ints, idle_s: float
) -> tuple[Ints, float]:
    best_s, best = math.inf, orders[0]
    for start in range(0, len(orders), RINGS_AT_ONCE):
        block = orders[start : start + RINGS_AT_ONCE]
        ranks = np.repeat(members[block].ravel(), counts[block].ravel()).reshape(len(block), -1)
        latency_s, transfer_s = ring_s(site.links, ranks, site.workload.payload_bytes, idle_s)
        total_s = latency_s + transfer_s
        at = int(total_s.argmin())
        if total_s[at] < best_s:
            best_s, best = float(total_s[at]), block[at]
    return best, best_s


def ring_s(
    links: Links, ranks: Ints, payload_bytes: float, idle_s: Floats | float
) -> tuple[Floats, Floats]:
    """Latency and transfer time of rings of nodes, `ranks` of shape `(R, n)`.

    Args:
        links: of all nodes.
        ranks: nodes in rank order.
        payload_bytes: gradients of one worker.
        idle_s: since the last exchange, of each ring or of all.
    """
    one_way_s, s_per_byte = (
        each[ranks, np.roll(ranks, -1, axis=-1)] for each in (links.one_way_s, links.s_per_byte)
    )
    return ring_parts(one_way_s, s_per_byte, payload_bytes, idle_s)


def plan_of(pool: Pool, ranks: Sequence[int]) -> Plan:
    """An all-reduce of workers on nodes in the order of ranks."""
    nodes = tuple(pool.nodes[i].id for i in ranks)
    return Plan(len(nodes), nodes, "allreduce", pool.options_at(Counter(ranks)))


def undominated(found: Iterable[Placed]) -> tuple[Placed, ...]:
    """The fastest plan and each cheaper one, fastest first; at most a handful."""
    front: list[Placed] = []
    for placed in sorted(found, key=lambda p: (p.step_s, p.price_usd_per_h, p.plan.nodes)):
        if not front or placed.price_usd_per_h < front[-1].price_usd_per_h * (1 - 1e-9):
            front.append(placed)
    if len(front) <= MAX_PLANS:
        return tuple(front)
    at = np.linspace(0, len(front) - 1, MAX_PLANS).round().astype(int)
    return tuple(front[i] for i in at)
