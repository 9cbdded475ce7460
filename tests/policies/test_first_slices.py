from dataclasses import replace

import pytest
from hypothesis import given, settings

from policies.cost_model import held_cpus, line_of, speed_of
from policies.first_slices import first_slices
from policies.schema import KindSpeed, Plan, PlanOptions
from tests.policies.cases import node, plan_on, situations, workload

FAST, SLOW = KindSpeed("fast", 0.0, 0.001, 4.0), KindSpeed("slow", 0.0, 0.003, 4.0)
LOAD = replace(workload(), node_kinds=(FAST, SLOW))


def test_nodes_alike_share_equally():
    nodes = [node("a", kind="fast"), node("b", kind="fast")]
    assert first_slices(plan_on("ab"), nodes, LOAD, 256) == ()


def test_a_node_three_times_as_fast_starts_with_three_times_the_rows():
    nodes = [node("a", kind="fast"), node("b", kind="slow"), node("c", kind="slow")]
    slices = first_slices(plan_on("bac"), nodes, LOAD, 250)
    assert slices == pytest.approx((50.0, 150.0, 50.0))


def test_the_constant_part_of_a_step_is_counted():
    load = replace(LOAD, node_kinds=(FAST, replace(SLOW, c0_s=0.05)))
    nodes = [node("a", kind="fast"), node("b", kind="slow")]
    fast, slow = first_slices(plan_on("ab"), nodes, load, 250)
    assert 0.001 * fast == pytest.approx(0.05 + 0.003 * slow)
    assert fast + slow == pytest.approx(250.0)


def test_nobody_is_left_without_a_row():
    load = replace(LOAD, node_kinds=(FAST, replace(SLOW, c0_s=9.0)))
    nodes = [node("a", kind="fast"), node("b", kind="slow")]
    assert first_slices(plan_on("ab"), nodes, load, 100)[1] == 1.0


def test_workers_that_share_a_node_are_slower_each():
    nodes = [node("a", kind="fast"), node("b", kind="fast")]
    plan = Plan(3, ("a", "a", "b"), "direct", PlanOptions(2.0))
    first, second, third = first_slices(plan, nodes, LOAD, 256)
    assert first == second < third


@given(situations())
@settings(max_examples=30, deadline=None)
def test_all_end_together_but_those_with_a_single_row(case):
    plan = replace(plan_on([n.id for n in case.nodes], 1.0), strategy="direct")
    slices = first_slices(plan, case.nodes, case.workload, 256)
    if not slices:
        return
    cpus = held_cpus(plan, case.nodes)
    lines = [line_of(speed_of(n, case.workload)[0], cpus[n.id], 0.0, 1) for n in case.nodes]
    ends = [k.step_s(b) for k, b in zip(lines, slices, strict=True) if b > 1.0]
    assert ends == pytest.approx([max(ends)] * len(ends))
    assert min(slices) >= 1.0
