"""How good the recommender's choices are on measured cells that it was not shown.

The sweep's cells (`policies/data/sweep.csv`) are held out a workload at a time, and a network at
a time; the recommender learns from the rest, as it ships with them, and chooses for what was held
out; so do the rules of `policies.baselines`. Then the same where money or a deadline binds, and on
made-up clusters of up to 1,000 nodes. docs/policy.md says what the figures mean.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from proof.big_clusters import NETWORKS, QUICK_SIZES, SIZES, SizeScore, choices, size_scores
from proof.cells import Sweep, sweep_of
from proof.contest import (
    PRIOR,
    Fold,
    World,
    name_after,
    played,
    without_networks,
    without_workloads,
)
from proof.figures import predicted_against_measured, pyplot, regrets
from proof.markdown import document
from proof.money import MoneyScore, money_score, played_for_money
from proof.problems import ALL_REDUCE_ONLY, Problem, problems_of
from proof.scores import Played, Score, score
from proof.synthetic import synthetic
from proof.tables import (
    Goal,
    Tables,
    choice_goals,
    choice_table,
    money_goals,
    money_table,
    size_table,
)
from threadpoolctl import threadpool_limits

from policies.data.sweep import read_cells
from policies.residual import learn

SWEEP = Path(__file__).resolve().parent.parent / "policies" / "data" / "sweep.csv"
SEED = 1
QUICK_SHARE = 8  # with --quick one held-out choice in so many is made
FIRST_S, DECISION_S, FIT_S, N_RECORDS = 1.0, 0.05, 1.0, 10_000
WORKLOADS, NETWORKS_OUT = "workloads held out", "networks held out"
RINGS = f"{WORKLOADS}, all-reduce only"
Plays = dict[str, list[Played]]


def main() -> int:
    _one_thread()
    options = _options()
    if not options.synthetic and not options.sweep.exists():
        print(
            f"There is no sweep at {options.sweep}. Measure one with scripts/sweep.py, or try the "
            "benchmark on made-up cells with --synthetic.",
            file=sys.stderr,
        )
        return 2
    rows = synthetic(SEED) if options.synthetic else read_cells(options.sweep.read_text())
    sweep = sweep_of(rows)
    problems = problems_of(sweep)
    print(_about(sweep, problems))
    if not problems:
        print("Nothing to choose from: no case has one worker and all others measured.")
        return 2
    plays = _all_plays(problems, sweep, quick=options.quick, shown=not options.unshown)
    tables = {
        title: {name: score(name, each) for name, each in by_name.items()}
        for title, by_name in plays.items()
    }
    money = _money(plays[WORKLOADS], World(sweep.noise, SEED), problems)
    counts, seeds = (QUICK_SIZES, (1,)) if options.quick else (SIZES, (1, 2))
    sizes = size_scores(list(choices(counts, seeds)))
    goals = _show(tables, money, sizes, problems)
    if options.figures:
        _draw(options.figures, plays[WORKLOADS], list(tables[WORKLOADS].values()))
    if options.markdown:
        text = document(_about(sweep, problems), tables, money, sizes, goals)
        options.markdown.write_text(text, encoding="utf-8")
    if options.json:
        numbers = {
            "choices": {t: {n: asdict(s) for n, s in x.items()} for t, x in tables.items()},
            "money": {t: {n: asdict(s) for n, s in x.items()} for t, x in money.items()},
            "sizes": [asdict(each) for each in sizes],
            "goals": [asdict(goal) for goal in goals],
        }
        options.json.write_text(json.dumps(numbers, indent=2))
    return 0 if all(goal.met for goal in goals) else 1


def _show(
    tables: Tables,
    money: Mapping[str, Mapping[str, MoneyScore]],
    sizes: Sequence[SizeScore],
    problems: Sequence[Problem],
) -> list[Goal]:
    """Print all tables, then the goals."""
    for title, scores in tables.items():
        print("\n" + choice_table(title, list(scores.values())))
    for title, by_name in money.items():
        print("\n" + money_table(title, list(by_name.values())))
    print("\n" + size_table(sizes))
    print(f"({', '.join(NETWORKS)}; see scripts/proof/big_clusters.py for what is assumed)\n")
    judged = {title: tables[title] for title in (WORKLOADS, NETWORKS_OUT)}
    goals = [
        *choice_goals(judged),
        *money_goals(money),
        *_speed_goals(sizes[-1], problems),
    ]
    for goal in goals:
        print(goal)
    return goals


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one choice in eight, fewer sizes")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--sweep", type=Path, default=SWEEP, help="the measured cells, a CSV file")
    parser.add_argument(
        "--unshown", action="store_true", help="ours learns from no cell, only from its own runs"
    )
    parser.add_argument("--synthetic", action="store_true", help="made-up cells instead")
    parser.add_argument("--figures", type=Path, help="draw pictures into this folder")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    return parser.parse_args()


def _about(sweep: Sweep, problems: Sequence[Problem]) -> str:
    floors = ", ".join(f"{name} {100 * x:.1f} %" for name, x in sorted(sweep.noise.items()))
    return (
        f"{len(sweep.rows)} measurements of {len(sweep.truth)} cells; {len(problems)} choices of "
        f"{len({p.workload for p in problems})} workloads on "
        f"{len({p.network for p in problems})} networks.\n"
        f"Noise floor, from run to run of one cell: {floors}"
    )


def _all_plays(
    problems: Sequence[Problem], sweep: Sweep, *, quick: bool, shown: bool
) -> dict[str, Plays]:
    """All contenders on all folds, by what is held out; in as many processes as there are CPUs."""
    folds = {
        WORKLOADS: without_workloads(problems, sweep),
        NETWORKS_OUT: without_networks(problems, sweep),
    }
    jobs = [
        (title, _thinned(fold) if quick else fold, World(sweep.noise, SEED), shown)
        for title, found in folds.items()
        for fold in found
    ]
    every: dict[str, Plays] = {}
    with ProcessPoolExecutor(initializer=_one_thread) as pool:
        for plays in pool.map(_play, jobs):
            for title, by_name in plays.items():
                for name, each in by_name.items():
                    every.setdefault(title, {}).setdefault(name, []).extend(each)
    return every


def _play(job: tuple[str, Fold, World, bool]) -> dict[str, Plays]:
    """A fold; those that leave workloads out also with arms of the all-reduce alone."""
    title, fold, world, shown = job
    prior = fold.prior if shown else None
    found = {title: played(fold, prior, world)}
    if title == WORKLOADS:
        found[RINGS] = played(fold.with_arms(ALL_REDUCE_ONLY), prior, world)
    return found


def _one_thread() -> None:
    """Matrices are too small to be worth several threads, which would wait for each other."""
    threadpool_limits(1)


def _thinned(fold: Fold) -> Fold:
    return replace(fold, held_out=fold.held_out[::QUICK_SHARE])


def _money(
    plays: Plays, world: World, problems: Sequence[Problem]
) -> dict[str, dict[str, MoneyScore]]:
    """Scores of every contender where a deadline binds, and where a budget does."""
    cases = [(each.workload, each.case()) for each in problems]
    tables = {held_out: [case for name, case in cases if name != held_out] for held_out, _ in cases}
    taken = played_for_money(plays, tables, world)
    titles = {"cost": "Cheapest within a deadline", "time": "Fastest within a budget"}
    return {
        title: {
            name: money_score(name, [each for each in found if each.task.objective == objective])
            for name, found in taken.items()
        }
        for objective, title in titles.items()
    }


def _speed_goals(largest: SizeScore, problems: Sequence[Problem]) -> list[Goal]:
    times_s = [
        (f"first_decision_on_{largest.n_nodes}_nodes", largest.first_s, FIRST_S),
        (f"decision_on_{largest.n_nodes}_nodes", largest.again_s, DECISION_S),
        (f"fit_of_{N_RECORDS}_records", _fit_s(problems), FIT_S),
    ]
    return [
        Goal(name, f"{1e3 * took_s:.0f} ms of CPU", f"< {1e3 * most_s:.0f} ms", took_s < most_s)
        for name, took_s, most_s in times_s
    ]


def _fit_s(problems: Sequence[Problem]) -> float:
    """CPU time to learn from 10,000 records of the held-out cells, in seconds."""
    rng = np.random.default_rng(SEED)
    cells = [(problem, arm) for problem in problems for arm in problem.arms]
    records = []
    for i in rng.integers(0, len(cells), N_RECORDS):
        problem, arm = cells[i]
        step_s = problem.truth[arm].step_s * float(np.exp(rng.normal(0.0, 0.05)))
        records.append(problem.experience(arm, step_s, f"run {len(records)}"))
    start_s = time.process_time()
    learn(problems[0].situation, records)
    return time.process_time() - start_s


def _draw(folder: Path, plays: Plays, scores: Sequence[Score]) -> None:
    plt = pyplot()
    if plt is None:
        print("No pictures: matplotlib is missing. pip install -c constraints.txt -e '.[bench]'")
        return
    panels = {name: plays[name] for name in (PRIOR, name_after(0), name_after(3))}
    predicted_against_measured(plt, panels, folder / "predicted_against_measured.png")
    regrets(plt, scores, folder / "regret_by_policy.png")
    print(f"pictures in {folder}")


if __name__ == "__main__":
    sys.exit(main())
