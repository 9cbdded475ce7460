import math
from dataclasses import replace

import pytest

from policies.constants import CONSTANTS
from policies.explain import explain
from policies.forecast import forecast
from policies.links import BETWEEN_SITES, ONE_SITE, links_between
from policies.node_start import learn_node_starts
from policies.recommend import recommend
from policies.residual import learn
from policies.schema import DEFAULT_PATH, Limits, Link, NodeStart, Work
from tests.policies.cases import experience, network, node, plan_on, situation, workload

LONG, SHORT = Work(100_000, 10, 256), Work(200, 1, 256)


def to_start(name, kind="c5", node_type="cpu", **changes):
    """A node that can be started."""
    made = replace(node(name, kind=kind), ip="", node_type=node_type, is_up=False)
    return replace(made, **changes)


def up(name, node_type="cpu", **changes):
    return replace(node(name), node_type=node_type, **changes)


# One node is up, three more of its type can be started.
CASE = situation(
    [up("a"), *(to_start(f"new-{i}") for i in range(3))],
    work=LONG,
    load=workload(payload=2_000_000),
)


def forecast_on(case, names, seen=()):
    links = links_between(case.nodes, case.network)
    return forecast(plan_on(names), case, links, learn(case, seen))


def test_a_long_job_waits_for_more_nodes_and_a_short_one_does_not():
    assert recommend(CASE, (), 0).chosen.n_workers == 4
    short = recommend(replace(CASE, work=SHORT), (), 0)
    assert short.chosen.nodes == ("a",)


def test_the_start_of_nodes_is_part_of_time_and_cost():
    there, started = forecast_on(CASE, ["a"]), forecast_on(CASE, ["new-0"])
    assert started.step.mean == pytest.approx(there.step.mean)
    assert started.time.mean - there.time.mean == pytest.approx(CONSTANTS.node_start_s, rel=0.2)
    assert started.cost_usd > there.cost_usd
    assert started.time.variance > there.time.variance


def test_several_nodes_start_at_the_same_time():
    one, three = forecast_on(CASE, ["new-0"]), forecast_on(CASE, ["new-0", "new-1", "new-2"])
    waits = [f.time.mean - CASE.work.steps * f.step.mean for f in (one, three)]
    assert waits[1] - waits[0] < 0.5 * CONSTANTS.node_start_s


def test_how_long_nodes_take_to_start_is_learned_from_past_runs():
    seen = [
        experience(CASE, "a", 0.1, run=f"r{i}", node_starts=(NodeStart("cpu", 20.0 + i),))
        for i in range(3)
    ]
    learned_s = CONSTANTS.node_start_s * math.exp(learn_node_starts(CASE.nodes, seen)["cpu"].mean)
    assert 21.0 < learned_s < 35.0
    waited_s, there_s = (forecast_on(CASE, [name], seen).time.mean for name in ("new-0", "a"))
    assert waited_s - there_s == pytest.approx(learned_s, rel=0.2)


def test_starts_of_another_type_tell_less_and_a_run_counts_once():
    def log_ratio(*starts):
        seen = [experience(CASE, "a", 0.1, run=run, node_starts=(s,)) for run, s in starts]
        return learn_node_starts(CASE.nodes, seen)["cpu"].mean

    own, other = NodeStart("cpu", 30.0), NodeStart("gpu", 30.0)
    assert log_ratio(("r", own)) < log_ratio(("r", other)) < log_ratio() == 0.0
    assert log_ratio(("r", own), ("r", own)) == log_ratio(("r", own))
    assert log_ratio(("r", own), ("q", own)) < log_ratio(("r", own))


def test_what_a_started_node_costs_after_its_release_counts_against_the_budget():
    lingering = replace(CASE, nodes=tuple(replace(n, lingers_s=7200.0) for n in CASE.nodes))
    plain, dear = forecast_on(CASE, ["new-0"]), forecast_on(lingering, ["new-0"])
    assert dear.cost_usd == pytest.approx(plain.cost_usd + 2 * CASE.nodes[0].price_usd_per_h)
    assert dear.candidate.prediction.cost_usd.low == pytest.approx(
        plain.candidate.prediction.cost_usd.low + 2 * CASE.nodes[0].price_usd_per_h
    )
    assert forecast_on(lingering, ["a"]).cost_usd == pytest.approx(
        forecast_on(CASE, ["a"]).cost_usd
    )
    limits = Limits(budget_usd=plain.cost_usd * 1.3)
    assert forecast_on(replace(CASE, limits=limits), ["new-0"]).p_fits > 0.8
    assert forecast_on(replace(lingering, limits=limits), ["new-0"]).p_fits < 0.2


def test_nodes_to_start_have_links_like_those_of_their_type():
    nodes = [up("a"), up("b"), up("c", "far"), up("d", "far"), to_start("new")]
    names, far = "abcd", {"c", "d"}

    def rtt_s(x, y):
        return 0.001 if not {x, y} & far else 0.02 if {x, y} <= far else 0.08

    links = links_between(nodes, network(names, rtt_s))
    assert links.rtt_s("new", "a") == pytest.approx(0.001)
    assert links.rtt_s("c", "new") == pytest.approx(0.08)
    at = links.index["new"]
    assert not links.known[at].any()
    assert not links.inferred[:, at].any()


def test_beside_a_lone_node_nodes_to_start_are_taken_for_one_site():
    links = links_between(CASE.nodes, None)
    assert links.rtt_s("a", "new-0") == links.rtt_s("new-0", "new-1") == ONE_SITE.rtt_s
    loopback = Link("a", "a", DEFAULT_PATH, 0.0003, 0.0, 0.0, 5e8)
    measured = links_between(CASE.nodes, replace(network("a"), links=(loopback,)))
    assert measured.rtt_s("a", "new-0") == ONE_SITE.rtt_s
    assert measured.rtt_s("new-0", "new-0") == pytest.approx(0.0003)
    assert BETWEEN_SITES.rtt_s > ONE_SITE.rtt_s


def test_a_plan_with_nodes_to_start_says_what_is_assumed():
    decision = recommend(CASE, (), 0)
    notes = " ".join(decision.notes)
    assert "3 nodes of this plan are not started yet" in notes
    assert "links" in notes
    other = replace(CASE, nodes=(up("a"), to_start("new", kind="m6", cpus=8.0)))
    assert any("speed is assumed" in note for note in recommend(other, (), 0).notes)


def test_another_type_is_taken_to_be_as_fast_as_its_cpus_say():
    other = replace(CASE, nodes=(up("a"), to_start("new", kind="m6", cpus=8.0)))
    plan = replace(plan_on(["new"], 8.0))
    links = links_between(other.nodes, None)
    step = forecast(plan, other, links, learn(other, ())).step
    assert step.mean < 0.75 * forecast_on(other, ["a"]).step.mean


def test_nodes_that_are_up_are_preferred_where_others_are_no_better():
    nodes = [up("x"), up("y"), *(to_start(f"a{i}") for i in range(4))]
    case = situation(nodes, network("xy"), work=LONG, limits=Limits(workers=2))
    assert set(recommend(case, (), 0).chosen.nodes) == {"x", "y"}


def test_worse_links_among_nodes_that_are_up_do_not_hide_their_plans():
    """Nodes to start may look better placed: what is there must stay a candidate."""
    nodes = [up("x"), up("y"), up("z"), *(to_start(f"a{i}") for i in range(4))]
    net = network("xyz", lambda a, b: 0.0005 if "z" not in (a, b) else 0.004)
    case = situation(nodes, net, work=SHORT, limits=Limits(workers=3))
    assert set(recommend(case, (), 0).chosen.nodes) == {"x", "y", "z"}


def test_among_many_nodes_a_very_long_wait_is_weighed_too():
    """All steps on what is up take longer than those on new nodes, but less than their start."""
    nodes = [up(f"up-{i}") for i in range(8)] + [to_start(f"new-{i:02}") for i in range(17)]
    case = situation(nodes, work=Work(6_000, 10, 4096), load=workload(batch=4096))
    slow = [
        experience(case, ["up-0"], 2.1, run=f"run-{i}", node_starts=(NodeStart("cpu", 7200.0),))
        for i in range(8)
    ]
    quick = [replace(e, node_starts=(NodeStart("cpu", 10.0),)) for e in slow]
    assert recommend(case, quick, 0).chosen.n_workers > 8
    chosen = recommend(case, slow, 0).chosen
    assert all(name.startswith("up-") for name in chosen.nodes)


def test_no_more_nodes_are_started_than_may_be():
    nodes = [
        up("a"),
        *(to_start(f"b{i}") for i in range(3)),
        *(to_start(f"c{i}", kind="m6", node_type="other") for i in range(3)),
    ]
    for most, n in ((2, 3), (3, 4), (6, 7)):
        case = situation(nodes, work=LONG, limits=Limits(max_started=most))
        held = [set(each.plan.nodes) for each in recommend(case, (), 0).candidates]
        assert max(len(nodes_held) for nodes_held in held) == n
        assert max(len(nodes_held - {"a"}) for nodes_held in held) == most


def test_the_ceiling_and_the_reasons_count_what_can_be_started():
    decision = recommend(CASE, (), 0)
    text = " ".join(explain(decision, CASE).sentences)
    assert "this machine and 3 more that can be started have room for 4" in text


def test_without_anything_to_start_nothing_is_learned_of_starts():
    assert learn_node_starts([node("a")], ()) == {}
    starts = learn_node_starts(CASE.nodes, ())
    assert math.exp(starts["cpu"].mean) == 1.0
    assert workload().startup_s is None
