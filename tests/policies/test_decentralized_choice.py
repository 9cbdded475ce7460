"""Decentralized plans: only when asked or allowed, compared by the time to the same accuracy."""

from dataclasses import replace

import pytest

from policies.cost_model import step_time_s
from policies.decentralized_placement import carried
from policies.explain import explain
from policies.paths import paths_between
from policies.recommend import NoPlanError, recommend
from policies.schema import Asynchrony, CurvePoint, Limits, Plan, PlanOptions, Situation, Work
from tests.policies.cases import experience, network, node, situation, workload

NAMES = "abcd"
CPUS = {"a": 1.0, "b": 4.0, "c": 1.0, "d": 2.0}
THIN = 1.25e6  # 10 Mbit/s


def sites(**limits: object) -> Situation:
    """Four unequal nodes, 80 ms and 10 Mbit/s between any two."""
    nodes = [node(name, cpus=CPUS[name], kind="small") for name in NAMES]
    load = workload(kinds=("small",), cpus=1.0, c1_s=0.002)
    work = Work(steps=10_000, epochs=10, global_batch=256)
    return situation(nodes, network(NAMES, 0.08, THIN), work, Limits(**limits), load)  # type: ignore[arg-type]


def test_nothing_is_approximate_unless_it_is_asked_for_or_allowed() -> None:
    found = recommend(sites(workers=4), (), 0)
    assert found.rival is not None
    assert {found.chosen.strategy, found.rival.plan.strategy} == {"direct", "allreduce"}
    allowed = recommend(sites(workers=4, allow_approximate=True), (), 0)
    assert allowed.chosen.strategy == "decentralized"
    assert allowed.rival is not None and allowed.rival.plan.strategy == found.chosen.strategy
    assert f"waiting for nobody since {found.chosen.strategy}" in allowed.reason
    assert "to the same accuracy" in allowed.reason


def test_what_was_asked_for_is_in_the_plan_and_the_fastest_node_leads() -> None:
    own = Asynchrony(8, 50, 0.5)
    found = recommend(sites(strategy="decentralized", workers=4, asynchrony=own), (), 0)
    assert found.chosen.options.asynchrony == own
    assert found.chosen.nodes[0] == "b"
    assert not found.chosen.options.sync_batchnorm


def test_a_decision_says_what_is_given_up() -> None:
    case = sites(strategy="decentralized", workers=4)
    found = recommend(case, (), 0)
    (note,) = [text for text in found.notes if text.startswith("Given up")]
    assert "up to 64 steps old" in note
    assert "(assumed)" in note
    facts = {fact.name: fact for fact in explain(found, case).rests_on}
    assert facts["steps to the same accuracy"].basis == "assumed"
    assert "of the gradients of a step" in facts["narrowest link"].value


def test_no_link_makes_a_step_longer_and_more_nodes_make_it_shorter() -> None:
    case = sites(strategy="decentralized")
    near = replace(case, network=network(NAMES, 0.0005))
    plans = [
        Plan(n, tuple("bdac"[:n]), "decentralized", PlanOptions(1.0, asynchrony=Asynchrony()))
        for n in (2, 3, 4)
    ]
    times = [step_time_s(plan, case) for plan in plans]
    assert times == [step_time_s(plan, near) for plan in plans]
    assert times == sorted(times, reverse=True)


def test_a_thin_link_carries_a_small_part_of_the_gradients() -> None:
    case = sites()
    plan = Plan(2, ("a", "b"), "decentralized", PlanOptions(1.0, asynchrony=Asynchrony()))
    links = paths_between(case.nodes, case.network).links_of(plan)
    assert carried(plan, links, 4_000_000, 0.1) == pytest.approx(0.9 * 0.1 * THIN / 4e6)
    assert carried(plan, links, 1_000, 0.1) == 1.0


@pytest.mark.parametrize("change", [{"own_loop": True}, {"uses_fit": False}])
def test_a_loop_of_the_scripts_own_has_one_worker(change: dict[str, bool]) -> None:
    case = sites(strategy="decentralized")
    alone = recommend(replace(case, workload=replace(case.workload, **change)), (), 0)
    assert alone.chosen.n_workers == 1
    allowed = sites(allow_approximate=True)
    found = recommend(replace(allowed, workload=replace(allowed.workload, **change)), (), 0)
    assert all(row.plan.strategy != "decentralized" for row in found.candidates)


def test_runs_that_needed_many_more_steps_turn_the_choice_to_exact_training() -> None:
    wide = network(NAMES, 0.08, 10 * THIN)
    case = replace(sites(workers=4, allow_approximate=True), network=wide)
    exact = recommend(replace(sites(workers=4), network=wide), (), 0).chosen
    loose = recommend(case, (), 0).chosen
    assert loose.strategy == "decentralized"
    step_s = {plan: step_time_s(plan, case) for plan in (exact, loose)}

    def run(name: str, plan: Plan, pace: int) -> object:
        curve = tuple(CurvePoint(pace * n, "val_loss", 1.0 / n) for n in range(1, 9))
        made = experience(case, NAMES, step_s[plan], name)
        return replace(made, plan=plan, curve=curve)

    past = [run("e", exact, 100), *(run(f"d{i}", loose, 5000) for i in range(6))]
    found = recommend(case, past, 0)  # type: ignore[arg-type]
    assert found.chosen.strategy != "decentralized"


def own_sites(**limits: object) -> Situation:
    """The same, a at one site, the others at another, each site with data of its own."""
    case = sites(strategy="decentralized", asynchrony=Asynchrony(own_data=True), **limits)
    return replace(
        case, nodes=tuple(replace(n, site="rome" if n.id == "a" else "oslo") for n in case.nodes)
    )


@pytest.mark.parametrize("workers", [None, 2, 3, 4])
def test_every_site_with_data_of_its_own_has_a_worker(workers: int | None) -> None:
    found = recommend(own_sites(workers=workers), (), 0)
    assert "a" in found.chosen.nodes
    assert set(found.chosen.nodes) & {"b", "c", "d"}
    assert any("Each site trains on its own data alone." in note for note in found.notes)


def test_one_worker_cannot_be_at_two_sites() -> None:
    with pytest.raises(NoPlanError, match="No plan has a worker at each of the 2 sites"):
        recommend(own_sites(workers=1), (), 0)


def test_a_site_computes_its_batches_alone() -> None:
    case = own_sites(workers=4)
    plan = recommend(case, (), 0).chosen
    shared = replace(plan, options=replace(plan.options, asynchrony=Asynchrony()))
    alone = 256 * 0.002  # all rows on the only CPU of the one site
    assert step_time_s(plan, case) >= alone > step_time_s(shared, case)
