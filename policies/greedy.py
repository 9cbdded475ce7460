"""Placement beyond eight nodes: grow from good seeds, along one short tour of all nodes."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Floats, Ints
from policies.local_search import improved
from policies.placement import Placed, Site, place, rings, shares, undominated

MAX_SEEDS: Final = 8
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
    """Tours from several seeds: per kind of node its best connected one, and the cheapest."""
    edge_s = _edge_s(site)
    compute_s = np.array([site.node_s(i, 1, 1) for i in range(len(site.pool.nodes))])
    return tuple(_tour(site, seed, edge_s, compute_s) for seed in _seeds(site, edge_s))


def placements_along(site: Site, n_workers: int, found: tuple[Tour, ...]) -> tuple[Placed, ...]:
    """Good plans of n workers, none beaten by another in both time and price."""
    placed = []
    for tour in found:
        for joining in tour.joining:
            for members in _members(site, joining, n_workers):
                placed.append(_place(site, members, n_workers, tour.position))
    placed.sort(key=lambda p: (p.step_s, p.price_usd_per_h, p.plan.nodes))
    starts = list({p.plan.nodes: p for p in placed}.values())[:MAX_STARTS]
    return undominated([*placed, *(improved(site, start) for start in starts)])


def _place(site: Site, members: Ints, n_workers: int, position: Ints) -> Placed:
    ordered = members[np.argsort(position[members])]
    chosen = [int(i) for i in ordered]
    n = len(chosen)
    orders = rings(n) if n < EXACT_RING else np.arange(n)[None, :]
    return place(site, chosen, shares(site.pool, chosen, n_workers), orders)


def _members(site: Site, joining: Ints, n_workers: int) -> list[Ints]:
    """The first nodes with room for n workers: packed, and spread where that differs."""
    room = np.array(site.pool.room)[joining]
    n_packed = int(np.searchsorted(room.cumsum(), n_workers)) + 1
    n_spread = min(n_workers, len(joining))
    return [joining[:size] for size in sorted({n_packed, n_spread}) if size <= n_workers]


def _edge_s(site: Site) -> Floats:
    """Weight of each edge of a ring: latency, and the payload's time on it, shape `(N, N)`."""
    links = site.links
    return links.one_way_s + site.workload.payload_bytes * links.s_per_byte


def _seeds(site: Site, edge_s: Floats) -> list[int]:
    """The cheapest node, per kind the best connected one (by its nearest edges), then others."""
    n_near = min(8, len(edge_s) - 1)
    off_diagonal = edge_s + np.diag(np.full(len(edge_s), np.inf))
    near_s = np.partition(off_diagonal, n_near - 1, axis=1)[:, :n_near].mean(axis=1)
    seeds: dict[str, int] = {}
    nearest = [int(i) for i in np.argsort(near_s, kind="stable")]
    for i in nearest:
        seeds.setdefault(site.pool.nodes[i].kind, i)
    cheapest = int(np.lexsort((near_s, site.price))[0])
    return list(dict.fromkeys([cheapest, *seeds.values(), *nearest]))[:MAX_SEEDS]


def _tour(site: Site, seed: int, edge_s: Floats, compute_s: Floats) -> Tour:
    position = _nearest_neighbour(seed, edge_s)
    time_s = compute_s + 2.0 * edge_s[seed]
    time_s[seed] = 0.0
    price = site.price / (site.price.max() or 1.0)
    keys = [np.lexsort((position, time_s)), np.lexsort((position, time_s * price))]
    keys.append(np.argsort(position))
    return Tour(position, np.unique(np.array(keys), axis=0))


def _nearest_neighbour(seed: int, edge_s: Floats) -> Ints:
    """Position of each node on a tour that always goes to the nearest node not yet seen."""
    n = len(edge_s)
    position = np.full(n, -1, dtype=np.int64)
    open_s, at = np.zeros(n), seed
    for place_in_ring in range(n):
        position[at] = place_in_ring
        open_s[at] = np.inf
        at = int((edge_s[at] + open_s).argmin())
    return position
