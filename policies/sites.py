"""Who sits near whom: groups of nodes whose latencies jump between inside and outside."""

from typing import Final

import numpy as np

from policies.arrays import Floats, Ints

# A site is so many times nearer inside than the way to the next node outside.
JUMP: Final = 3.0
MAX_CUTS: Final = 2


def sites_of(one_way_s: Floats) -> tuple[Ints, ...]:
    """Partitions of nodes into sites, one per jump in distance: each node's site, shape `(N,)`.

    By single linkage: the tree of shortest links is cut where the next longer link is several
    times as long, at its largest jumps.
    """
    away_s = np.maximum(one_way_s, one_way_s.T)
    order, parent, edge_s = _tree(away_s)
    length_s = np.sort(edge_s[1:])
    ratio = length_s[1:] / np.maximum(length_s[:-1], 1e-9)
    largest = np.argsort(-ratio, kind="stable")[:MAX_CUTS]
    cuts_s = [float(length_s[i + 1]) for i in largest if ratio[i] >= JUMP]
    return tuple(_labels(order, parent, edge_s, cut_s) for cut_s in cuts_s)


def _tree(away_s: Floats) -> tuple[Ints, Ints, Floats]:
    """The minimum spanning tree (Prim 1957), in O(N²).

    Returns:
        Nodes in the order in which they join; the place of each one's neighbour in that order;
        the length of the link between them.
    """
    n = len(away_s)
    order, parent = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    edge_s, nearest = np.zeros(n), np.zeros(n, dtype=np.int64)
    least_s = away_s[0].copy()
    least_s[0] = np.inf
    joined = np.zeros(n, dtype=bool)
    joined[0] = True
    for place in range(1, n):
        node = int(least_s.argmin())
        order[place], parent[place], edge_s[place] = node, nearest[node], least_s[node]
        joined[node] = True
        nearer = (away_s[node] < least_s) & ~joined
        least_s[nearer], nearest[nearer] = away_s[node][nearer], place
        least_s[node] = np.inf
    return order, parent, edge_s


def _labels(order: Ints, parent: Ints, edge_s: Floats, cut_s: float) -> Ints:
    """Sites when all links of at least `cut_s` are cut."""
    site = np.zeros(len(order), dtype=np.int64)
    label = list(range(len(order)))
    for place in range(1, len(order)):
        if edge_s[place] < cut_s:
            label[place] = label[int(parent[place])]
    site[order] = label
    return site
