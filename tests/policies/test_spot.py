"""Machines of a market, of several kinds, and those that only serve: what a plan counts on."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from policies.constants import CONSTANTS
from policies.recommend import recommend
from policies.schema import KindSpeed, Limits, Work
from policies.spot import losses, losses_per_h
from tests.policies.cases import network, node, plan_on, situation, workload

NAMES = "ab"
LONG = Work(steps=200_000, epochs=10, global_batch=256)


def case(losses_per_h: float = 0.0, limits: Limits | None = None, **changes):
    nodes = [replace(node(name), losses_per_h=losses_per_h) for name in NAMES]
    asked = limits or Limits(workers=2)
    return situation(nodes, network(NAMES), work=LONG, limits=asked, **changes)


def chosen(situation_):
    """The chosen plan with its prediction."""
    decision = recommend(situation_, (), seed=0)
    return next(each for each in decision.candidates if each.plan == decision.chosen)


def test_each_loss_costs_a_start_and_half_of_what_lies_between_checkpoints() -> None:
    nodes = case(0.05).nodes
    found = losses(plan_on(NAMES), nodes, time_s=2 * 3600.0, startup_s=40.0)
    assert losses_per_h(plan_on(NAMES), nodes) == pytest.approx(0.1)
    assert found.n == pytest.approx(0.2)
    assert found.mean_s == pytest.approx(0.2 * (40.0 + CONSTANTS.checkpoint_every_s / 2))
    assert found.variance == pytest.approx(0.2 * (40.0 + CONSTANTS.checkpoint_every_s / 2) ** 2)


def test_only_the_nodes_of_the_plan_can_be_lost() -> None:
    nodes = (replace(node("a"), losses_per_h=1.0), node("b"))
    assert losses_per_h(plan_on("b"), nodes) == 0.0


def test_more_losses_make_a_plan_slower_and_dearer() -> None:
    found = [chosen(case(rate)).prediction for rate in (0.0, 0.02, 0.2, 1.0)]
    for few, many in pairwise(found):
        assert many.time_s.mean > few.time_s.mean
        assert many.cost_usd.mean > few.cost_usd.mean
        assert many.time_s.high > few.time_s.high


def test_a_plan_that_may_lose_nodes_says_so() -> None:
    def note(rate: float) -> bool:
        decision = recommend(case(rate), (), seed=0)
        return any("losses are expected (assumed)" in each for each in decision.notes)

    assert note(0.02)
    assert not note(0.0)


def test_a_head_that_only_serves_is_part_of_a_plans_cost() -> None:
    alone, served = chosen(case()), chosen(case(upkeep_usd_per_h=0.1))
    hours = alone.prediction.time_s.mean / 3600.0
    more_usd = served.prediction.cost_usd.mean - alone.prediction.cost_usd.mean
    assert more_usd == pytest.approx(0.1 * hours, rel=1e-6)
    budget_usd = alone.prediction.cost_usd.mean * 1.02
    tight = Limits(workers=2, budget_usd=budget_usd)
    fits = chosen(case(limits=tight)).p_fits
    assert chosen(case(limits=tight, upkeep_usd_per_h=0.1)).p_fits < fits


def of_the_market(usd_per_h: float, losses_per_h: float, n: int, **limits):
    """What is chosen of n nodes that stay, `s0`, … at $0.30/h, and n of the market, `m0`, …"""
    stay = [node(f"s{i}") for i in range(n)]
    market = [replace(node(f"m{i}", price=usd_per_h), losses_per_h=losses_per_h) for i in range(n)]
    nodes = [*stay, *market]
    net = network([each.id for each in nodes])
    found = chosen(situation(nodes, net, work=LONG, limits=Limits(**limits)))
    return "".join(sorted({name[0] for name in found.plan.nodes})), found.prediction


@pytest.mark.parametrize("objective", ["time", "cost"])
@pytest.mark.parametrize(("n_workers", "n"), [(1, 1), (2, 2), (5, 6)])
def test_cheap_nodes_that_are_seldom_lost_are_taken(objective: str, n_workers: int, n: int) -> None:
    kind, found = of_the_market(0.1, 0.02, n, workers=n_workers, objective=objective)
    assert kind == "m"
    kind, dearer = of_the_market(0.4, 0.0, n, workers=n_workers, objective=objective)
    assert kind == "s"
    assert found.cost_usd.mean < dearer.cost_usd.mean / 2


@pytest.mark.parametrize(("losses_per_h", "kind"), [(0.02, "m"), (0.6, "s")])
def test_of_nodes_alike_in_time_those_are_taken_that_cost_less_with_their_losses(
    losses_per_h: float, kind: str
) -> None:
    found, _ = of_the_market(0.299, losses_per_h, 1, workers=1)
    assert found == kind


@pytest.mark.parametrize(("n_workers", "n"), [(1, 1), (2, 2), (5, 6)])
def test_nodes_that_are_often_lost_are_left_where_time_counts(n_workers: int, n: int) -> None:
    assert of_the_market(0.1, 5.0, n, workers=n_workers, objective="time")[0] == "s"
    assert of_the_market(0.1, 5.0, n, workers=n_workers, objective="cost")[0] == "m"


GPU_NODES = (
    node("a", cpus=32.0, price=12.0, kind="p3", gpus=4.0),
    node("b", cpus=16.0, price=6.0, kind="p3s", gpus=2.0),
    node("c", cpus=8.0, kind="c5"),
    node("d", cpus=8.0, kind="c5"),
)
SPEEDS = (
    KindSpeed("p3", 0.004, 0.00001, 8.0, gpus=1.0),
    KindSpeed("p3s", 0.004, 0.00001, 8.0, gpus=1.0),
    KindSpeed("c5", 0.010, 0.005, 8.0),
)


def mixed(**limits):
    load = replace(workload(), node_kinds=SPEEDS)
    nodes = network([each.id for each in GPU_NODES])
    return situation(GPU_NODES, nodes, work=LONG, limits=Limits(**limits), load=load)


def test_a_node_has_a_worker_for_each_of_its_gpus() -> None:
    plan = chosen(mixed(workers=6)).plan
    assert Counter(plan.nodes) == {"a": 4, "b": 2}
    assert plan.nodes in (("a",) * 4 + ("b",) * 2, ("b",) * 2 + ("a",) * 4)  # a node's together
    assert plan.options.gpus_per_worker == 1.0
    assert plan.options.cpus_per_worker == 8.0  # the common minimum


def test_workers_with_two_gpus_have_room_on_each_kind_of_node() -> None:
    plan = chosen(mixed(workers=3, gpus_per_worker=2.0)).plan
    assert Counter(plan.nodes) == {"a": 2, "b": 1}
    assert (plan.options.gpus_per_worker, plan.options.cpus_per_worker) == (2.0, 16.0)


def test_nodes_without_gpus_train_where_none_are_asked_for() -> None:
    plan = chosen(mixed(workers=2, gpus_per_worker=0.0, max_workers=4)).plan
    assert plan.options.gpus_per_worker == 0.0
    assert len(set(plan.nodes)) == 2
