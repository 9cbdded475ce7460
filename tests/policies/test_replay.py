from dataclasses import replace

import pytest

from policies.contenders import CONTENDERS, Asked, Choice, Contender, table_of
from policies.hindsight import Hindsight, are_alike
from policies.past import PastRun, flaw_of, ledger
from policies.question import Arm
from policies.recommend import NoPlanError
from policies.replay import TRIAL_STEPS, replayed, total
from policies.rows import prior_of
from policies.schema import Experience, Interval, Limits, Plan, Work
from tests.policies import cases

CASE = cases.situation(
    [cases.node(name, kind="c5") for name in "abc"],
    cases.network("abc"),
    Work(steps=2_000, epochs=4, global_batch=256),
    Limits(strategy="allreduce"),
    spent_s=5.0,
)
ONE, TWO = cases.plan_on("a"), cases.plan_on("ab")
STARTUP_S, REST_S = 10.0, 30.0
RATE = 0.3 / 3600  # dollars a second and node


def measured(plan: Plan, step_s: float, run: str = "otter", **changes: object) -> Experience:
    made = cases.experience(CASE, plan.nodes, step_s, run, steps=2_000, startup_s=STARTUP_S)
    return replace(made, **changes)


def past(*segments: Experience, **changes: object) -> PastRun:
    """A run of these segments, 30 s of which were neither start-up nor step nor decision."""
    known_s = sum(x.steps * x.step_s + STARTUP_S for x in segments)
    rate = sum(len(x.plan.nodes) * RATE * (x.steps * x.step_s + STARTUP_S) for x in segments)
    time_s, usd = CASE.spent_s + known_s + REST_S, rate * (1 + REST_S / known_s)
    made = PastRun(segments[0].run, 7, CASE, segments, len(segments), 0.0, time_s, usd)
    return replace(made, **changes)


def always(plan: Plan, *tried: Plan) -> Contender:
    return Contender("always", "Always this plan.", lambda asked: Choice(plan, tried))


def asked(run: PastRun, *others: Experience) -> Asked:
    return Asked(run, Hindsight([*run.segments, *others]))


def test_the_plan_that_the_run_had_changes_nothing() -> None:
    found = replayed(asked(past(measured(TWO, 0.1))), always(TWO))
    assert found.is_same
    assert found.basis == "measured"
    assert found.measured_in == ("otter",)
    assert found.lost_s == found.lost_usd == Interval(0.0, 0.0, 0.0)


def test_a_plan_that_another_run_measured_takes_what_was_measured_there() -> None:
    run, other = past(measured(TWO, 0.1)), measured(ONE, 0.15, "hare", startup_s=8.0)
    found = replayed(asked(run, other), always(ONE))
    assert (found.basis, found.measured_in) == ("measured", ("hare",))
    assert found.step_s.mean == pytest.approx(0.15)
    assert found.lost_s.mean == pytest.approx(2_000 * 0.05 - 2.0)
    assert found.lost_s.low < found.lost_s.mean < found.lost_s.high


def test_a_node_less_costs_less_by_its_price() -> None:
    run, other = past(measured(TWO, 0.1)), measured(ONE, 0.1, "hare")
    found = replayed(asked(run, other), always(ONE))
    assert found.lost_s.mean == pytest.approx(0.0, abs=1e-6)
    assert found.cost_usd.mean == pytest.approx(run.cost_usd / 2)


def test_what_nobody_measured_is_predicted_with_an_interval() -> None:
    found = replayed(asked(past(measured(TWO, 0.1))), always(cases.plan_on("abc")))
    assert (found.basis, found.measured_in) == ("predicted", ())
    assert found.step_s.low < found.step_s.mean < found.step_s.high


def test_the_prediction_has_learned_from_every_run() -> None:
    own_s = prior_of(measured(TWO, 0.1)).total_s
    run, plan = past(measured(TWO, own_s)), cases.plan_on("abc")
    alone = replayed(asked(run), always(plan)).step_s.mean
    slow = [measured(TWO, 1.15 * own_s, f"hare-{i}") for i in range(6)]
    assert replayed(asked(run, *slow), always(plan)).step_s.mean > 1.03 * alone


def test_a_run_that_another_network_slowed_is_not_taken_for_alike() -> None:
    far = measured(TWO, 0.4, "far", network=cases.network("abc", rtt_s=0.2))
    found = replayed(asked(past(measured(ONE, 0.15)), far), always(TWO))
    assert found.basis == "predicted"


def test_the_time_of_moves_is_left_out_and_that_of_losses_kept() -> None:
    first, second = measured(TWO, 0.1), measured(ONE, 0.15)
    moved = past(first, second, n_starts=1, moving_s=4.0)
    moved = replace(moved, time_s=moved.time_s + 4.0)
    found = replayed(asked(moved), always(TWO))
    assert found.lost_s.mean == pytest.approx(-(2_000 * 0.05 + STARTUP_S + 4.0))
    lost = past(first, second, n_starts=2)
    assert replayed(asked(lost), always(TWO)).lost_s.mean == pytest.approx(-2_000 * 0.05)


def test_only_a_policy_that_moves_is_judged_by_its_first_plan_alone() -> None:
    run = past(measured(TWO, 0.1), measured(ONE, 0.15))
    assert not replayed(asked(run), always(TWO)).is_same
    assert replayed(asked(run), replace(always(TWO), moves=True)).is_same


def test_a_policy_pays_for_what_it_tries_but_not_for_the_profile() -> None:
    run, other = past(measured(TWO, 0.1)), measured(ONE, 0.15, "hare")
    plain = replayed(asked(run, other), always(ONE))
    assert replayed(asked(run, other), always(ONE, ONE)).time_s == plain.time_s
    trying = replayed(asked(run, other), always(ONE, TWO))
    spent_s = trying.time_s.mean - plain.time_s.mean
    assert spent_s == pytest.approx(STARTUP_S + TRIAL_STEPS * 0.1, abs=5.0)
    spent_usd = trying.cost_usd.mean - plain.cost_usd.mean
    assert spent_usd == pytest.approx(2 * RATE * spent_s)


def test_evaluation_follows_computing() -> None:
    def with_evaluation(run: PastRun) -> PastRun:
        work = replace(CASE.work, validation_steps=20)
        return replace(run, situation=replace(CASE, work=work))

    own, other = measured(TWO, 0.1, evaluation_s=2.0), measured(ONE, 0.1, "hare")
    run = with_evaluation(past(own))
    assert ledger(run).evaluation_s == pytest.approx(8.0)
    more = replayed(asked(run, other), always(ONE)).lost_s.mean
    ratio = prior_of(other).compute_s / prior_of(own).compute_s
    assert more == pytest.approx(8.0 * (ratio - 1.0))


def test_a_plan_that_breaks_a_limit_says_so() -> None:
    run = past(measured(TWO, 0.1))
    limits = replace(CASE.limits, budget_usd=run.cost_usd * 1.2, deadline_s=run.time_s * 1.2)
    run = replace(run, situation=replace(CASE, limits=limits))
    slow = asked(run, measured(ONE, 1.0, "hare"))
    assert replayed(slow, always(ONE)).exceeded == ("budget", "deadline")
    assert replayed(slow, always(TWO)).exceeded == ()


def test_half_of_the_work_counts_where_half_was_done() -> None:
    run, other = past(measured(TWO, 0.1, steps=1_000)), measured(ONE, 0.15, "hare")
    assert run.work.epochs == 2.0
    assert replayed(asked(run, other), always(ONE)).lost_s.mean == pytest.approx(1_000 * 0.05)


def test_sums_add_the_bounds() -> None:
    run, other = past(measured(TWO, 0.1)), measured(ONE, 0.15, "hare")
    runs = [replayed(asked(run, other), always(plan)) for plan in (ONE, ONE, TWO)]
    found = total(runs)
    assert (found.n_runs, found.n_same, found.n_measured, found.n_predicted) == (3, 1, 2, 0)
    assert found.lost_s.low == pytest.approx(2 * runs[0].lost_s.low)
    assert found.took_s == pytest.approx(3 * run.time_s)


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_policy_can_be_asked_about_a_run(name: str) -> None:
    both = replace(CASE, limits=Limits())
    seen = (measured(ONE, 0.15, "hare"), measured(TWO, 0.1, "fox"))
    run = past(measured(TWO, 0.1), situation=both, before=seen)
    found = replayed(asked(run, *seen), CONTENDERS[name])
    assert 1 <= found.plan.n_workers <= 3
    assert set(found.plan.nodes) <= set("abc")


def test_rules_choose_as_their_names_say() -> None:
    run = asked(past(measured(TWO, 0.1)))
    assert CONTENDERS["one-worker"].choose(run).plan.n_workers == 1
    assert CONTENDERS["all-nodes"].choose(run).plan.n_workers == 3


def test_the_launcher_knows_what_was_measured_before_and_cold_does_not() -> None:
    slow = tuple(measured(cases.plan_on("abc"), 3.0, f"hare-{i}") for i in range(6))
    slow += tuple(measured(TWO, 2.0, f"fox-{i}") for i in range(6))
    run = asked(past(measured(TWO, 0.1), before=slow))
    assert CONTENDERS["launch"].choose(run).plan.n_workers == 1
    assert CONTENDERS["cold"].choose(run).plan.n_workers == 3
    assert CONTENDERS["prior"].choose(run).plan.n_workers == 3


def test_a_run_that_the_launcher_would_refuse_is_refused() -> None:
    limits = replace(CASE.limits, deadline_s=20.0)
    run = asked(past(measured(TWO, 0.1), situation=replace(CASE, limits=limits)))
    with pytest.raises(NoPlanError, match="left"):
        CONTENDERS["launch"].choose(run)


def test_a_rule_is_asked_within_the_limits() -> None:
    limits = replace(CASE.limits, budget_usd=0.02, objective="cost")
    run = asked(past(measured(TWO, 0.1), situation=replace(CASE, limits=limits)))
    question = run.question()
    assert question.price[Arm(2)] == pytest.approx(2 * 0.3)
    assert question.limit_s[Arm(1)] > question.limit_s[Arm(2)] > question.limit_s[Arm(3)]
    assert asked(past(measured(TWO, 0.1))).question().limit_s == {}


def test_a_table_holds_speedups_by_script_and_latency() -> None:
    far = measured(TWO, 0.4, "far", network=cases.network("abc", rtt_s=0.05))
    near, far_case = table_of([measured(ONE, 0.15), measured(TWO, 0.1), far])
    assert near.speedup == {Arm(1): 1.0, Arm(2): pytest.approx(1.5)}
    assert far_case.rtt_s == pytest.approx(0.05, rel=0.1)
    assert far_case.speedup[Arm(2)] == pytest.approx(prior_of(measured(ONE, 1.0)).total_s / 0.4)


def test_plans_are_alike_up_to_a_half_octave() -> None:
    parts = prior_of(measured(TWO, 0.1))
    assert are_alike(parts, replace(parts, compute_s=parts.compute_s * 1.4))
    assert not are_alike(parts, replace(parts, compute_s=parts.compute_s * 1.5))
    assert are_alike(parts, replace(parts, latency_s=parts.latency_s + 0.01 * parts.total_s))
    assert not are_alike(parts, replace(parts, n_workers=3))


@pytest.mark.parametrize(
    ("change", "flaw"),
    [
        ({"plan": cases.plan_on("az")}, "nodes that its record does not know"),
        ({"workload": cases.workload(kinds=())}, "profiled on no node"),
        ({"step_s": float("nan")}, "steps of nan s"),
        ({"startup_s": -1.0}, "a start-up of -1.0 s"),
        ({"workload": cases.workload(c0_s=0.0, c1_s=0.0)}, "makes no sense"),
        ({"nodes": tuple(cases.node(n, cpus=0.0) for n in "ab")}, "does not know"),
    ],
)
def test_a_segment_that_cannot_be_judged_says_why(change: dict[str, object], flaw: str) -> None:
    segment = replace(measured(ONE, 0.1), **change)
    assert flaw in (flaw_of(segment) or "nothing")
    assert Hindsight([segment]).alike("script-a", prior_of(measured(ONE, 0.1))) == []


def test_a_run_is_judged_by_its_side_of_a_change() -> None:
    case = replace(CASE, network=cases.network("abc", rtt_s=0.02))

    def at(day: int, slower: float) -> Experience:
        plan = (TWO, cases.plan_on("abc"))[day % 2]
        segment = measured(plan, 1.0, f"run-{day}", network=case.network)
        parts = prior_of(segment)
        step_s = (1.0 + 0.03 * (-1) ** (day // 2)) * (parts.compute_s + slower * parts.exchange_s)
        return replace(segment, step_s=step_s, measured_at_s=86_400.0 * day)

    runs = [at(day, 1.0) for day in range(12)] + [at(day, 2.5) for day in range(12, 24)]
    judging, alike = Hindsight(runs), cases.plan_on("bc")
    before, after = (
        replayed(Asked(past(runs[day], situation=case), judging), always(alike)) for day in (3, 21)
    )
    assert set(before.measured_in) <= {f"run-{day}" for day in range(12)}
    assert set(after.measured_in) <= {f"run-{day}" for day in range(12, 24)}
    assert after.step_s.mean > 1.4 * before.step_s.mean
