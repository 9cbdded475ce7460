from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.moving import SETTLE_S, Moves, Outlook, Pace, Side, outlook, weigh
from policies.recommend import recommend
from policies.schema import Limits, Plan, Situation, Work
from tests.policies.cases import CNN, LAB, network, situation

NAMES = "abcd"


def side(left_s: float, usd: float = 1.0, p_fits: float = 1.0) -> Side:
    return Side(left_s, usd, p_fits)


# ---- when steps are slow


def paced(recent_by_second: list[float]) -> Pace:
    pace = Pace()
    for second, recent_s in enumerate(recent_by_second):
        pace = pace.after(recent_s, float(second))
    return pace


def test_steps_are_slow_once_that_has_lasted() -> None:
    assert not paced([0.1] * 60 + [0.2] * 25).is_slow(85.0)
    assert paced([0.1] * 60 + [0.2] * 40).is_slow(100.0)


def test_a_little_slower_is_not_slow() -> None:
    assert not paced([0.1] * 60 + [0.13] * 600).is_slow(660.0)


def test_faster_steps_become_the_reference() -> None:
    pace = paced([0.2] * 60 + [0.1] * 60)
    assert pace.usual_s == 0.1
    assert not pace.is_slow(120.0)


@given(
    st.lists(st.integers(1, int(SETTLE_S) - 1), min_size=1, max_size=40),
    st.floats(1.5, 100.0),
)
def test_what_flaps_faster_than_it_settles_is_never_slow(spans_s: list[int], factor: float) -> None:
    pace, second = Pace(), 0
    for index, span_s in enumerate(spans_s):
        for _ in range(span_s):
            pace = pace.after(0.1 * (factor if index % 2 else 1.0), float(second))
            assert not pace.is_slow(float(second))
            second += 1


# ---- whether a move pays


def test_a_move_that_saves_much_of_what_is_left_pays() -> None:
    verdict = weigh(side(3600), side(1800), 30.0, Moves(), 0.0)
    assert verdict.moves
    assert verdict.why == "it saves 30 min of 1 h, moving included"


def test_a_saving_that_hardly_covers_the_price_does_not() -> None:
    verdict = weigh(side(100), side(80), 30.0, Moves(), 0.0)
    assert not verdict.moves
    assert "too little for its price of 30 s" in verdict.why


def test_a_plan_that_may_break_the_limits_is_not_moved_to() -> None:
    assert not weigh(side(3600), side(600, p_fits=0.5), 30.0, Moves(), 0.0).moves


def test_a_current_plan_that_breaks_the_limits_is_left_even_for_a_slower_one() -> None:
    verdict = weigh(side(1000, p_fits=0.2), side(1200, p_fits=0.95), 30.0, Moves(), 0.0)
    assert verdict.moves
    assert "keep the limits" in verdict.why


def test_after_a_move_the_next_one_waits() -> None:
    moves = Moves().after(30.0, now_s=100.0)
    assert not weigh(side(3600), side(600), 30.0, moves, 150.0).moves
    assert weigh(side(3600), side(600), 30.0, moves, 200.0).moves


def test_to_save_money_money_counts() -> None:
    slower_but_cheaper = side(4000, usd=0.5)
    verdict = weigh(side(3600, usd=1.0), slower_but_cheaper, 30.0, Moves(), 0.0, by_cost=True)
    assert verdict.moves
    assert "$0.50 of $1.00" in verdict.why


seconds = st.floats(1.0, 1e5)
chances = st.floats(0.0, 1.0)


@given(seconds, seconds, seconds, st.integers(0, 6), chances)
def test_no_move_within_the_limits_saves_less_than_its_price_again(
    stay_s: float, go_s: float, price_s: float, n: int, p_fits: float
) -> None:
    verdict = weigh(side(stay_s, p_fits=p_fits), side(go_s, p_fits=p_fits), price_s, Moves(n), 0.0)
    if verdict.moves:
        assert stay_s - go_s >= price_s * 2**n


@given(seconds, seconds, seconds, st.integers(0, 6))
def test_what_a_further_move_would_do_an_earlier_one_would_have_done(
    stay_s: float, go_s: float, price_s: float, n: int
) -> None:
    later = weigh(side(stay_s), side(go_s), price_s, Moves(n + 1), 0.0)
    assert not later.moves or weigh(side(stay_s), side(go_s), price_s, Moves(n), 0.0).moves


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=200), st.floats(5.0, 60.0))
def test_however_the_world_turns_moves_stay_few(factors: list[float], price_s: float) -> None:
    """Each time another plan looks better by some factor, for an hour of work in 10 s rounds."""
    moves, left_s = Moves(), 3600.0
    for round_, factor in enumerate(factors):
        now_s = 10.0 * round_
        verdict = weigh(side(left_s), side(factor * left_s + price_s), price_s, moves, now_s)
        moves = moves.after(price_s, now_s) if verdict.moves else moves
        left_s = max(1.0, left_s - 10.0)
    assert moves.n <= 6


# ---- both sides, from a situation

FAST = situation(LAB, network(NAMES, rtt_s=0.0005), Work(20_000, 10, 128), load=CNN)


def chosen(at: Situation) -> Plan:
    return recommend(at, [], 0, at_step=1).chosen


def looked(at: Situation, current: Plan, **more: object) -> Outlook:
    return outlook(at, [], current, at_step=100, **more)  # type: ignore[arg-type]


def test_as_long_as_nothing_has_changed_the_best_plan_is_the_current_one() -> None:
    current = chosen(FAST)
    assert current.n_workers > 1
    found = looked(FAST, current)
    assert not found.is_other
    assert found.weighed(Moves(), 0.0).why == "it is still the best plan"


def slow_link(a: str, b: str) -> float:
    return 0.4 if "d" in (a, b) else 0.0005


def test_a_node_behind_a_link_that_degraded_is_left_when_much_is_to_do() -> None:
    current = chosen(FAST)
    degraded = replace(FAST, network=network(NAMES, rtt_s=slow_link))
    found = looked(degraded, current)
    assert found.is_other
    assert "d" not in found.decision.chosen.nodes
    assert found.weighed(Moves(), 0.0).moves


def test_near_the_end_nothing_is_worth_a_move() -> None:
    current = chosen(FAST)
    degraded = replace(FAST, network=network(NAMES, rtt_s=slow_link), work=Work(20, 0.1, 128))
    assert not looked(degraded, current).weighed(Moves(), 0.0).moves


def test_the_price_is_learned_from_this_runs_own_stops() -> None:
    degraded = replace(FAST, network=network(NAMES, rtt_s=slow_link))
    prior = looked(degraded, chosen(FAST)).price_s
    assert looked(degraded, chosen(FAST), stops_s=(60.0, 60.0)).price_s > prior + 35.0


def test_slowness_that_nothing_explains_slows_every_plan() -> None:
    current = chosen(FAST)
    usual = looked(FAST, current)
    slow = looked(FAST, current, step_s=10 * usual.current.step.mean)
    assert slow.stay.left_s == pytest.approx(10 * usual.stay.left_s, rel=0.1)
    assert not slow.weighed(Moves(), 0.0).moves


def test_a_budget_that_the_current_plan_would_break_counts() -> None:
    current = chosen(FAST)
    usual = looked(FAST, current)
    tight = replace(FAST, limits=Limits(budget_usd=1.3 * usual.stay.usd))
    assert looked(tight, current).stay.p_fits > 0.9
    slow = looked(tight, current, step_s=2 * usual.current.step.mean)
    assert slow.stay.p_fits < 0.1


def test_staying_is_a_decision_with_its_reason() -> None:
    current = chosen(FAST)
    degraded = replace(FAST, network=network(NAMES, rtt_s=slow_link))
    found = looked(degraded, current)
    decision = found.stayed("moving would cost more than it saves")
    assert decision.chosen == current
    assert decision.candidate.plan == current
    assert decision.candidate.prediction.time_s.mean == pytest.approx(found.stay.left_s)
    assert decision.reason.startswith("Stayed with 4 workers: moving would")


def test_a_move_says_what_it_is_for() -> None:
    degraded = replace(FAST, network=network(NAMES, rtt_s=slow_link))
    found = looked(degraded, chosen(FAST))
    decision = found.moved("10.0.0.4 is slow", "it saves 3 min of 9 min, moving included")
    assert decision.reason.startswith(
        "10.0.0.4 is slow: it saves 3 min of 9 min, moving included. "
    )
    assert decision.chosen == found.decision.chosen
