import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.constants import CONSTANTS
from policies.cost_model import step_time_s
from policies.forecast import LogNormal, forecast, from_moments, room_s
from policies.links import links_between
from policies.residual import learn
from policies.schema import DataAhead, Limits, NodeData, Work
from policies.startup import startup_parts
from tests.policies.cases import network, node, plan_on, situation, situations

AB = situation([node("a", price=0.36), node("b", price=0.36)], network("ab"))


def of(case, names, cpus=4.0):
    links = links_between(case.nodes, case.network)
    return forecast(plan_on(names, cpus), case, links, learn(case, []))


def test_time_is_start_up_and_steps_and_a_little_for_checkpoints():
    found = of(AB, "a")
    start_s = startup_parts(plan_on("a"), AB.nodes, AB.workload).total_s
    bare_s = start_s + 10_000 * step_time_s(plan_on("a"), AB) + CONSTANTS.release_s
    assert bare_s < found.time.mean < 1.03 * bare_s


def test_cost_is_price_of_all_nodes_held_times_time():
    found = of(AB, "ab")
    assert found.cost_usd == pytest.approx(2 * 0.36 / 3600 * found.time.mean)
    cost = found.candidate.prediction.cost_usd
    assert cost.low < cost.mean < cost.high
    assert cost.mean == pytest.approx(found.cost_usd)


def test_evaluation_takes_time():
    judged = replace(AB, work=Work(10_000, 10, 256, validation_steps=100))
    assert of(judged, "a").time.mean > of(AB, "a").time.mean


def test_data_that_nodes_lack_take_time_and_money():
    ahead = DataAhead(10**10, (NodeData("a", 0),), 1e8, "measured", False, 0.09e-9)
    case = replace(AB, data=ahead)
    assert of(case, "a") == of(AB, "a")
    bare, found = of(AB, "b"), of(case, "b")
    assert found.time.mean == pytest.approx(bare.time.mean + 102.0)
    assert found.cost_usd == pytest.approx(bare.cost_usd + 102.0 * 0.36 / 3600 + 0.9)


def test_data_over_the_budget_do_not_fit_though_nodes_are_free():
    ahead = DataAhead(10**10, (), 1e8, "measured", False, 0.09e-9)
    free = situation([node("a", price=0.0)], network("a"))
    tight = replace(free, data=ahead, limits=Limits(budget_usd=0.5))
    assert of(tight, "a").p_fits == 0.0
    assert of(replace(tight, limits=Limits(budget_usd=1.0)), "a").p_fits == 1.0


def test_a_log_normal_has_its_moments_and_its_interval():
    x = from_moments(10.0, 4.0)
    assert (x.mean, x.variance) == (pytest.approx(10.0), pytest.approx(4.0))
    assert x.p_at_most(x.interval().high) == pytest.approx(0.95)
    assert x.p_at_most(x.interval().low) == pytest.approx(0.05)
    assert x.p_at_most(0.0) == 0.0
    assert x.p_at_most(math.inf) == 1.0
    assert LogNormal(0.0, 0.0).p_at_most(1.1) == 1.0


def test_room_is_what_budget_and_deadline_leave():
    case = replace(AB, limits=Limits(budget_usd=3.0, deadline_s=5000.0), spent_usd=1.0, spent_s=100)
    assert room_s(case, 2.0) == pytest.approx(3600.0)
    assert room_s(case, 0.1) == pytest.approx(4900.0)
    assert room_s(case, 0.0) == pytest.approx(4900.0)
    assert room_s(replace(case, spent_usd=3.5), 2.0) == 0.0
    assert room_s(AB, 2.0) == math.inf


@given(situations(), st.floats(0.0, 1.0))
@settings(max_examples=30, deadline=None)
def test_a_cheaper_node_never_costs_more(case, factor):
    names = [n.id for n in case.nodes]
    first, *rest = case.nodes
    cheaper = replace(
        case, nodes=(replace(first, price_usd_per_h=first.price_usd_per_h * factor), *rest)
    )
    assert of(cheaper, names, 1.0).cost_usd <= of(case, names, 1.0).cost_usd
