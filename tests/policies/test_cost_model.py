from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.constants import CONSTANTS
from policies.cost_model import (
    checkpoints_s,
    evaluation_s,
    held_cpus,
    nodes_cost_usd_per_h,
    step_parts,
    step_time_s,
    whole_cpus,
)
from policies.links import links_between
from policies.schema import KindSpeed, Work
from tests.policies.cases import (
    network,
    node,
    plan_on,
    situation,
    situations,
    workload,
)


def parts(case, plan):
    links = links_between(case.nodes, case.network)
    return step_parts(plan, case.nodes, links, case.workload, case.work.global_batch)


def test_one_worker_takes_what_was_measured():
    case = situation([node("a")], load=workload(c0_s=0.010, c1_s=0.0005))
    assert step_time_s(plan_on("a"), case) == pytest.approx(0.010 + 0.0005 * 256)


def test_two_workers_by_hand():
    case = situation([node("a"), node("b")], network("ab", 0.010, 1e8))
    found = parts(case, plan_on("ab"))
    k = CONSTANTS
    assert found.compute_s == pytest.approx(0.010 + 0.0005 * 128)
    assert found.latency_s == pytest.approx((k.agreement_rtts + k.latency_per_hop) * 0.010)
    assert found.transfer_s == pytest.approx(4e6 / 1e8)
    assert found.software_s == pytest.approx(2 * k.hop_cpu_s + k.byte_cpu_s * 4e6)


def test_a_slow_edge_is_paid_twice_and_sets_the_transfer_time():
    case = situation(
        [node(x) for x in "abc"],
        network(
            "abc",
            lambda a, b: 0.1 if (a, b) == ("b", "c") else 0.0,
            lambda a, b: 1e6 if (a, b) == ("b", "c") else 1e9,
        ),
    )
    found = parts(case, plan_on("abc"))
    k = CONSTANTS
    assert found.latency_s == pytest.approx(
        k.latency_per_hop * 2 * 0.05 + k.agreement_rtts * 0.1, rel=1e-6
    )
    assert found.transfer_s - found.windows_s == pytest.approx(4 / 3 * 4e6 / 1e6)


def test_workers_that_share_a_machine_gain_next_to_nothing():
    case = situation([node("a", cpus=2.0)], load=workload(cpus=2.0))
    alone = step_time_s(plan_on("a", 2.0), case)
    assert step_time_s(plan_on("aa", 1.0), case) > 0.95 * alone


def test_the_slowest_node_sets_the_pace():
    load = workload(
        node_kinds=(KindSpeed("c5", 0.01, 0.0005, 4.0), KindSpeed("old", 0.02, 0.002, 4.0))
    )
    case = situation([node("a"), node("b", kind="old")], network("ab"), load=load)
    assert parts(case, plan_on("ab")).compute_s == pytest.approx(0.02 + 0.002 * 128)


def test_a_kind_that_was_not_profiled_is_taken_for_the_most_alike_and_marked():
    load = workload(
        node_kinds=(KindSpeed("small", 0.01, 0.004, 1.0), KindSpeed("large", 0.01, 0.0005, 8.0))
    )
    found = parts(situation([node("a", cpus=8.0)], load=load), plan_on("a", 8.0))
    assert found.assumed_speed
    assert found.compute_s == pytest.approx(0.01 + 0.0005 * 256)


def test_a_workload_without_a_measured_speed_is_refused():
    case = situation([node("a")], load=workload(node_kinds=()))
    with pytest.raises(ValueError, match="no measured speed"):
        step_time_s(plan_on("a"), case)


def test_a_worker_holds_its_share_unless_less_was_asked_for():
    nodes = [node("a", cpus=8.0), node("b", cpus=2.0)]
    assert held_cpus(plan_on("ab", 2.0), nodes) == {"a": 8.0, "b": 2.0}
    assert held_cpus(plan_on("ab", 1.0), nodes) == {"a": 1.0, "b": 1.0}
    assert held_cpus(plan_on("aab", 2.0), nodes) == {"a": 4.0, "b": 2.0}


def test_a_node_counts_whole_however_many_workers_it_has():
    nodes = [node("a", price=0.3), node("b", price=0.1)]
    assert nodes_cost_usd_per_h(plan_on("aaa", 1.0), nodes) == pytest.approx(0.3)
    assert nodes_cost_usd_per_h(plan_on("ab"), nodes) == pytest.approx(0.4)


def test_evaluation_is_forward_passes_and_checkpoints_are_by_epoch_and_minute():
    case = situation([node("a")], load=workload(c0_s=0.0, c1_s=0.001))
    found = parts(case, plan_on("a"))
    work = Work(steps=100, epochs=3, global_batch=256, validation_steps=20)
    assert evaluation_s(found, work) == pytest.approx(0.256 / 3 * 60)
    each = CONSTANTS.checkpoint_s + CONSTANTS.checkpoint_copies * 5e8 / 5e8
    assert checkpoints_s(120.0, work, 500_000_000) == pytest.approx(each * 5)


@given(situations(), st.floats(1.0, 10.0))
@settings(max_examples=40, deadline=None)
def test_a_bigger_payload_is_never_faster(case, factor):
    plan = plan_on([n.id for n in case.nodes], 1.0)
    payload = round(case.workload.payload_bytes * factor)
    bigger = replace(case, workload=replace(case.workload, payload_bytes=payload))
    assert step_time_s(plan, bigger) >= step_time_s(plan, case)


@given(situations(), st.floats(0.1, 1.0), st.data())
@settings(max_examples=40, deadline=None)
def test_a_faster_link_is_never_slower(case, factor, data):
    if len(case.nodes) == 1:
        return
    plan = plan_on([n.id for n in case.nodes], 1.0)
    at = data.draw(st.integers(0, len(case.network.links) - 1))
    links = list(case.network.links)
    links[at] = replace(
        links[at],
        rtt_s=links[at].rtt_s * factor,
        bandwidth_bytes_per_s=links[at].bandwidth_bytes_per_s / factor,
    )
    faster = replace(case, network=replace(case.network, links=tuple(links)))
    assert step_time_s(plan, faster) <= step_time_s(plan, case) * (1 + 1e-9)


@given(situations(), st.floats(0.1, 1.0))
@settings(max_examples=30, deadline=None)
def test_fewer_cpus_are_never_faster(case, factor):
    poorer = replace(
        case, nodes=tuple(replace(n, cpus=max(1.0, n.cpus * factor)) for n in case.nodes)
    )
    assert one_each_s(poorer) >= one_each_s(case) * (1 - 1e-9)


def one_each_s(case):
    cpus = whole_cpus(min(n.cpus for n in case.nodes))
    return step_time_s(plan_on([n.id for n in case.nodes], cpus), case)


def test_batch_norm_over_all_workers_costs_two_latencies_a_layer():
    case = situation([node(x) for x in "ab"], network("ab", 0.050), load=workload())
    deep = replace(case, workload=replace(case.workload, n_batch_norms=10))
    plan = plan_on("ab")
    extra_s = step_time_s(plan, deep) - step_time_s(plan, case)
    assert extra_s > 20 * 0.050
    local = replace(plan, options=replace(plan.options, sync_batchnorm=False))
    assert step_time_s(local, deep) == step_time_s(plan, case)


@pytest.mark.parametrize(("names", "round_trips"), [("ab", 4.0), ("abc", 5.7), ("abcd", 7.7)])
def test_rows_of_a_table_travel_by_themselves(names, round_trips):
    """As steps of an embedding took longer on lab hosts 10 ms apart."""
    case = situation([node(x) for x in names], network(names, 0.010), load=workload())
    table = replace(case, workload=replace(case.workload, n_slices=1))
    plan = plan_on(names)
    extra_s = step_time_s(plan, table) - step_time_s(plan, case)
    assert extra_s == pytest.approx(round_trips * 0.010, rel=0.15)
    direct = replace(plan, strategy="direct", options=replace(plan.options, algorithm="two_shot"))
    extra_s = step_time_s(direct, table) - step_time_s(direct, case)
    assert extra_s == pytest.approx(0.010, rel=0.15)


def test_a_checkpoint_holds_tables_of_which_a_step_sends_a_few_rows():
    table = replace(workload(c0_s=0.010, c1_s=0.0005), n_params=1_000_000, payload_bytes=4_000)
    assert table.weights_bytes == 4_000_000
    assert replace(table, payload_bytes=8_000_000).weights_bytes == 8_000_000  # float64
