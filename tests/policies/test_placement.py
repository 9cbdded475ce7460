from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.candidates import pools
from policies.cost_model import step_time_s
from policies.greedy import placements_along, tours
from policies.links import links_between
from policies.placement import MAX_PLANS, Placed, placements, shares, site_of, undominated
from policies.schema import KindSpeed, Limits
from tests.policies.cases import network, node, plan_on, situation, situations, workload


def site(case):
    (pool,) = pools(case.nodes, case.limits)
    links = links_between(case.nodes, case.network)
    return site_of(pool, links, case.workload, case.work.global_batch)


def edges(ring):
    return list(zip(ring, ring[1:] + ring[:1], strict=True))


def test_two_near_nodes_are_taken_before_a_far_one():
    far = lambda a, b: 0.040 if "b" in (a, b) else 0.0005  # noqa: E731
    case = situation([node(x) for x in "abc"], network("abc", far))
    assert placements(site(case), 2)[0].plan.nodes == ("a", "c")


def test_the_ring_crosses_between_two_sites_as_seldom_as_possible():
    rtt_s = lambda a, b: 0.0005 if (a in "ac") == (b in "ac") else 0.040  # noqa: E731
    case = situation([node(x) for x in "abcd"], network("abcd", rtt_s))
    ring = placements(site(case), 4)[0].plan.nodes
    crossings = sum((a in "ac") != (b in "ac") for a, b in edges(ring))
    assert crossings == 2


def test_a_narrow_edge_is_left_out_of_the_ring():
    bandwidth = lambda a, b: 1e6 if {a, b} == {"a", "b"} else 1e8  # noqa: E731
    case = situation([node(x) for x in "abcd"], network("abcd", 0.0005, bandwidth))
    ring = placements(site(case), 4)[0].plan.nodes
    assert all({a, b} != {"a", "b"} for a, b in edges(ring))


def test_fast_and_cheap_nodes_are_both_offered():
    load = workload(
        node_kinds=(KindSpeed("fast", 0.01, 0.0005, 4.0), KindSpeed("slow", 0.01, 0.001, 4.0))
    )
    nodes = [node("a", price=1.0, kind="fast"), node("b", price=0.1, kind="slow")]
    found = placements(site(situation(nodes, load=load)), 1)
    assert [p.plan.nodes for p in found] == [("a",), ("b",)]


def test_a_slow_and_dear_node_is_not_offered():
    load = workload(
        node_kinds=(KindSpeed("fast", 0.01, 0.0005, 4.0), KindSpeed("slow", 0.01, 0.001, 4.0))
    )
    nodes = [node("a", price=0.1, kind="fast"), node("b", price=1.0, kind="slow")]
    assert len(placements(site(situation(nodes, load=load)), 1)) == 1


def test_of_many_undominated_plans_the_ends_and_some_between_are_kept():
    found = [Placed(plan_on("a"), 1.0 + i, 20.0 - i) for i in range(20)]
    kept = undominated(found)
    assert len(kept) == MAX_PLANS
    assert (kept[0], kept[-1]) == (found[0], found[-1])


def test_workers_of_one_node_are_neighbours_and_evenly_shared():
    case = situation([node(x) for x in "abc"], network("abc"), limits=Limits(cpus_per_worker=1.0))
    found = placements(site(case), 7)
    for placed in found:
        ring = placed.plan.nodes
        changes = sum(a != b for a, b in edges(ring))
        assert changes == (len(set(ring)) if len(set(ring)) > 1 else 0)
    assert len(found[-1].plan.nodes) == 7
    assert len(set(found[-1].plan.nodes)) == 2


def test_shares_are_as_even_as_the_room_allows():
    pool = replace(pools([node(x) for x in "abc"], Limits())[0], room=(1, 4, 4))
    assert shares(pool, (0, 1, 2), 7) == (1, 3, 3)
    assert shares(pool, (1, 2), 5) == (3, 2)
    assert shares(pool, (0, 1), 2) == (1, 1)


@given(situations(max_nodes=5), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_no_ring_and_no_choice_of_nodes_is_faster(case, n):
    if n > len(case.nodes) or len(case.nodes) == 1:
        return
    best = placements(site(case), n)[0]
    options = best.plan.options
    for names in permutations([x.id for x in case.nodes], n):
        cpus = min(x.cpus for x in case.nodes if x.id in names)
        rival = replace(plan_on(names), options=replace(options, cpus_per_worker=cpus))
        assert best.step_s <= step_time_s(rival, case) * (1 + 1e-9)


@given(situations(max_nodes=4), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_a_placement_is_timed_as_the_cost_model_times_its_plan(case, n):
    if n > sum(site(case).pool.room):
        return
    for placed in placements(site(case), n):
        assert placed.step_s == pytest.approx(step_time_s(placed.plan, case))


def test_the_heuristic_comes_near_the_exact_placement():
    rng = np.random.default_rng(7)
    names, ratios = "abcdefgh", []
    for _ in range(8):
        group = dict(zip(names, rng.integers(0, 3, 8), strict=True))
        noise = {(a, b): rng.uniform(0.5, 1.5) for a in names for b in names}
        rtt_s = lambda a, b: noise[a, b] * (0.0005 if group[a] == group[b] else 0.02)  # noqa: B023, E731
        where = site(situation([node(x) for x in names], network(names, rtt_s)))
        found = tours(where)
        for n in (2, 4, 6, 8):
            exact = placements(where, n)[0].step_s
            ratios.append(placements_along(where, n, found)[0].step_s / exact)
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) < 1.05
    assert max(ratios) < 1.35


def test_packed_and_spread_workers_are_both_looked_at_beyond_eight_nodes():
    names = [f"n{i:02}" for i in range(12)]
    case = situation([node(x) for x in names], network(names), limits=Limits(cpus_per_worker=1.0))
    where = site(case)
    sizes = {len(set(p.plan.nodes)) for p in placements_along(where, 8, tours(where))}
    assert 2 in sizes
    assert all(p.plan.n_workers == 8 for p in placements_along(where, 8, tours(where)))
