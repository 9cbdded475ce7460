import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.candidates import pools
from policies.constants import CONSTANTS
from policies.cost_model import compute_s, software_s, step_time_s
from policies.greedy import placements_along, tours
from policies.links import links_between
from policies.placement import MAX_PLANS, Placed, placements, shares, site_of, undominated
from policies.recommend import recommend
from policies.schema import KindSpeed, Limits
from policies.tcp_windows import congestion_s, restart_s
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


@pytest.mark.parametrize("order", ["abcdef", "adbecf"])
def test_two_sites_of_three(order):
    """Three workers stay at one site; six cross twice, whatever the nodes are called."""
    left = set(order[:3])
    rtt_s = lambda a, b: 0.0005 if (a in left) == (b in left) else 0.040  # noqa: E731
    where = site(situation([node(x) for x in order], network(order, rtt_s)))
    assert len({x in left for x in placements(where, 3)[0].plan.nodes}) == 1
    ring = placements(where, 6)[0].plan.nodes
    assert sum((a in left) != (b in left) for a, b in edges(ring)) == 2


@pytest.mark.parametrize("n_nodes", [24, 60])
def test_rings_of_many_nodes_at_several_sites_cross_no_more_than_they_must(n_nodes):
    names = [f"n{i:02}" for i in range(n_nodes)]
    at = {name: i * 7 % 4 for i, name in enumerate(names)}
    rtt_s = lambda a, b: 0.0005 if at[a] == at[b] else 0.02 + 0.01 * (at[a] + at[b])  # noqa: E731
    where = site(situation([node(x) for x in names], network(names, rtt_s)))
    found = tours(where)
    ring = placements_along(where, n_nodes, found)[0].plan.nodes
    assert sum(at[a] != at[b] for a, b in edges(ring)) == 4
    few = placements_along(where, n_nodes // 4, found)[0].plan.nodes
    assert len({at[x] for x in few}) == 1


def test_a_slow_node_is_left_out_when_that_pays():
    load = workload(
        node_kinds=(KindSpeed("fast", 0.01, 0.0005, 4.0), KindSpeed("slow", 0.01, 0.005, 4.0))
    )
    nodes = [node(x, kind="slow" if x == "b" else "fast") for x in "abcd"]
    decision = recommend(situation(nodes, network("abcd"), load=load), (), 0)
    assert sorted(decision.chosen.nodes) == ["a", "c", "d"]


def test_a_slow_node_is_taken_when_it_still_helps():
    load = workload(
        node_kinds=(KindSpeed("fast", 0.01, 0.005, 4.0), KindSpeed("slow", 0.01, 0.0055, 4.0))
    )
    nodes = [node(x, kind="slow" if x == "b" else "fast") for x in "abcd"]
    assert recommend(situation(nodes, network("abcd"), load=load), (), 0).chosen.n_workers == 4


def test_a_dear_node_is_left_out_when_money_counts():
    nodes = [node(x, price=9.0 if x == "b" else 0.1) for x in "abcd"]
    case = situation(nodes, network("abcd"), limits=Limits(budget_usd=1.0))
    decision = recommend(case, (), 0)
    assert sorted(decision.chosen.nodes) == ["a", "c", "d"]


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


def brute_force_s(case, n):
    """Least step over all choices and orders of n nodes, a chunk's way added up hop by hop."""
    index = {x.id: i for i, x in enumerate(case.nodes)}
    one_way_s, s_per_byte = np.zeros((2, len(index), len(index)))
    for x in case.network.links:
        one_way_s[index[x.src], index[x.dst]] = x.rtt_s / 2
        s_per_byte[index[x.src], index[x.dst]] = 1 / x.bandwidth_bytes_per_s
    rows = math.ceil(case.work.global_batch / n)
    speeds = {x.kind: x for x in case.workload.node_kinds}
    compute = np.array([compute_s(speeds[x.kind], x.cpus, 0.0, rows, 1) for x in case.nodes])
    rings = np.array(list(permutations(range(len(case.nodes)), n)))
    step_s = compute[rings].max(axis=1)
    if n == 1:
        return step_s.min()
    following = np.roll(rings, -1, axis=1)
    hops_s = one_way_s[rings, following]
    around = np.arange(n)[:, None] + np.arange(2 * (n - 1))[None, :]
    path_s = hops_s[:, around % n].sum(axis=2).max(axis=1)
    payload = case.workload.payload_bytes
    edges = s_per_byte[rings, following]
    edges_s = 2 * (n - 1) / n * payload * edges
    edges_s += restart_s(payload / n, 2 * hops_s, edges, step_s[:, None])
    transfer_s = edges_s.max(axis=1)
    transfer_s += congestion_s(transfer_s, 2 * hops_s.max(axis=1))
    latency_s = CONSTANTS.latency_per_hop * path_s
    latency_s += CONSTANTS.agreement_rtts * 2 * hops_s.max(axis=1)
    return (step_s + latency_s + transfer_s).min() + software_s(n, payload, 1.0)


@given(situations(max_nodes=8), st.floats(0.3, 3.0))
@settings(max_examples=30, deadline=None)
def test_no_choice_of_nodes_and_no_ring_is_faster(case, slower):
    """All n of up to eight nodes of two speeds, against every permutation."""
    first, second = case.workload.node_kinds
    second = replace(second, c1_s=second.c1_s * slower)
    case = replace(case, workload=replace(case.workload, node_kinds=(first, second)))
    where = site(case)
    for n in range(1, len(case.nodes) + 1):
        found = placements(where, n)[0]
        assert found.step_s == pytest.approx(brute_force_s(case, n), rel=1e-9)
        assert found.step_s == pytest.approx(step_time_s(found.plan, case))


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
