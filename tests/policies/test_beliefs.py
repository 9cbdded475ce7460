from dataclasses import replace

import pytest

from policies.beliefs import Beliefs, believed
from policies.features import N_FEATURES
from policies.robust import standard
from policies.rows import prior_of
from policies.schema import Experience, Limits, NodeStart, Plan, Work
from tests.policies import cases

FAR = "d"
CASE = cases.situation(
    [cases.node(name) for name in "abcd"],
    cases.network("abcd", lambda a, b: 0.04 if FAR in (a, b) else 0.0005),
    Work(steps=2_000, epochs=4, global_batch=256),
    Limits(budget_usd=0.0001, workers=2, max_workers=2),
)
GROUPS = (frozenset("abc"), frozenset("d"))


def measured(names: str, step_s: float, run: str = "otter") -> Experience:
    return cases.experience(CASE, names, step_s, run, startup_s=12.0)


def of(*experience: Experience, groups: object = GROUPS) -> Beliefs:
    return believed("otter", CASE, experience, groups)  # type: ignore[arg-type]


def plans_of(found: Beliefs, strategy: str) -> dict[int, Plan]:
    return {x.plan.n_workers: x for x in found.plans if x.plan.strategy == strategy}  # type: ignore[misc]


def test_links_are_told_inside_a_group_and_between_two() -> None:
    near, far = of().links
    assert (near.src, near.dst, near.n_links) == (tuple("abc"), tuple("abc"), 3)
    assert (far.src, far.dst, far.n_links) == (tuple("abc"), ("d",), 3)
    assert near.rtt_s == pytest.approx(0.0005)
    assert far.rtt_s == pytest.approx(0.04)
    assert {near.basis, far.basis} == {"measured"}


def test_between_many_groups_there_is_one_class() -> None:
    nodes = [cases.node(f"n{i}") for i in range(6)]
    case = replace(CASE, nodes=tuple(nodes), network=cases.network([n.id for n in nodes], 0.05))
    found = believed("otter", case, (), [frozenset({n.id}) for n in nodes])
    (between,) = found.links
    assert between.is_between
    assert between.n_links == 15


def test_training_reaches_less_than_the_probe_once_steps_say_so() -> None:
    parts = prior_of(measured("abc", 1.0))
    slower_s = parts.compute_s + 1.5 * parts.exchange_s
    slow = [measured("abc", slower_s, f"hare-{i}") for i in range(6)]
    before, after = of().links[0].reached[0], of(*slow).links[0].reached[0]
    assert after.latency_s.mean > 1.1 * before.latency_s.mean
    assert after.bandwidth_bytes_per_s.mean < before.bandwidth_bytes_per_s.mean
    for x in (after.latency_s, after.bandwidth_bytes_per_s):
        assert x.low < x.mean < x.high


def test_every_n_has_a_step_whatever_the_request_allowed() -> None:
    found = of()
    assert set(plans_of(found, "allreduce")) == {1, 2, 3, 4}
    assert set(plans_of(found, "direct")) == {2, 3, 4}


def test_one_worker_is_efficient_by_definition() -> None:
    alone, *others = of().plans
    assert alone.efficiency.low == alone.efficiency.mean == alone.efficiency.high == 1.0
    for each in others:
        assert each.efficiency.low < each.efficiency.mean < each.efficiency.high


def test_what_was_measured_stands_beside_what_is_predicted() -> None:
    found = of(measured("abc", 0.1), measured("abc", 0.2, "hare"))
    by_n = {x.plan.n_workers: x for x in found.plans if x.plan.strategy == "allreduce"}
    assert by_n[3].measured is not None
    assert by_n[3].measured.step_s == pytest.approx(0.15)
    assert by_n[3].measured.startup_s == pytest.approx(12.0)
    assert by_n[3].measured.runs == ("otter", "hare")
    assert by_n[2].measured is None


def test_runs_are_counted_those_of_the_script_besides() -> None:
    other = replace(measured("ab", 0.1, "fox"), workload=cases.workload(fingerprint="script-b"))
    broken = measured("ab", float("nan"), "owl")
    found = of(measured("a", 0.2), measured("ab", 0.1), other, broken).evidence
    assert (found.n_segments, found.n_runs) == (3, 2)
    assert (found.n_own_segments, found.n_own_runs) == (2, 1)


def test_nodes_that_can_be_started_take_what_was_seen() -> None:
    new = replace(cases.node("e"), is_up=False, node_type="big")
    seen = replace(measured("ab", 0.1), node_starts=(NodeStart("big", 150.0),) * 3)
    case = replace(CASE, nodes=(*CASE.nodes, new))
    (start,) = believed("otter", case, [seen], GROUPS).node_starts
    assert (start.node_type, start.n_seen) == ("big", 1)
    assert start.took_s.mean > 80.0
    assert of().node_starts == ()


def test_a_lone_node_has_no_links() -> None:
    case = replace(CASE, nodes=CASE.nodes[:1], network=None)
    assert believed("otter", case, (), ()).links == ()


def test_beliefs_say_whether_they_rest_on_a_sweep_too() -> None:
    assert not of().knows_sweep
    assert believed("otter", CASE, (), GROUPS, standard(N_FEATURES)).knows_sweep
