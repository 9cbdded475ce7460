from dataclasses import replace

import pytest

from policies.cost_model import step_time_s
from policies.explain import explain
from policies.paths import paths_between
from policies.recommend import recommend
from policies.residual import learn
from policies.schema import DEFAULT_PATH, Interface, Limits, Plan, PlanOptions
from tests.policies.cases import experience, network, node, plan_on, situation, workload

FAST = "10.98.0.0/24"
NODES = tuple(node(x) for x in "abcd")
HEAVY = workload(c1_s=0.002, payload=12_000_000)


def two_networks(names_on_fast="abcd", slow=1.25e7, fast=1.25e8, rtt_s=0.0005):
    """Ray's network between all of a, b, c, d, and another between some."""
    usual = network("abcd", 0.0005, slow)
    other = network(names_on_fast, rtt_s, fast).links
    addresses = tuple(Interface(x, f"10.98.0.{i}", FAST) for i, x in enumerate(names_on_fast))
    links = (*usual.links, *(replace(link, path=FAST) for link in other))
    return replace(usual, links=links, interfaces=addresses)


def decide(net, load=HEAVY, strategy="allreduce", **limits):
    asked = Limits(strategy=strategy, **limits)
    return recommend(situation(NODES, net, load=load, limits=asked), (), 0)


def on(plan: Plan, path: str) -> Plan:
    return replace(plan, options=replace(plan.options, path=path))


def test_training_uses_the_fast_network_and_says_so():
    decision = decide(two_networks())
    assert decision.chosen.n_workers > 1
    assert decision.chosen.options.path == FAST
    assert f"Workers talk over {FAST}: 10 × the bandwidth of Ray's own network." in decision.notes


def test_a_network_like_rays_own_is_not_used():
    decision = decide(two_networks(slow=1.25e8, fast=1.26e8))
    assert {c.plan.options.path for c in decision.candidates} == {DEFAULT_PATH}
    assert not any(FAST in note for note in decision.notes)


def test_a_network_of_shorter_round_trips_is_named_as_that():
    net = two_networks(slow=1.25e8, fast=1.25e8, rtt_s=0.00005)
    far = tuple(replace(x, rtt_s=0.020) if x.path == DEFAULT_PATH else x for x in net.links)
    notes = decide(replace(net, links=far), workload()).notes
    assert any("messages arrive 400 × as soon as on Ray's own network" in note for note in notes)


def test_a_node_without_an_address_on_the_fast_network_is_told():
    decision = decide(two_networks("abc"))
    assert decision.chosen.options.path == FAST
    assert set(decision.chosen.nodes) <= set("abc")
    ip = NODES[3].ip
    advice = f"{ip} has no address on {FAST}, which is 10 × as fast as Ray's own network"
    assert f"{advice}: give it one to use it." in decision.notes


def test_more_nodes_than_can_be_named_are_counted():
    nodes = [node(x) for x in "abcdefgh"]
    net = network("abcdefgh", 0.0005, 1.25e7)
    fast = tuple(replace(x, path=FAST) for x in network("ab").links)
    addresses = tuple(Interface(x, "10.98.0.1", FAST) for x in "ab")
    net = replace(net, links=(*net.links, *fast), interfaces=addresses)
    notes = recommend(situation(nodes, net), (), 0).notes
    assert any(note.startswith("6 of 8 nodes have no address on") for note in notes)


def test_all_nodes_on_the_slow_network_when_computing_is_what_counts():
    decision = decide(two_networks("ab"), workload(c1_s=0.01, payload=100_000))
    assert decision.chosen.n_workers == 4
    assert decision.chosen.options.path == DEFAULT_PATH


def test_a_network_that_never_answered_is_no_path():
    net = two_networks()
    mute = tuple(
        replace(x, rtt_s=None, bandwidth_bytes_per_s=None) if x.path == FAST else x
        for x in net.links
    )
    assert not paths_between(NODES, replace(net, links=mute)).others
    assert decide(replace(net, links=mute)).chosen.options.path == DEFAULT_PATH


def test_a_step_is_timed_over_its_own_path():
    case = situation(NODES, two_networks(), load=HEAVY)
    slow_s = step_time_s(plan_on("abcd"), case)
    fast_s = step_time_s(on(plan_on("abcd"), FAST), case)
    assert slow_s > 3 * fast_s


def test_experience_counts_on_the_path_that_it_was_made_on():
    case = situation(NODES, two_networks(), load=HEAVY)
    plan = on(plan_on("abcd"), FAST)
    seen = experience(case, "abcd", step_time_s(plan, case), plan=plan)
    paths = paths_between(NODES, case.network)
    assert learn(case, [seen]).n_rows == 1
    mean = learn(case, [seen]).posterior.weights
    assert mean == pytest.approx(0.0, abs=1e-6)
    assert paths.of(plan).name == FAST


def test_an_explanation_names_the_path_and_survives_its_loss():
    asked = Limits(strategy="allreduce")
    case = situation(NODES, two_networks(), load=HEAVY, limits=asked)
    decision = recommend(case, (), 0)
    ring = next(f for f in explain(decision, case).rests_on if f.name == "ring")
    assert ring.value.endswith(f"over {FAST}")
    gone = replace(case, network=network("abcd"))
    assert explain(decision, gone).why


def test_workers_that_share_nodes_may_use_the_fast_network_too():
    decision = decide(two_networks(), workers=6)
    assert decision.chosen.n_workers == 6
    assert decision.chosen.options == PlanOptions(2.0, 0.0, FAST)
