"""Which pairs of nodes a probe measures: all of a few, O(N log N) of many.

A round is a list of pairs in which no node occurs twice, so that its pairs don't share a node.
"""

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.schema import Node

Pair = tuple[str, str]

FULL_NODES: Final = 24  # up to here every pair is measured
_HOPS: Final = 4  # of an estimated way: random graphs of degree log2 N have a diameter below it


def schedule(nodes: Sequence[Node], seed: int) -> list[list[Pair]]:
    """All pairs of few nodes; of more than `FULL_NODES`, 2 ⌈log2 N⌉ rounds.

    Half of the rounds are random: they say how far apart groups of nodes are. The other half
    join nodes whose addresses are 1, 2, 4, … places apart, as nodes of one rack or site mostly
    have addresses in a row: they say who sits near whom. No pair occurs twice.
    """
    names = [node.id for node in nodes]
    if len(names) <= FULL_NODES:
        return every_pair(names)
    rng, n_rounds = np.random.default_rng(seed), n_random_rounds(len(names))
    met: set[frozenset[str]] = set()
    found = []
    by_chance = (_random_round(names, rng) for _ in range(n_rounds))
    for pairs in (*by_chance, *_address_rounds(nodes, n_rounds)):
        fresh = [pair for pair in pairs if frozenset(pair) not in met]
        met.update(map(frozenset, fresh))
        found.append(fresh)
    return found


def _address_rounds(nodes: Sequence[Node], n_rounds: int) -> list[list[Pair]]:
    """Two rounds of nodes `apart` places from each other, `apart` doubling."""
    row = [node.id for node in sorted(nodes, key=_address)]
    found: list[list[Pair]] = []
    apart = 1
    while len(found) < n_rounds:
        ahead = list(zip(row, row[apart:], strict=False))
        found += [[p for i, p in enumerate(ahead) if i // apart % 2 == odd] for odd in (0, 1)]
        apart *= 2
    return found[:n_rounds]


def _address(node: Node) -> tuple[int, int, str]:
    """Sorts by the number of an address; names come last."""
    try:
        address = ipaddress.ip_address(node.ip)
    except ValueError:
        return 9, 0, node.ip
    return address.version, int(address), ""


def first_rounds(nodes: Sequence[str], seed: int) -> list[list[Pair]]:
    """All pairs of few nodes; of more than `FULL_NODES`, ⌈log2 N⌉ random rounds.

    Random rounds join every node to others at any distance; together they connect all nodes
    (with a probability that grows with N) and hold no pair twice.
    """
    if len(nodes) <= FULL_NODES:
        return every_pair(nodes)
    rng = np.random.default_rng(seed)
    met: set[frozenset[str]] = set()
    found = []
    for _ in range(n_random_rounds(len(nodes))):
        pairs = [p for p in _random_round(nodes, rng) if frozenset(p) not in met]
        met.update(map(frozenset, pairs))
        found.append(pairs)
    return found


def n_random_rounds(n_nodes: int) -> int:
    """Rounds at random among more than `FULL_NODES` nodes."""
    return math.ceil(math.log2(n_nodes))


def n_near_rounds(n_nodes: int) -> tuple[int, ...]:
    """How many rounds among near nodes follow the first ones, in three turns.

    Each turn knows what the turns before it found. None for `FULL_NODES` or fewer.
    """
    if n_nodes <= FULL_NODES:
        return ()
    n = n_random_rounds(n_nodes)
    return (n - 2 * (n // 3), n // 3, n // 3)


def near_rounds(
    nodes: Sequence[str], rtt_s_by_pair: Mapping[Pair, float], seed: int, n_rounds: int
) -> list[list[Pair]]:
    """Rounds of pairs not yet measured that seem near each other.

    Two nodes are at most as far apart as the shortest way over measured pairs, and at least as
    much as their distances to a third differ; they seem to be in the middle of that. Rings and
    groups of workers are built from short links, so these are the ones worth knowing exactly.

    Args:
        nodes: all nodes that answer.
        rtt_s_by_pair: what was measured, under either order of a pair.
        seed: breaks ties.
        n_rounds: how many rounds to return at most.
    """
    index = {node: i for i, node in enumerate(nodes)}
    known = [(p, rtt_s) for p, rtt_s in rtt_s_by_pair.items() if p[0] in index and p[1] in index]
    seems_s = _middle_s(len(nodes), [((index[a], index[b]), rtt_s) for (a, b), rtt_s in known])
    # Equal distances (flat networks) are met in random order, or all nodes would want the same.
    seems_s *= np.random.default_rng(seed).uniform(1.0, 1.1, seems_s.shape)
    seems_s = np.minimum(seems_s, seems_s.T)
    np.fill_diagonal(seems_s, np.inf)
    for (a, b), _ in known:
        seems_s[index[a], index[b]] = seems_s[index[b], index[a]] = np.inf
    return _nearest_rounds(nodes, seems_s, n_rounds)


def every_pair(nodes: Sequence[str]) -> list[list[Pair]]:
    """All pairs of nodes in rounds: n − 1 for an even n, n for an odd one.

    The circle method of round-robin tournaments.
    """
    if len(nodes) < 2:
        return []
    circle: list[str | None] = [*nodes]
    if len(circle) % 2:
        circle.append(None)
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        halves = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(a, b) for a, b in halves if a is not None and b is not None])
        circle.insert(1, circle.pop())
    return found


def _random_round(nodes: Sequence[str], rng: np.random.Generator) -> list[Pair]:
    order = rng.permutation(len(nodes))
    return [(nodes[a], nodes[b]) for a, b in zip(order[::2], order[1::2], strict=False)]


def _middle_s(n: int, measured: Iterable[tuple[tuple[int, int], float]]) -> NDArray[np.float64]:
    """Between the bounds of the triangle inequality, in seconds, of shape `(n, n)`."""
    direct_s = np.full((n, n), np.inf)
    for (a, b), rtt_s in measured:
        direct_s[a, b] = direct_s[b, a] = min(rtt_s, direct_s[a, b])
    np.fill_diagonal(direct_s, 0.0)
    near = [np.flatnonzero(np.isfinite(row)) for row in direct_s]
    most_s = direct_s
    for _ in range(_HOPS - 1):
        most_s = np.stack(
            [(direct_s[i, k, None] + most_s[k]).min(axis=0) for i, k in enumerate(near)]
        )
    least_s = np.stack([(direct_s[i, k, None] - most_s[k]).max(axis=0) for i, k in enumerate(near)])
    return (most_s + np.maximum(least_s, least_s.T)) / 2


def _nearest_rounds(
    nodes: Sequence[str], seems_s: NDArray[np.float64], n_rounds: int
) -> list[list[Pair]]:
    """Greedy matchings of the nearest pairs; `seems_s` is used up."""
    n_near = min(len(nodes) - 1, 4 * n_rounds + 8)
    found = []
    for _ in range(n_rounds):
        near = np.argpartition(seems_s, n_near - 1, axis=1)[:, :n_near]
        src, dst = np.repeat(np.arange(len(nodes)), n_near), near.ravel()
        free = np.ones(len(nodes), dtype=bool)
        pairs: list[Pair] = []
        for at in np.argsort(seems_s[src, dst], kind="stable"):
            a, b = int(src[at]), int(dst[at])
            if free[a] and free[b] and np.isfinite(seems_s[a, b]):
                free[a] = free[b] = False
                pairs.append((nodes[a], nodes[b]))
                seems_s[a, b] = seems_s[b, a] = np.inf
        found.append(pairs)
    return [pairs for pairs in found if pairs]
