"""Which pairs a probe measures: all of few nodes, by chance and by address of many."""

import math
from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.probe_schedule import (
    FULL_NODES,
    Pair,
    every_pair,
    schedule,
)
from policies.schema import Node


def assert_disjoint(rounds: list[list[Pair]]) -> None:
    for pairs in rounds:
        busy = [i for pair in pairs for i in pair]
        assert len(busy) == len(set(busy))
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met))


@given(st.integers(0, 25))
def test_every_pair_meets_once_and_no_node_twice_in_a_round(n: int) -> None:
    nodes = [str(i) for i in range(n)]
    schedule = every_pair(nodes)
    met = [frozenset(pair) for pairs in schedule for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(sorted(p) for p in combinations(nodes, 2))
    assert_disjoint(schedule)
    assert len(schedule) == (0 if n < 2 else n - 1 + n % 2)


def test_few_nodes_are_measured_in_full() -> None:
    nodes = nodes_at([f"10.0.0.{i}" for i in range(FULL_NODES)])
    assert schedule(nodes, 0) == every_pair([node.id for node in nodes])


def test_the_same_seed_gives_the_same_schedule() -> None:
    nodes = nodes_at([f"10.0.0.{i}" for i in range(64)])
    assert schedule(nodes, 5) == schedule(nodes, 5)
    assert schedule(nodes, 5) != schedule(nodes, 6)


def nodes_at(addresses: list[str]) -> list[Node]:
    return [
        Node(f"n{i}", ip, 1.0, 0.0, None, 0.0, "own machine", "pc")
        for i, ip in enumerate(addresses)
    ]


@given(st.integers(0, 120), st.integers(0, 3))
def test_a_schedule_is_of_disjoint_rounds_and_of_few_pairs(n: int, seed: int) -> None:
    rounds = schedule(nodes_at([f"10.0.{i // 50}.{i % 50 + 1}" for i in range(n)]), seed)
    assert_disjoint(rounds)
    if n > FULL_NODES:
        assert len(rounds) == 2 * math.ceil(math.log2(n))
        assert sum(map(len, rounds)) <= n * math.ceil(math.log2(n))


def test_neighbours_by_address_meet_whatever_the_order_of_the_nodes() -> None:
    addresses = [f"10.0.0.{i + 1}" for i in range(40)]
    shuffled = [addresses[i] for i in np.random.default_rng(1).permutation(40)]
    ip = {node.id: node.ip for node in nodes_at([*shuffled, "named-host"])}
    rounds = schedule(nodes_at([*shuffled, "named-host"]), 0)
    met = {frozenset((ip[a], ip[b])) for pairs in rounds for a, b in pairs}
    assert all(frozenset(pair) in met for pair in pairwise(addresses))
