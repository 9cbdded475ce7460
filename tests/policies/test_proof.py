"""The benchmark of choices: its cells, problems, scores and prices."""

import math
from dataclasses import replace

import pytest

from policies.question import Arm
from policies.residual import learn
from scripts.proof.big_clusters import choices
from scripts.proof.cells import Truth, network_of, sweep_of
from scripts.proof.contest import (
    FLOOR,
    Trials,
    World,
    by_rule,
    floor,
    forecasts,
    name_after,
    ours,
    prior_alone,
    without_networks,
    without_workloads,
)
from scripts.proof.contest import played as played_by_all
from scripts.proof.markdown import document
from scripts.proof.money import Taken, Task, by_forecasts, rest_s, tasks_of
from scripts.proof.problems import ALL_REDUCE_ONLY, problems_of
from scripts.proof.scores import Played, Said, estimate, score
from scripts.proof.synthetic import UNEQUAL, synthetic
from scripts.proof.tables import choice_goals, choice_table


@pytest.fixture(scope="module")
def sweep():
    return sweep_of(synthetic(1, ("small_cnn", "lstm")))


@pytest.fixture(scope="module")
def problems(sweep):
    return problems_of(sweep)


@pytest.fixture
def problem(problems):
    return next(p for p in problems if p.hosts != UNEQUAL and p.workload == "small_cnn")


def with_truth(problem, **step_s_by_n):
    """The problem with these steps of the all-reduce, each 3 % off."""
    truth = {Arm(int(name[1:])): Truth(s, 0.03) for name, s in step_s_by_n.items()}
    return replace(problem.with_arms(ALL_REDUCE_ONLY), truth=truth)


def played(problem, n, said=None, spent=0.0):
    return Played(problem, Arm(n), said or {}, spent)


def test_the_noise_is_pooled_over_cells_that_were_measured_again(sweep):
    row = next(row for row in sweep.rows if row.n == 2 and row.algorithm is None)
    other = replace(row, batch=row.batch + 1, mean_s=1.0)
    again = [replace(row, mean_s=s) for s in (1.0, math.exp(0.2))]
    found = sweep_of([*again, other])
    assert found.noise == {"allreduce": pytest.approx(0.2 / math.sqrt(2))}
    first, second = found.truth.values()
    assert first == Truth(pytest.approx(math.exp(0.1)), pytest.approx(0.1))
    assert second.error == pytest.approx(0.2 / math.sqrt(2))


def test_a_problem_has_every_arm_on_the_hosts_that_it_was_measured_on(problems):
    unequal = next(p for p in problems if p.hosts == UNEQUAL)
    assert unequal.nodes_by_arm[Arm(1)] == (0,)
    assert unequal.nodes_by_arm[Arm(2)] == (0, 3)
    assert unequal.nodes_by_arm[Arm(4, "one_shot")] == (0, 1, 2, 3)
    assert unequal.plan(Arm(2)).nodes == ("n0", "n3")
    assert len(unequal.arms) == 7
    assert len(problems) == 2 * 2 * 2 * 6


def test_exchanges_of_which_some_n_is_missing_are_left_out(sweep):
    cells = {c: t for c, t in sweep.truth.items() if c.arm != Arm(3, "one_shot")}
    found = problems_of(replace(sweep, truth=cells))
    assert {arm.exchange for p in found for arm in p.arms} == {"allreduce"}


def test_a_part_of_a_sweep_has_problems_on_as_many_hosts_as_it_came_to(sweep):
    rows = [row for row in sweep.rows if row.n == 1 or (row.n == 2 and row.workload == "lstm")]
    part = sweep_of([row for row in rows if row.strategy == "allreduce"])
    found = problems_of(part)
    assert {p.hosts for p in found} == {(0.45, 0.45), (0.6, 0.2)}
    (fold,) = without_workloads(found[:2], part)
    assert fold.prior is None
    plays = played_by_all(fold, fold.prior, World(part.noise, 0))
    assert all(each.arm in found[0].truth for each in plays["nearest neighbour"])
    assert problems_of(sweep_of([row for row in rows if row.n == 1])) == ()


def test_a_fold_shows_nothing_of_what_it_holds_out(problems, sweep):
    for fold in without_workloads(problems, sweep):
        out = {p.workload for p in fold.held_out}
        assert not out & {p.workload for p in fold.shown}
        assert not out & {row.workload for row in fold.rows}
    folds = without_networks(problems, sweep)
    for fold in folds:
        out = {p.network for p in fold.held_out}
        assert not out & {p.network for p in fold.shown}
        assert not out & {network_of(row) for row in fold.rows if row.n > 1}
    assert sum(len(fold.held_out) for fold in folds) == len(problems)


def test_a_choice_within_the_noise_of_the_best_is_a_hit(problem):
    case = with_truth(problem, n1=1.0, n2=1.04, n4=1.05)
    near, far = played(case, 2), played(case, 4)
    assert near.is_best and not far.is_best
    assert far.regret == pytest.approx(0.05)
    assert score("any", [near]).strict.value == 0.0


def test_errors_and_intervals_are_of_several_workers_only(problem):
    case = with_truth(problem, n1=1.0, n2=0.5, n4=0.4)
    said = {Arm(1): Said(9.0, 0.1), Arm(2): Said(0.55, 0.1), Arm(4): Said(0.6, 0.1)}
    each = played(case, 2, said)
    assert each.errors == pytest.approx([0.1, 0.5])
    assert each.held == [1.0, 0.0]
    assert each.chosen_error == pytest.approx([0.1])


def test_intervals_are_drawn_again_by_whole_workloads(problems):
    plays = [played(p, 1) for p in problems]
    by_name = estimate(plays, lambda p: [float(p.problem.workload == "lstm")])
    assert by_name.value == 0.5
    assert (by_name.low, by_name.high) == (0.0, 1.0)
    flat = estimate(plays, lambda p: [1.0])
    assert (flat.low, flat.high) == (1.0, 1.0)


def test_trials_cost_their_nodes_for_a_start_and_some_steps(problem, sweep):
    trials = Trials(problem, World(sweep.noise, 0))
    step_s = trials(Arm(3))
    assert trials.usd == pytest.approx(3 * 0.1 / 3600 * (20.0 + 20 * step_s))


def test_all_contenders_choose_measured_arms(problem, sweep):
    world = World(sweep.noise, 0)
    found = [each for _, each in ours(problem, None, world)]
    found += [prior_alone(problem), floor(problem, world)]
    found.append(by_rule("Ernest", problem, problem.question(), world))
    assert len(found) == 4 + 3
    for each in found:
        assert each.arm in problem.truth
        assert each.regret >= 0.0
    assert found[0].spent == 0.0 < found[-1].spent
    assert found[3].chosen_error[0] < 0.15  # after ten runs of the same script


def test_a_budget_leaves_the_longer_room_the_cheaper_the_nodes(problem):
    task = Task(replace(problem, usd_per_h=(0.0, 0.1, 0.1, 0.1)), "time", 0.2)
    assert task.room_s(Arm(1)) == math.inf
    assert task.room_s(Arm(3)) == pytest.approx(3600.0)
    assert Task(problem, "cost", 77.0).room_s(Arm(3)) == 77.0


def test_what_was_taken_for_fitting_and_overran_is_counted(problem):
    task = Task(problem, "cost", 100.0)
    seconds = {Arm(1): 90.0, Arm(2): 110.0, Arm(3): 60.0}
    assert Taken(task, Arm(2), seconds).overran == [1.0]
    assert Taken(task, None, seconds).overran == []
    assert Taken(task, None, seconds).solved == [0.0]
    kept = Taken(task, Arm(3), seconds)
    assert (kept.overran, kept.solved) == ([0.0], [1.0])
    assert kept.regret == pytest.approx([1.0])  # three nodes for 60 s instead of one for 90 s


def test_the_recommender_takes_nothing_that_may_not_fit(problem):
    found = forecasts(problem, learn(problem.situation, ()))
    assert by_forecasts(Task(problem, "cost", 1.0), found) is None
    roomy = Task(problem, "cost", 10 * 3600.0)
    assert by_forecasts(roomy, found) == Arm(1)  # the cheapest, as it need not hurry


def test_tasks_have_deadlines_over_the_fastest_job_and_budgets_over_its_cost(problem):
    tasks = tasks_of(problem, 0)
    assert {task.objective for task in tasks} == {"cost", "time"}
    fastest_s = min(
        rest_s(problem, arm) + problem.steps * truth.step_s for arm, truth in problem.truth.items()
    )
    assert min(t.limit for t in tasks if t.objective == "cost") >= fastest_s


def test_a_choice_on_a_made_up_cluster_is_no_better_than_the_best_known():
    found = list(choices((10,), (1,)))
    assert len(found) == 9
    assert all(each.regret >= 0.0 and each.decision_s > 0.0 for each in found)


def test_goals_must_be_met_in_every_table_and_name_whoever_is_as_good(problem):
    case = with_truth(problem, n1=1.0, n2=0.5, n4=0.4)
    good = {name_after(run): [played(case, 4)] for run in (0, 3)} | {FLOOR: [played(case, 4)]}
    rivals = {"Ernest": [played(case, 4)], "Jansen": [played(case, 2)]}
    bad = {key: [played(case, 1)] for key in good}
    tables = {
        title: {name: score(name, plays) for name, plays in (mine | rivals).items()}
        for title, mine in (("one", good), ("other", bad))
    }
    first = {goal.name: goal for goal in choice_goals({"one": tables["one"]})}
    assert first["hit_cold"].met
    assert "hits Ernest;" in first["better_than_rivals_cold"].value
    both = {goal.name: goal for goal in choice_goals(tables)}
    assert not both["hit_cold"].met
    assert str(both["hit_cold"]).endswith("(target >= 85 %) missed")


def test_tables_have_a_line_for_each_contender(problem):
    case = with_truth(problem, n1=1.0, n2=0.5)
    scores = [score(name, [played(case, n)]) for name, n in (("a rule", 1), ("another", 2))]
    lines = choice_table("few", scores).splitlines()
    assert lines[0] == "few: 1 choices"
    assert [line.split("  ")[0] for line in lines[-2:]] == ["a rule", "another"]


def test_a_document_holds_all_tables_and_says_what_was_missed(problem):
    case = with_truth(problem, n1=1.0, n2=0.5)
    scores = {name_after(run): score(name_after(run), [played(case, 1)]) for run in (0, 3)}
    scores[FLOOR] = score(FLOOR, [played(case, 2)])
    text = document("of 2 cells", {"one": scores}, {}, [], choice_goals({"one": scores}))
    assert "### One" in text and "| ours, cold | 0 % (0) |" in text
    assert "| hit cold | >= 85 % |" in text and "**missed**" in text
    widths = {
        line.count(" | ") for line in text.split("### One")[1].split("###")[0].splitlines() if line
    }
    assert len(widths) == 1
