"""Improve a placement by small moves: turn a stretch of the ring, move or swap a node."""

from functools import lru_cache
from typing import Final

import numpy as np

from policies.arrays import Floats, Ints
from policies.cost_model import software_s
from policies.placement import Placed, Site, place, ring_s

MAX_WORKERS: Final = 16
MAX_OUTSIDERS: Final = 24
MAX_ROUNDS: Final = 30


def improved(site: Site, placed: Placed) -> Placed:
    """The best placement that single moves lead to; one worker per node, not too many of them.

    The price may rise: call it for the fastest plan of n workers.
    """
    n = placed.plan.n_workers
    ranks = np.array([site.links.index[node] for node in placed.plan.nodes])
    if n < 2 or n > MAX_WORKERS or len(set(placed.plan.nodes)) < n:
        return placed
    s_by_node = {i: site.node_s(i, n, 1) for i in set(site.alike)}
    node_s = np.array([s_by_node[i] for i in site.alike])
    least_s = float(_step_s(site, ranks[None, :], node_s)[0])
    for _ in range(MAX_ROUNDS):
        moved = np.concatenate([ranks[_moves(n)], _swaps(site, ranks, node_s)])
        moved_s = _step_s(site, moved, node_s)
        at = int(moved_s.argmin())
        if moved_s[at] >= least_s * (1.0 - 1e-9):
            break
        ranks, least_s = moved[at], float(moved_s[at])
    return place(site, [int(i) for i in ranks], [1] * n, np.arange(n)[None, :])


def _step_s(site: Site, ranks: Ints, node_s: Floats) -> Floats:
    """Step times of rings, `ranks` of shape `(R, n)`."""
    latency_s, transfer_s = ring_s(site.links, ranks, site.workload.payload_bytes)
    n = ranks.shape[-1]
    exchange_s = latency_s + transfer_s + software_s(n, site.workload.payload_bytes, 1.0)
    total: Floats = node_s[ranks].max(axis=-1) + exchange_s
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
