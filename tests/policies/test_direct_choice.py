import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.constants import CONSTANTS
from policies.cost_model import step_time_s
from policies.direct import MAX_WORKERS
from policies.explain import explain
from policies.forecast import forecast
from policies.paths import paths_between
from policies.recommend import NoPlanError, recommend
from policies.residual import learn
from policies.schema import Interface, KindSpeed, Limits, Plan, PlanOptions
from policies.startup import startup_parts
from policies.wording import exchange_name
from tests.policies.cases import (
    CNN,
    MLP,
    experience,
    lab,
    network,
    node,
    plan_on,
    situation,
    situations,
    workload,
)

FAR = lab(CNN, rtt_s=0.050, strategy=None)
RAIL = "10.98.0.0/24"


def ways(decision):
    return {c.plan.n_workers: c.plan.strategy for c in decision.candidates}


def direct_on(names, cpus=0.45, algorithm="one_shot"):
    options = PlanOptions(cpus, algorithm=algorithm)
    return Plan(len(names), tuple(names), "direct", options)


def step(case, plan, seen=()):
    links = paths_between(case.nodes, case.network).links_of(plan)
    return forecast(plan, case, links, learn(case, seen)).step


def ran(case, plan, factor, n_runs=4):
    """Runs that took so many times what the prior says."""
    step_s = factor * step_time_s(plan, case)
    return [experience(case, plan.nodes, step_s, plan=plan, run=f"run-{i}") for i in range(n_runs)]


def slow_directly(case, names):
    """Direct runs that took twice what the prior says."""
    plans = [direct_on(names, 0.45, algorithm) for algorithm in ("one_shot", "two_shot")]
    return [e for plan in plans for e in ran(case, plan, 2.0)]


def test_far_workers_are_chosen_where_an_all_reduce_left_one():
    assert recommend(lab(CNN, rtt_s=0.050), (), 0).chosen.n_workers == 1
    chosen = recommend(FAR, (), 0).chosen
    assert chosen.n_workers > 1
    assert (chosen.strategy, chosen.options.algorithm) == ("direct", "one_shot")


def test_the_reason_says_why_directly():
    reason = recommend(FAR, (), 0).reason
    assert re.search(
        r", exchanging directly since an all-reduce would take \d+ min longer\.", reason
    )


@pytest.mark.parametrize("strategy", ["allreduce", "direct"])
def test_a_strategy_that_was_asked_for_is_kept(strategy):
    decision = recommend(lab(MLP, rtt_s=0.010, strategy=strategy), (), 0)
    assert ways(decision) == {1: "allreduce", 2: strategy, 3: strategy, 4: strategy}
    assert decision.rival is None
    assert "directly since" not in decision.reason


def test_direct_with_one_worker_is_simply_one_worker():
    decision = recommend(lab(workers=1, strategy="direct"), (), 0)
    assert decision.chosen == plan_on("a", 0.45)


def test_a_loop_of_its_own_cannot_exchange_directly():
    own = replace(FAR, workload=replace(CNN, own_loop=True))
    assert set(ways(recommend(own, (), 0)).values()) == {"allreduce"}
    asked = replace(own, limits=Limits(strategy="direct", workers=2))
    with pytest.raises(NoPlanError, match="own train_loop_per_worker cannot exchange directly"):
        recommend(asked, (), 0)


def test_direct_connects_no_more_workers_than_it_can():
    names = [f"n{i:03}" for i in range(MAX_WORKERS + 6)]
    load = workload(c1_s=0.02, payload=10_000)
    case = situation([node(x) for x in names], network(names), load=load)
    free = ways(recommend(case, (), 0))
    assert free[MAX_WORKERS + 6] == "allreduce"
    direct = recommend(replace(case, limits=Limits(strategy="direct")), (), 0)
    assert max(ways(direct)) == MAX_WORKERS
    with pytest.raises(NoPlanError, match="connects every worker with every other, up to 64"):
        recommend(replace(case, limits=Limits(strategy="direct", workers=65)), (), 0)


def test_the_other_way_is_kept_beside_the_choice_and_explained():
    decision = recommend(FAR, (), 0)
    assert decision.rival is not None
    assert decision.rival.plan.strategy == "allreduce"
    assert decision.rival.plan.n_workers == decision.chosen.n_workers
    found = explain(decision, FAR)
    assert "for exchanging gradients (direct, one-shot)" in found.why
    assert found.not_otherwise is not None
    assert found.not_otherwise.startswith("Not allreduce: a step would take 225 ms instead")
    links = next(f for f in found.rests_on if f.name == "links")
    assert links.value == "50 ms round trip between the farthest two"


def test_an_explanation_of_an_all_reduce_says_what_direct_would_take():
    case = lab(MLP, rtt_s=0.0005, strategy=None, workers=2)
    found = explain(recommend(case, slow_directly(case, "ab"), 0), case)
    assert found.not_otherwise is not None
    assert re.match("Not direct, [a-z]+-[a-z]+: a step would take", found.not_otherwise)


def test_plans_are_named_with_their_algorithm():
    assert exchange_name(plan_on("a")) == "–"
    assert exchange_name(plan_on("ab")) == "allreduce"
    assert exchange_name(direct_on("ab", algorithm="two_level")) == "direct, two-level"


def two_rails(rail=1.25e7):
    usual = network("abcd", 0.002, 1.25e7)
    other = tuple(replace(x, path=RAIL) for x in network("abcd", 0.001, rail).links)
    addresses = tuple(Interface(x, f"10.98.0.{i}", RAIL) for i, x in enumerate("abcd"))
    return replace(usual, links=(*usual.links, *other), interfaces=addresses)


def test_direct_uses_all_networks_together_and_says_so():
    load = workload(c1_s=0.01, payload=1_000_000)
    nodes = [node(x) for x in "abcd"]
    one = situation(nodes, network("abcd", 0.002, 1.25e7), load=load)
    both = replace(one, network=two_rails())
    plan = direct_on("abcd", 4.0, "two_shot")
    gain_s = step_time_s(plan, one) - step_time_s(plan, both)
    transfer_s = 1.5 * CONSTANTS.shared_interface * 1e6 / 1.25e7
    # Half of the transfer, and the shorter way of two: half a millisecond, twice.
    assert gain_s == pytest.approx(0.5 * transfer_s + 2 * 0.0005, rel=0.01)
    decision = recommend(both, (), 0)
    assert decision.chosen.strategy == "direct"
    gain = "Workers talk over two networks at once: 2.0 × the bandwidth of Ray's own network."
    assert gain in decision.notes


def test_gpu_nodes_far_apart_may_exchange_directly():
    load = workload(node_kinds=(KindSpeed("p4", 0.01, 0.0005, 4.0, 1.0),), payload=1_000_000)
    nodes = [node(x, gpus=1.0, kind="p4") for x in "abcd"]
    near = recommend(situation(nodes, network("abcd"), load=load), (), 0)
    far = recommend(situation(nodes, network("abcd", 0.030), load=load), (), 0)
    assert set(ways(near).values()) == {"allreduce"}
    assert far.chosen.strategy == "direct"


def test_the_other_way_is_tried_now_and_then_where_that_costs_little():
    case = lab(MLP, rtt_s=0.0005, strategy=None, workers=4, explore=0.5)
    decisions = [recommend(case, (), seed) for seed in range(30)]
    assert {d.chosen.strategy for d in decisions} == {"allreduce", "direct"}
    for decision in decisions:
        told = any("tried to learn" in note for note in decision.notes)
        assert told == (decision.chosen.strategy != decisions[0].chosen.strategy)
        assert decision.rival is not None
        assert decision.rival.plan.strategy != decision.chosen.strategy


def test_direct_starts_sooner_than_collectives():
    ring, direct = plan_on("abcd", 0.45), direct_on("abcd")
    parts = [startup_parts(plan, FAR.nodes, FAR.workload).total_s for plan in (ring, direct)]
    assert parts[1] < parts[0]


def test_runs_of_one_way_say_nothing_of_the_exchange_of_the_other():
    ring, direct = plan_on("abcd", 0.45), direct_on("abcd")
    slow_rings, slow_direct = ran(FAR, ring, 2.5), ran(FAR, direct, 2.5)
    before = {plan.strategy: step(FAR, plan).mu for plan in (ring, direct)}
    assert step(FAR, ring, slow_rings).mu - before["allreduce"] > 0.5
    assert step(FAR, direct, slow_direct).mu - before["direct"] > 0.5
    assert abs(step(FAR, direct, slow_rings).mu - before["direct"]) < 0.05
    assert abs(step(FAR, ring, slow_direct).mu - before["allreduce"]) < 0.05


def test_slow_direct_runs_bring_the_all_reduce_back():
    near = lab(CNN, rtt_s=0.0005, strategy=None, workers=4)
    assert recommend(near, (), 0).chosen.strategy == "direct"
    decision = recommend(near, slow_directly(near, "abcd"), 0)
    assert decision.chosen.strategy == "allreduce"
    assert "directly" not in decision.reason


def test_direct_is_less_sure_before_any_run_and_surer_after_some():
    ring, direct = step(FAR, plan_on("abcd", 0.45)), step(FAR, direct_on("abcd"))
    share = {"ring": ring, "direct": direct}
    assert all(x.sigma > 0.1 for x in share.values())
    after = step(FAR, direct_on("abcd"), ran(FAR, direct_on("abcd"), 1.2))
    assert after.sigma < direct.sigma
    assert math.exp(after.mu) == pytest.approx(1.2 * math.exp(direct.mu), rel=0.1)


def test_a_record_of_both_networks_is_read_as_it_was_run():
    load = workload(c1_s=0.01, payload=5_000_000)
    case = situation([node(x) for x in "abcd"], two_rails(), load=load)
    seen = ran(case, direct_on("abcd", 4.0), 1.0, n_runs=1)
    assert learn(case, seen).posterior.weights == pytest.approx(0.0, abs=1e-6)


@given(situations(), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_a_free_choice_is_never_expected_to_be_slower_than_either(case, seed):
    free = recommend(case, (), seed)
    assert free == recommend(case, (), seed)
    for strategy in ("allreduce", "direct"):
        only = recommend(replace(case, limits=Limits(strategy=strategy)), (), 0)
        best_s = only.candidate.prediction.time_s.mean
        assert free.candidate.prediction.time_s.mean <= 1.05 * best_s


@pytest.mark.parametrize(("bandwidth", "hides"), [(1.25e7, True), (1.25e10, False)])
def test_a_decision_says_what_overlap_hides(bandwidth, hides):
    net = network("ab", 0.002, bandwidth)
    limits = Limits(workers=2, strategy="direct")
    decision = recommend(situation([node(x) for x in "ab"], net, limits=limits), (), 0)
    assert decision.chosen.options.overlap == hides
    assert any("Gradients leave while a step still computes" in x for x in decision.notes) == hides
