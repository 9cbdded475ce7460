"""Which pairs of nodes a probe measures: all of a few, O(N log N) of many.

A round is a list of pairs in which no node occurs twice, so that its pairs don't share a node.
"""

import ipaddress
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from policies.schema import Node

Pair = tuple[str, str]

FULL_NODES: Final = 24  # up to here every pair is measured


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


def n_random_rounds(n_nodes: int) -> int:
    """Rounds at random among more than `FULL_NODES` nodes."""
    return math.ceil(math.log2(n_nodes))


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
