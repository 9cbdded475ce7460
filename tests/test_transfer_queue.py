"""Transfers that run at the same time don't disturb each other, and none is forgotten."""

from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.probe_routes import Route
from launcher.transfer_queue import TransferQueue


def queue_of(*routes: Route, is_far: Callable[[Route], bool]) -> TransferQueue:
    queue = TransferQueue()
    for route in routes:
        queue.add(route, 0.04 if is_far(route) else 0.0005, is_far=is_far(route))
    return queue


def test_a_near_transfer_has_its_nodes_to_itself() -> None:
    there, back, other = Route("a", "b"), Route("b", "a"), Route("c", "d")
    queue = queue_of(there, back, other, is_far=lambda _: False)
    assert set(queue.start(set())) == {there, other}
    assert list(queue.start(set())) == []
    queue.end(there)
    assert list(queue.start(set())) == [back]


def test_far_transfers_pass_each_other_on_different_ways() -> None:
    ring = [Route("a", "b"), Route("b", "c"), Route("c", "a")]
    queue = queue_of(*ring, *(r.back for r in ring), is_far=lambda _: True)
    first = set(queue.start(set()))
    assert first in (set(ring), {r.back for r in ring})
    for route in first:
        queue.end(route)
    assert set(queue.start(set())) == {route.back for route in first}


def test_near_transfers_go_first() -> None:
    near, far = Route("a", "b"), Route("a", "c")
    queue = queue_of(far, near, is_far=lambda route: route == far)
    assert list(queue.start(set())) == [near]


def test_a_blocked_node_is_asked_when_it_is_free_again() -> None:
    queue = queue_of(Route("a", "b"), Route("c", "d"), is_far=lambda _: False)
    assert list(queue.start({"b"})) == [Route("c", "d")]
    queue.free("b")
    assert list(queue.start(set())) == [Route("a", "b")]


def test_a_dropped_nodes_transfers_are_forgotten() -> None:
    queue = queue_of(Route("a", "b"), Route("b", "a"), Route("c", "d"), is_far=lambda _: True)
    queue.drop("b")
    assert list(queue.start(set())) == [Route("c", "d")]
    assert len(queue) == 0


@given(st.integers(2, 7), st.integers(0, 2**20), st.randoms())
def test_every_transfer_runs_once_and_keeps_the_rules(n: int, far: int, random: object) -> None:
    routes = [Route(a, b) for a, b in permutations("abcdefg"[:n], 2)]
    is_far = {r: bool(far >> (ord(min(r.nodes)) + ord(max(r.nodes))) % 20 & 1) for r in routes}
    queue = queue_of(*routes, is_far=is_far.__getitem__)
    running: list[Route] = []
    done: list[Route] = []
    while len(done) < len(routes):
        running += queue.start(set())
        assert running
        assert_rules(running, is_far)
        done.append(running.pop(random.randrange(len(running))))  # type: ignore[attr-defined]
        queue.end(done[-1])
    assert sorted(map(repr, done)) == sorted(map(repr, routes))


def assert_rules(running: list[Route], is_far: dict[Route, bool]) -> None:
    for one, other in permutations(running, 2):
        assert one.src != other.src
        assert one.dst != other.dst
        if not (is_far[one] and is_far[other]):
            assert one.nodes.isdisjoint(other.nodes)
        assert one != other.back


@pytest.mark.parametrize(("n", "most_rounds"), [(3, 2), (5, 4), (6, 6), (8, 8)])
def test_far_nodes_are_busy_all_the_time(n: int, most_rounds: int) -> None:
    queue = queue_of(*(Route(a, b) for a, b in permutations("abcdefgh"[:n], 2)), is_far=bool)
    n_rounds = 0
    while running := list(queue.start(set())):
        n_rounds += 1
        for route in running:
            queue.end(route)
    assert (n_rounds <= most_rounds, len(queue)) == (True, 0)


def test_a_plan_does_not_wait_for_a_blocked_or_dropped_node() -> None:
    routes = [Route(a, b) for a, b in permutations("abcd", 2)]
    for end in ("block", "drop"):
        queue, done = queue_of(*routes, is_far=bool), list[Route]()
        while running := list(queue.start({"d"} if end == "block" else set())):
            done += running
            if end == "drop":
                queue.drop("d")
            for route in running:
                queue.end(route)
        assert {r for r in routes if "d" not in r.nodes} <= set(done)
