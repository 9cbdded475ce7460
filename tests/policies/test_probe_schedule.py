"""Which pairs a probe measures: disjoint rounds, all of few nodes, the near ones of many."""

import math
from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.probe_schedule import (
    FULL_NODES,
    Pair,
    every_pair,
    first_rounds,
    n_near_rounds,
    near_rounds,
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
    nodes = [str(i) for i in range(FULL_NODES)]
    assert first_rounds(nodes, 0) == every_pair(nodes)
    assert n_near_rounds(FULL_NODES) == ()


@pytest.mark.parametrize("n", [25, 100, 1000])
def test_many_nodes_meet_n_log_n_pairs_at_most(n: int) -> None:
    nodes = [str(i) for i in range(n)]
    rng = np.random.default_rng(n)
    rounds = first_rounds(nodes, 1)
    rtt_s = {pair: float(rng.uniform(0.001, 0.1)) for pairs in rounds for pair in pairs}
    for n_rounds in n_near_rounds(n):
        more = near_rounds(nodes, rtt_s, 1, n_rounds)
        rtt_s |= {pair: 0.001 for pairs in more for pair in pairs}
        rounds += more
    assert_disjoint(rounds)
    n_pairs = sum(map(len, rounds))
    assert 0.8 * n * math.log2(n) <= n_pairs <= n * math.ceil(math.log2(n))


def test_near_rounds_stay_within_sites_that_the_first_ones_found() -> None:
    """Five sites at different distances: what is measured next lies mostly within one."""
    nodes = [str(i) for i in range(200)]
    at_s = (0.0, 0.01, 0.03, 0.07, 0.15)

    def rtt_s(pair: Pair) -> float:
        a, b = (at_s[int(node) % 5] for node in pair)
        return 0.0005 + abs(a - b)

    known = {pair: rtt_s(pair) for pairs in first_rounds(nodes, 3) for pair in pairs}
    first_turn, *_, last_turn = [
        near_pairs_within(nodes, known, rtt_s, n_rounds) for n_rounds in n_near_rounds(len(nodes))
    ]
    assert first_turn > 0.6
    assert last_turn > 0.9


def near_pairs_within(
    nodes: list[str], known: dict[Pair, float], rtt_s: Callable[[Pair], float], n_rounds: int
) -> float:
    """The fraction of a turn's pairs that lie within a site; they are added to those known."""
    pairs = [pair for pairs in near_rounds(nodes, known, 3, n_rounds) for pair in pairs]
    known.update({pair: rtt_s(pair) for pair in pairs})
    return sum(rtt_s(pair) < 0.001 for pair in pairs) / len(pairs)


def test_the_same_seed_gives_the_same_schedule() -> None:
    nodes = [str(i) for i in range(64)]
    assert first_rounds(nodes, 5) == first_rounds(nodes, 5)
    assert first_rounds(nodes, 5) != first_rounds(nodes, 6)


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
