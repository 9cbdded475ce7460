"""Placement beyond eight nodes: grow from good seeds, along one short tour of all nodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Bools, Floats, Ints
from policies.local_search import improved, node_times_s, step_times_s
from policies.placement import Placed, Site, place, rings, shares, undominated

MAX_SEEDS: Final = 8
BISECTIONS: Final = 12
MAX_STARTS: Final = 3
# Sets of fewer nodes than this get the best of all their rings.
EXACT_RING: Final = 7


@dataclass(frozen=True, slots=True)
class Tour:
    """A ring over all nodes from a seed, and orders in which nodes join.

    `position` is each node's place in the ring, shape `(N,)`; `joining` holds one order of
    nodes per row, shape `(K, N)`.
    """

    position: Ints
    joining: Ints


def tours(site: Site) -> tuple[Tour, ...]:
    """Short tours of all nodes, from seeds in whose neighbourhoods plans of any size may lie.

    Half of them go by what an edge costs alone, half by what it adds where every ring over all
    nodes has a bottleneck anyhow.
    """
    edge_s = _edge_s(site)
    away_s = np.maximum(edge_s, edge_s.T)
    seeds = _seeds(site, away_s)
    weights = (edge_s, _beside_bottleneck_s(site))
    positions = np.concatenate([_nearest_neighbours(seeds, weight) for weight in weights])
    time_s = (node_times_s(site, 1) + 2.0 * away_s[seeds]) * (1.0 + site.lost)
    time_s[np.arange(len(seeds)), seeds] = 0.0
    price = site.price / (site.price.max() or 1.0)
    return tuple(
        _tour(position, each_s, each_s * price)
        for position, each_s in zip(positions, np.tile(time_s, (2, 1)), strict=True)
    )


def placements_along(
    site: Site, n_workers: int, found: tuple[Tour, ...], *, polish: bool = True
) -> tuple[Placed, ...]:
    """Good plans of n workers, none beaten by another in both time and price.

    Args:
        site: nodes and links.
        n_workers: their number.
        found: tours of all nodes.
        polish: whether to improve the best ones by small moves.
    """
    orders = sets_along(site, n_workers, found)
    placed = [_place(site, x, n_workers) for x in _promising(site, orders, n_workers)]
    placed.sort(key=lambda p: (p.step_s, p.price_usd_per_h, p.plan.nodes))
    starts = placed[:MAX_STARTS] if polish else []
    return undominated([*placed, *(improved(site, start) for start in starts)])


def sets_along(site: Site, n_workers: int, found: tuple[Tour, ...]) -> list[tuple[int, ...]]:
    """Sets of nodes for n workers that may be good, each in the order of its tour."""
    orders = {
        tuple(members[np.argsort(tour.position[members])].tolist()): None
        for tour in found
        for joining in tour.joining
        for members in _members(site, joining, n_workers)
    }
    return list(orders)


def _promising(
    site: Site, orders: Sequence[tuple[int, ...]], n_workers: int
) -> list[tuple[int, ...]]:
    """Of rings with one worker a node the fastest, and those that none beats in time and price."""
    if n_workers < EXACT_RING or any(len(order) < n_workers for order in orders):
        return list(orders)
    ranks = np.array(orders)
    step_s = step_times_s(site, ranks, node_times_s(site, n_workers))
    step_s = step_s * (1.0 + site.lost[ranks].sum(axis=1))
    price = site.price[ranks].sum(axis=1)
    by_time = np.lexsort((price, step_s))
    cheapest = np.minimum.accumulate(np.concatenate([[np.inf], price[by_time][:-1]]))
    kept = (np.arange(len(by_time)) < MAX_STARTS) | (price[by_time] < cheapest * (1 - 1e-9))
    return [orders[i] for i in by_time[kept]]


def _place(site: Site, members: Sequence[int], n_workers: int) -> Placed:
    n = len(members)
    orders = rings(n) if n < EXACT_RING else np.arange(n)[None, :]
    return place(site, members, shares(site.pool, members, n_workers), orders)


def _members(site: Site, joining: Ints, n_workers: int) -> list[Ints]:
    """The first nodes with room for n workers: packed, and spread where that differs."""
    n_spread = min(n_workers, len(joining))
    if max(site.pool.room) == 1:
        return [joining[:n_spread]]
    room = np.array(site.pool.room)[joining]
    n_packed = int(np.searchsorted(room.cumsum(), n_workers)) + 1
    return [joining[:size] for size in sorted({n_packed, n_spread}) if size <= n_workers]


def _edge_s(site: Site) -> Floats:
    """Weight of each edge of a ring: latency, and the payload's time on it, shape `(N, N)`."""
    links = site.links
    return links.one_way_s + site.workload.payload_bytes * links.s_per_byte


def _beside_bottleneck_s(site: Site) -> Floats:
    """Weight of each edge where the narrowest one sets the pace and cannot be avoided."""
    links = site.links
    narrow = links.s_per_byte - _bottleneck(links.s_per_byte)
    weight: Floats = links.one_way_s + site.workload.payload_bytes * np.maximum(narrow, 0.0)
    return weight


def _bottleneck(s_per_byte: Floats) -> float:
    """The least inverse bandwidth whose edges still lead from every node to every other."""
    low, high = float(s_per_byte.min()), float(s_per_byte.max())
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        open_edges = s_per_byte <= middle
        if _all_reached(open_edges) and _all_reached(open_edges.T):
            high = middle
        else:
            low = middle
    return high


def _all_reached(edges: Bools) -> bool:
    """Whether the first node reaches all others."""
    reached = edges[0].copy()
    fresh: Bools = reached
    while fresh.any():
        fresh = edges[fresh].any(axis=0) & ~reached
        reached |= fresh
    return bool(reached[1:].all())


def _seeds(site: Site, away_s: Floats) -> Ints:
    """The cheapest node, and those with the nearest neighbourhoods of every size."""
    n = len(away_s)
    sizes = sorted({min(4 * 3**k, n - 1) for k in range(MAX_SEEDS - 1)})
    sorted_s = np.sort(away_s + np.diag(np.full(n, np.inf)), axis=1)
    near_s: Floats = sorted_s[:, : sizes[-1]].cumsum(axis=1)[:, np.array(sizes) - 1]
    near_s *= 1.0 + site.lost[:, None]  # of nodes as near, those that are seldom lost
    cheapest = np.lexsort((near_s[:, 0], site.price))[0]
    return np.array(list(dict.fromkeys([cheapest, *near_s.argmin(axis=0)])))


def _tour(position: Ints, time_s: Floats, cost: Floats) -> Tour:
    orders = [np.lexsort((position, time_s)), np.lexsort((position, cost)), np.argsort(position)]
    distinct = {order.tobytes(): order for order in orders}
    return Tour(position, np.array(list(distinct.values())))


def _nearest_neighbours(seeds: Ints, edge_s: Floats) -> Ints:
    """Positions of the nodes on tours that always go to the nearest node not yet seen.

    Args:
        seeds: where each tour begins, shape `(K,)`.
        edge_s: weights, shape `(N, N)`.

    Returns:
        Shape `(K, N)`.
    """
    n, row = len(edge_s), np.arange(len(seeds))
    position = np.zeros((len(seeds), n), dtype=np.int64)
    seen_s, at = np.zeros((len(seeds), n)), seeds
    for place_in_ring in range(n):
        position[row, at] = place_in_ring
        seen_s[row, at] = np.inf
        at = (edge_s[at] + seen_s).argmin(axis=1)
    return position
