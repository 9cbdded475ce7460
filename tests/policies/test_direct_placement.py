from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.candidates import pools
from policies.cost_model import step_time_s
from policies.direct_placement import direct_placements
from policies.greedy import placements_along, sets_along, tours
from policies.links import links_between
from policies.placement import placements, site_of, subsets
from policies.schema import KindSpeed, Limits, Plan, PlanOptions
from tests.policies.cases import network, node, situation, situations, workload


def site(case):
    (pool,) = pools(case.nodes, case.limits)
    links = links_between(case.nodes, case.network)
    return site_of(pool, links, case.workload, case.work.global_batch)


def placed(case, n, *, beside_nccl=False):
    where = site(case)
    sets, ringed = subsets(where.pool, n), placements(where, n)
    return direct_placements(where, n, sets, ringed, beside_nccl=beside_nccl)


def two_sites(near="ac", far_s=0.040, narrow=1.25e8):
    same = lambda a, b: (a in near) == (b in near)  # noqa: E731
    return network(
        "abcd",
        lambda a, b: 0.0005 if same(a, b) else far_s,
        lambda a, b: 1.25e8 if same(a, b) else narrow,
    )


def test_the_farthest_pair_decides_and_not_the_way_around():
    """A ring would go a-b-c-d; directly the diagonal a-c counts, so b, c, d are nearer."""
    rtts = {"ab": 0.01, "bc": 0.01, "cd": 0.01, "ad": 0.01, "ac": 0.08, "bd": 0.01}
    net = network("abcd", lambda a, b: rtts["".join(sorted(a + b))])
    case = situation([node(x) for x in "abcd"], net)
    assert set(placed(case, 3)[0].plan.nodes) in ({"b", "c", "d"}, {"a", "b", "d"})


def test_near_workers_stay_together():
    case = situation([node(x) for x in "abcd"], two_sites())
    assert placed(case, 2)[0].plan.nodes in {("a", "c"), ("b", "d")}


def test_small_payloads_over_far_links_go_in_one_shot():
    case = situation([node(x) for x in "abcd"], network("abcd", 0.05), load=workload(payload=9999))
    assert placed(case, 4)[0].plan.options.algorithm == "one_shot"


def test_large_payloads_go_in_two_shots_where_the_way_is_long_and_round_a_ring_where_it_is_not():
    load, nodes = workload(payload=40_000_000), [node(x) for x in "abcd"]
    for rtt_s, algorithm in ((0.04, "two_shot"), (0.0005, "ring")):
        case = situation(nodes, network("abcd", rtt_s), load=load)
        assert placed(case, 4)[0].plan.options.algorithm == algorithm


def test_sites_sum_inside_first_where_the_way_between_is_narrow():
    net = two_sites(narrow=1.25e6)
    case = situation([node(x) for x in "abcd"], net, load=workload(payload=1_000_000))
    plan = placed(case, 4)[0].plan
    assert plan.options.algorithm == "two_level"
    sites = {frozenset(plan.nodes[rank] for rank in site) for site in plan.options.sites}
    assert sites == {frozenset("ac"), frozenset("bd")}


def test_a_ring_goes_where_only_neighbours_have_wide_links():
    around = {"ab", "bc", "cd", "ad"}
    net = network("abcd", 0.0002, lambda a, b: 1e9 if "".join(sorted(a + b)) in around else 1e5)
    case = situation([node(x) for x in "abcd"], net, load=workload(payload=20_000_000))
    plan = placed(case, 4)[0].plan
    assert plan.options.algorithm == "ring"
    ring = plan.nodes
    edges = zip(ring, ring[1:] + ring[:1], strict=True)
    assert {"".join(sorted(a + b)) for a, b in edges} == around


def test_workers_that_share_nodes_sum_on_their_node_first():
    case = situation(
        [node(x) for x in "ab"],
        network("ab", 0.01, 1.25e6),
        load=workload(payload=10_000_000),
        limits=Limits(cpus_per_worker=2.0),
    )
    plan = placed(case, 4)[0].plan
    assert plan.nodes == ("a", "a", "b", "b")
    assert plan.options.algorithm == "two_level"
    assert plan.options.sites == ((0, 1), (2, 3))


def test_a_dear_node_has_to_be_faster():
    load = workload(
        node_kinds=(KindSpeed("fast", 0.01, 0.0005, 4.0), KindSpeed("slow", 0.01, 0.001, 4.0))
    )
    nodes = [node(x, price=1.0, kind="fast") for x in "ab"]
    nodes += [node(x, price=0.1, kind="slow") for x in "cd"]
    found = placed(situation(nodes, network("abcd"), load=load), 2)
    assert (found[0].plan.nodes, found[-1].plan.nodes) == (("a", "b"), ("c", "d"))
    assert [x.step_s for x in found] == sorted(x.step_s for x in found)


def test_near_gpus_are_left_to_nccl_unless_asked_for():
    load = workload(node_kinds=(KindSpeed("p4", 0.01, 0.0005, 4.0, 1.0),))
    nodes = [node(x, gpus=1.0, kind="p4") for x in "abcd"]
    near = situation(nodes, network("abcd"), load=load)
    assert not placed(near, 4)
    assert placed(near, 4, beside_nccl=True)
    assert placed(situation(nodes, two_sites(), load=load), 4)


def directly_s(case, names, algorithm):
    """The step of some nodes that hold as much as all of them can."""
    cpus = min(float(int(n.cpus)) for n in case.nodes if n.id in names)
    options = PlanOptions(cpus, algorithm=algorithm)
    return step_time_s(Plan(len(names), tuple(names), "direct", options), case)


@given(situations(max_nodes=6), st.floats(0.3, 3.0))
@settings(max_examples=20, deadline=None)
def test_no_choice_of_few_nodes_is_faster(case, slower):
    first, second = case.workload.node_kinds
    second = replace(second, c1_s=second.c1_s * slower)
    case = replace(case, workload=replace(case.workload, node_kinds=(first, second)))
    for n in range(2, len(case.nodes) + 1):
        found = placed(case, n)[0]
        every = combinations([x.id for x in case.nodes], n)
        least_s = min(directly_s(case, x, a) for x in every for a in ("one_shot", "two_shot"))
        assert found.step_s <= least_s * (1 + 1e-6)


@given(situations(max_nodes=4), st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_a_placement_is_timed_as_the_cost_model_times_its_plan(case, n):
    if n > sum(site(case).pool.room):
        return
    for found in placed(case, n):
        assert found.plan.strategy == "direct"
        assert found.step_s == pytest.approx(step_time_s(found.plan, case))


def test_sets_of_many_nodes_come_near_the_best_of_all():
    rng = np.random.default_rng(7)
    names, ratios = "abcdefgh", []
    for _ in range(8):
        group = dict(zip(names, rng.integers(0, 3, 8), strict=True))
        noise = {(a, b): rng.uniform(0.5, 1.5) for a in names for b in names}
        rtt_s = lambda a, b: noise[a, b] * (0.0005 if group[a] == group[b] else 0.02)  # noqa: B023, E731
        case = situation([node(x) for x in names], network(names, rtt_s))
        where = site(case)
        found = tours(where)
        for n in (2, 4, 6, 8):
            sets, ringed = sets_along(where, n, found), placements_along(where, n, found)
            some = direct_placements(where, n, sets, ringed, beside_nccl=False)
            ratios.append(some[0].step_s / placed(case, n)[0].step_s)
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) < 1.05
    assert max(ratios) < 1.35


def test_gradients_leave_during_the_backward_pass_where_that_pays():
    slow = network("ab", 0.010, 1.25e7)
    busy = situation([node(x) for x in "ab"], slow, load=workload(payload=2_000_000))
    tiny = situation([node(x) for x in "ab"], slow, load=workload(payload=2_000))
    assert [placed(case, 2)[0].plan.options.overlap for case in (busy, tiny)] == [True, False]


def test_overlap_on_gpus_was_not_measured_and_is_left_out():
    kinds = (KindSpeed("gpu", 0.010, 0.0005, 4.0, 1.0),)
    load = workload(payload=2_000_000, node_kinds=kinds)
    nodes = [node(x, kind="gpu", gpus=1.0) for x in "ab"]
    case = situation(nodes, network("ab", 0.010, 1.25e7), load=load)
    assert not placed(case, 2, beside_nccl=True)[0].plan.options.overlap
