"""How nodes, money and time are split between the trials of a search."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.schema import (
    Candidate,
    Interval,
    Link,
    Network,
    Node,
    Plan,
    PlanOptions,
    Prediction,
)
from policies.tuning import (
    Habits,
    Left,
    Width,
    allotment_usd,
    expected_share,
    nodes_for,
    rungs,
    split,
    widening_saves_s,
    widths_of,
)

ONE, TWO, FOUR = Width(1, 1000.0, 0.1), Width(2, 600.0, 0.12), Width(4, 400.0, 0.16)
WHOLE = Habits(share=1.0, overhead_s=0.0)


def a_node(name: str, *, is_up: bool = True) -> Node:
    return Node(name, f"10.0.0.{ord(name)}", 8, 0, None, 0.34, "label", "8 cpu", is_up=is_up)


def a_candidate(nodes: str, time_s: float) -> Candidate:
    def exactly(mean: float) -> Interval:
        return Interval(mean, mean, mean)

    plan = Plan(len(nodes), tuple(nodes), "allreduce", PlanOptions(8))
    return Candidate(plan, Prediction(exactly(1.0), exactly(time_s), exactly(0.1)), 1.0)


def test_many_trials_run_at_once_on_one_node_each() -> None:
    found = split([ONE, TWO, FOUR], 4, Left(20), WHOLE)
    assert found is not None
    assert (found.width, found.at_once, found.time_s) == (ONE, 4, 5000.0)


def test_the_last_trials_get_all_nodes() -> None:
    last = split([ONE, TWO, FOUR], 4, Left(1), WHOLE)
    two = split([ONE, TWO, FOUR], 4, Left(2), WHOLE)
    assert last is not None
    assert two is not None
    assert (last.width.n_nodes, two.width.n_nodes, two.at_once) == (4, 2, 2)


def test_fewer_at_once_where_that_costs_little_time() -> None:
    scales = Width(2, 520.0, 0.104)  # twice the nodes, 1.92 times as fast
    found = split([ONE, scales], 2, Left(10), WHOLE)
    assert found is not None
    assert (found.width, found.at_once) == (scales, 1)


def test_a_small_budget_prefers_the_width_that_gets_the_most_trials_done() -> None:
    found = split([ONE, FOUR], 4, Left(8, budget_usd=0.8), WHOLE)
    assert found is not None
    assert (found.width, found.n_trials) == (ONE, 8)


def test_a_deadline_shorter_than_one_worker_needs_widens_trials() -> None:
    found = split([ONE, FOUR], 4, Left(8, deadline_s=900.0), WHOLE)
    assert found is not None
    assert (found.width, found.n_trials) == (FOUR, 2)


def test_the_cheapest_width_wins_where_money_is_the_objective() -> None:
    found = split([ONE, FOUR], 4, Left(1), WHOLE, objective="cost")
    assert found is not None
    assert found.width == ONE


def test_no_width_fits_too_few_nodes() -> None:
    assert split([FOUR], 2, Left(3), WHOLE) is None


@settings(max_examples=40)
@given(
    n_nodes=st.integers(1, 12),
    n_trials=st.integers(1, 40),
    budget=st.none() | st.floats(0.05, 5.0),
    deadline=st.none() | st.floats(100.0, 9000.0),
    at_once=st.none() | st.integers(1, 5),
)
def test_a_split_never_uses_more_than_there_is(
    n_nodes: int,
    n_trials: int,
    budget: float | None,
    deadline: float | None,
    at_once: int | None,
) -> None:
    left = Left(n_trials, budget, deadline)
    found = split([ONE, TWO, FOUR], n_nodes, left, Habits(0.5, 20.0), max_at_once=at_once)
    assert found is not None
    assert found.at_once * found.width.n_nodes <= n_nodes
    assert found.n_trials <= n_trials
    assert found.at_once <= (at_once or n_nodes)
    assert budget is None or found.cost_usd <= budget + 1e-9
    assert deadline is None or found.time_s <= deadline + 1e-9


def test_rungs_are_thirds_of_the_epochs() -> None:
    assert rungs(9, 3) == (1, 3)
    assert rungs(30, 3) == (4, 12)
    assert rungs(2, 3) == (1,)
    assert rungs(1, 3) == ()


def test_the_expected_share_of_a_trial_is_that_of_the_survivors() -> None:
    assert expected_share(9, 3) == pytest.approx((1 + 2 / 3 + 6 / 9) / 9)
    assert expected_share(1, 3) == 1.0


def test_what_trials_showed_replaces_what_was_expected() -> None:
    assert expected_share(9, 3, [1.0] * 300) > 0.98


def test_an_allotment_is_even_but_pays_for_a_trial_and_never_for_many() -> None:
    assert allotment_usd(4.0, 4, 4, 0.5) == 1.0
    assert allotment_usd(1.0, 4, 4, 0.5) == pytest.approx(0.6)
    assert allotment_usd(0.3, 4, 4, 0.5) == 0.3
    assert allotment_usd(5.0, 1, 20, 0.1) == 1.0
    assert allotment_usd(5.0, 1, 20, 0.5) == 2.0
    assert allotment_usd(0.0, 1, 1, 0.5) == 0.0


@settings(max_examples=40)
@given(
    left=st.floats(0.01, 10.0),
    n_open=st.integers(1, 8),
    expected=st.floats(0.0, 3.0),
)
def test_allotments_together_never_exceed_what_is_left(
    left: float, n_open: int, expected: float
) -> None:
    total, rest = 0.0, left
    for n in range(n_open, 0, -1):
        part = allotment_usd(rest, n, 2 * n, expected)
        total, rest = total + part, rest - part
    assert total <= left + 1e-9


def test_widening_pays_only_where_much_is_left() -> None:
    own = Habits(overhead_s=15.0)
    assert widening_saves_s(0.9, ONE, TWO, own) == pytest.approx(0.9 * 400 - 2 * 25)
    assert widening_saves_s(0.1, ONE, TWO, own) < 0
    assert widening_saves_s(1.0, TWO, ONE, own) < 0


def test_widths_are_the_fastest_plans_on_nodes_that_are_up() -> None:
    nodes = [a_node("a"), a_node("b"), a_node("c", is_up=False)]
    plans = [a_candidate("a", 9.0), a_candidate("b", 8.0), a_candidate("aa", 7.0)]
    found = widths_of([*plans, a_candidate("ab", 5.0), a_candidate("ac", 1.0)], nodes)
    assert [(width.n_nodes, width.time_s) for width in found] == [(1, 7.0), (2, 5.0)]


def test_a_trial_gets_a_good_node_and_those_near_it() -> None:
    far = [("b", "a", 0.04), ("b", "c", 0.04), ("b", "d", 0.001)]
    links = tuple(Link(src, dst, "default", rtt, 0.0, 0.0, 1e8) for src, dst, rtt in far)
    network = Network(links, "2026-11-30T12:00:00.000Z", 1.0)
    free = [a_node(name) for name in "acdb"]
    chosen = nodes_for(free, 2, network, order=("x", "b", "a"))
    assert [node.id for node in chosen] == ["b", "d"]
