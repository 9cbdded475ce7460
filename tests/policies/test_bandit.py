from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.bandit import P_FITS, at_stake_usd, best, choose, loss
from policies.cost_model import StepParts
from policies.forecast import Forecast, LogNormal, from_moments
from policies.schema import Limits
from tests.policies.cases import plan_on

STEP = LogNormal(-2.0, 0.1)


def arm(n, time_s, usd_per_h=1.0, p_fits=1.0, spread=0.1):
    time = from_moments(time_s, (spread * time_s) ** 2)
    return Forecast(plan_on("abcdefgh"[:n]), StepParts(0.1), STEP, time, usd_per_h, p_fits)


def test_the_fastest_that_fits_is_chosen():
    arms = [arm(1, 100), arm(2, 60, 2.0), arm(4, 40, 4.0, p_fits=0.8)]
    assert best(arms, "time") is arms[1]


def test_the_cheapest_that_fits_is_chosen_when_cost_is_the_objective():
    arms = [arm(1, 100, 1.0, p_fits=0.5), arm(2, 60, 2.0), arm(4, 40, 4.0)]
    assert best(arms, "cost") is arms[1]


def test_when_none_fits_the_likeliest_is_taken():
    arms = [arm(1, 100, p_fits=0.3), arm(2, 60, p_fits=0.6), arm(4, 40, p_fits=0.2)]
    assert best(arms, "time") is arms[1]


def test_of_plans_alike_in_time_the_cheaper_and_then_the_smaller_is_taken():
    assert best([arm(2, 60.0, 2.0), arm(3, 59.8, 3.0)], "time").plan.n_workers == 2
    assert best([arm(3, 60.0, 0.0), arm(2, 60.0, 0.0)], "time").plan.n_workers == 2


def test_loss_is_seconds_or_dollars():
    assert loss(arm(1, 3600, 2.0), "time") == pytest.approx(3600)
    assert loss(arm(1, 3600, 2.0), "cost") == pytest.approx(2.0)


def picks(arms, limits, seeds=range(1, 200)):
    return {choose(arms, limits, seed).plan.n_workers for seed in seeds}


def test_near_ties_are_explored_and_nothing_else():
    arms = [arm(1, 100, 0.5), arm(2, 60, 1.0), arm(3, 61, 1.0), arm(4, 59.5, 4.0), arm(5, 90, 0.1)]
    assert picks(arms, Limits(explore=0.02)) == {2, 3}


def test_a_budget_pays_for_exploration_up_to_its_share():
    arms = [arm(2, 3600, 1.0, spread=0.01), arm(3, 3610, 1.05, spread=0.01)]
    assert picks(arms, Limits(budget_usd=5.0, explore=0.02)) == {2, 3}
    assert picks(arms, Limits(budget_usd=1.5, explore=0.02)) == {2}


def test_what_is_at_stake_is_the_upper_end_of_the_cost():
    """A plan may be as cheap in expectation, and risky all the same."""
    sure, unsure = arm(3, 3600, 1.0, spread=0.01), arm(3, 3600, 1.0, spread=0.3)
    usual = arm(2, 3600, 1.0, spread=0.01)
    limits = Limits(budget_usd=5.0, explore=0.02)
    assert at_stake_usd(sure, usual) < 0.02 * 5.0 < at_stake_usd(unsure, usual)
    assert picks([usual, sure], limits) == {2, 3}
    assert picks([usual, unsure], limits) == {2}


def test_nodes_that_cost_nothing_put_no_money_at_stake():
    arms = [arm(2, 60, 0.0, spread=0.3), arm(3, 60.5, 0.0, spread=0.3)]
    assert picks(arms, Limits(budget_usd=0.01)) == {2, 3}


ARMS = st.lists(
    st.builds(
        arm,
        st.integers(1, 8),
        st.floats(10.0, 1e5),
        st.sampled_from([0.0, 0.3, 1.0, 4.0]),
        st.sampled_from([1.0, 0.95, 0.9, 0.6]),
        st.floats(0.01, 0.5),
    ),
    min_size=1,
    max_size=5,
)
LIMITS = st.builds(
    Limits,
    budget_usd=st.none() | st.floats(0.01, 100.0),
    objective=st.sampled_from(["time", "cost"]),
    explore=st.floats(0.0, 0.1),
)


@given(ARMS, LIMITS, st.integers(1, 1000))
@settings(max_examples=100, deadline=None)
def test_exploring_never_risks_more_than_its_share(arms, limits, seed):
    usual, tried = best(arms, limits.objective), choose(arms, limits, seed)
    if tried is usual:
        return
    assert tried.p_fits >= P_FITS
    assert tried.time.mean <= usual.time.mean * (1 + limits.explore) + 1e-9
    if limits.budget_usd is None:
        assert tried.cost_usd <= usual.cost_usd * (1 + limits.explore) + 1e-9
    else:
        upper_usd = tried.candidate.prediction.cost_usd.high
        assert upper_usd <= usual.cost_usd + limits.explore * limits.budget_usd + 1e-9


@given(ARMS, LIMITS, st.integers(0, 1000), st.floats(1.0, 1e6))
@settings(max_examples=50, deadline=None)
def test_a_deadline_leaves_nothing_to_explore(arms, limits, seed, deadline_s):
    bound = replace(limits, deadline_s=deadline_s)
    assert choose(arms, bound, seed) is best(arms, limits.objective)


@given(ARMS, LIMITS)
@settings(max_examples=50, deadline=None)
def test_seed_zero_explores_nothing(arms, limits):
    assert choose(arms, limits, 0) is best(arms, limits.objective)


def test_a_plan_is_tried_as_often_as_it_is_likely_to_be_the_best():
    arms = [arm(2, 59.5, 0.0), arm(3, 60.6, 0.0), arm(4, 60.6, 0.0, spread=0.02)]
    tried = [choose(arms, Limits(), seed).plan.n_workers for seed in range(1, 800)]
    share = {n: tried.count(n) / len(tried) for n in (2, 3, 4)}
    assert share[2] > share[3] > share[4] > 0.05


def test_nothing_is_explored_with_seed_zero_under_a_deadline_or_without_a_purse():
    arms = [arm(2, 60), arm(3, 60.5)]
    assert picks(arms, Limits(), seeds=[0]) == {2}
    assert picks(arms, Limits(deadline_s=1e6)) == {2}
    assert picks(arms, Limits(explore=0.0)) == {2}


def test_plans_that_may_not_fit_are_never_explored():
    assert picks([arm(2, 60), arm(3, 60.5, p_fits=0.85)], Limits()) == {2}
    assert picks([arm(2, 60, p_fits=0.6), arm(3, 60.5, p_fits=0.5)], Limits()) == {2}


def test_the_same_seed_gives_the_same_choice():
    arms = [arm(2, 60), arm(3, 60.5)]
    for seed in range(20):
        assert choose(arms, Limits(), seed) is choose(arms, Limits(), seed)
