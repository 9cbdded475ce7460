"""Improve a placement: turn a stretch of the ring, move or swap a node, reorder its blocks."""

from functools import lru_cache
from typing import Final

import numpy as np

from policies.arrays import Floats, Ints
from policies.cost_model import software_s
from policies.placement import Placed, Site, place, ring_s, rings

MAX_WORKERS: Final = 16
MAX_OUTSIDERS: Final = 24
MAX_ROUNDS: Final = 30
# Longer rings have their blocks reordered instead, all (MAX_BLOCKS - 1)! orders of them.
MAX_BLOCKS: Final = 8


def improved(site: Site, placed: Placed) -> Placed:
    """The best placement that single moves lead to; one worker per node, not too many of them.

    The price may rise: call it for the fastest plan of n workers.
    """
    n = placed.plan.n_workers
    ranks = np.array([site.links.index[node] for node in placed.plan.nodes])
    if n < 2 or len(set(placed.plan.nodes)) < n:
        return placed
    if n > MAX_WORKERS:
        return place(site, _reordered(site, ranks).tolist(), [1] * n, np.arange(n)[None, :])
    node_s = node_times_s(site, n)
    least_s = float(step_times_s(site, ranks[None, :], node_s)[0])
    for _ in range(MAX_ROUNDS):
        moved = np.concatenate([ranks[_moves(n)], _swaps(site, ranks, node_s)])
        moved_s = step_times_s(site, moved, node_s)
        at = int(moved_s.argmin())
        if moved_s[at] >= least_s * (1.0 - 1e-9):
            break
        ranks, least_s = moved[at], float(moved_s[at])
    return place(site, [int(i) for i in ranks], [1] * n, np.arange(n)[None, :])


def _reordered(site: Site, ranks: Ints) -> Ints:
    """The best order of the blocks between a ring's costliest edges (sites, by and large)."""
    links, payload = site.links, site.workload.payload_bytes
    following = np.roll(ranks, -1)
    edge_s = links.one_way_s[ranks, following] + payload * links.s_per_byte[ranks, following]
    cuts = np.sort(np.argsort(-edge_s, kind="stable")[:MAX_BLOCKS]) + 1
    blocks = np.split(np.roll(ranks, -cuts[0]), (cuts - cuts[0])[1:])
    first, last = np.array([b[0] for b in blocks]), np.array([b[-1] for b in blocks])
    inside_s = max(
        (links.s_per_byte[b[:-1], b[1:]].max() for b in blocks if len(b) > 1), default=0.0
    )
    orders = rings(len(blocks))
    leaving, entering = last[orders], first[np.roll(orders, -1, axis=1)]
    narrow = np.maximum(links.s_per_byte[leaving, entering].max(axis=1), inside_s)
    total_s = 2.0 * (links.one_way_s[leaving, entering].sum(axis=1) + payload * narrow)
    return np.concatenate([blocks[i] for i in orders[int(total_s.argmin())]])


def node_times_s(site: Site, n_workers: int) -> Floats:
    """Compute time of a step on each node that holds one of n workers, shape `(N,)`."""
    s_by_node = {i: site.node_s(i, n_workers, 1) for i in set(site.alike)}
    return np.array([s_by_node[i] for i in site.alike])


def step_times_s(site: Site, ranks: Ints, node_s: Floats) -> Floats:
    """Step times of rings of one worker a node, `ranks` of shape `(R, n)`.

    All workers are taken to hold a whole CPU, which does not change their order.
    """
    compute_s = node_s[ranks].max(axis=-1)
    latency_s, transfer_s = ring_s(site.links, ranks, site.workload.payload_bytes, compute_s)
    n = ranks.shape[-1]
    exchange_s = latency_s + transfer_s + software_s(n, site.workload.payload_bytes, 1.0)
    total: Floats = compute_s + exchange_s
    return total


@lru_cache(maxsize=MAX_WORKERS)
def _moves(n: int) -> Ints:
    """Orders of n places after turning a stretch, or after moving one, shape `(M, n)`."""
    ring = tuple(range(n))
    turned = {ring[:i] + ring[i:j][::-1] + ring[j:] for i in range(n) for j in range(i + 2, n + 1)}
    moved = set()
    for i in range(n):
        rest = ring[:i] + ring[i + 1 :]
        moved |= {(*rest[:j], i, *rest[j:]) for j in range(n)}
    return np.array(sorted(turned | moved))


def _swaps(site: Site, ranks: Ints, node_s: Floats) -> Ints:
    """All rings with one node replaced by a promising outsider, shape `(n·outsiders, n)`."""
    links, payload = site.links, site.workload.payload_bytes
    edge_s = links.one_way_s[:, ranks].mean(axis=1) + payload * links.s_per_byte[:, ranks].mean(
        axis=1
    )
    appeal_s = edge_s + node_s
    appeal_s[ranks] = np.inf
    n_outside = min(MAX_OUTSIDERS, len(appeal_s) - len(ranks))
    outsiders = np.argsort(appeal_s, kind="stable")[:n_outside]
    n = len(ranks)
    swapped = np.tile(ranks, (n * n_outside, 1))
    rows = np.arange(n * n_outside)
    swapped[rows, rows % n] = np.repeat(outsiders, n)
    return swapped
