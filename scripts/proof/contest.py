"""Contenders: what each chooses, what it foresees, and what its trials cost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from policies.bandit import best, choose
from policies.baselines import RULES
from policies.data.sweep import SweepCell, experience_of
from policies.forecast import Forecast, forecast
from policies.paths import paths_between
from policies.question import Arm, Question
from policies.residual import Residual, learn
from policies.robust import Prior
from policies.schema import Experience
from policies.warmth import opened, prior_at_home

from .cells import Sweep, kind_of, network_of
from .problems import Problem
from .scores import Played, Said

# A trial is a start-up and so many steps; no limit of time or money binds.
TRIAL_STEPS: Final = 20
TRIAL_STARTUP_S: Final = 20.0
OURS: Final = "ours"
RUNS: Final = (0, 1, 3, 10)
# Who knows that it is on the sweep's own cluster.
AT_HOME: Final = "ours at home"
RUNS_AT_HOME: Final = (0, 3)
PRIOR: Final = "prior alone"
FLOOR: Final = "noise floor"
# Rules that know one exchange only are also asked where that is `direct`.
OF_ONE_EXCHANGE: Final = ("all nodes", "AdaptDL")
DIRECT: Final = "one_shot"


@dataclass(frozen=True, slots=True)
class World:
    """Runs of arms as they would be measured again: the truth, and noise from run to run."""

    noise: Mapping[str, float]
    seed: int

    def rng(self, problem: Problem) -> np.random.Generator:
        """Its own for each problem, whoever asks."""
        text = f"{problem.workload} {problem.batch} {problem.hosts} {problem.network}"
        return np.random.default_rng([self.seed, *text.encode()])

    def noise_of(self, arm: Arm) -> float:
        """Deviation of the logarithm of a step, from run to run."""
        return self.noise[kind_of(arm)]

    def run_s(self, problem: Problem, arm: Arm, rng: np.random.Generator) -> float:
        """The step that one more run would measure, in seconds."""
        noise = float(rng.normal(0.0, self.noise_of(arm)))
        return problem.truth[arm].step_s * math.exp(noise)


class Trials:
    """Runs arms of a problem for a rule, and counts their price."""

    def __init__(self, problem: Problem, world: World) -> None:
        self._problem, self._world = problem, world
        self._rng = world.rng(problem)
        self.usd = 0.0

    def __call__(self, arm: Arm) -> float:
        """The measured step of an arm, in seconds."""
        step_s = self._world.run_s(self._problem, arm, self._rng)
        held = set(self._problem.nodes_by_arm[arm])
        usd_per_s = sum(self._problem.usd_per_h[i] for i in held) / 3600.0
        self.usd += usd_per_s * (TRIAL_STARTUP_S + TRIAL_STEPS * step_s)
        return step_s


def job_usd(problem: Problem, arm: Arm) -> float:
    """What all steps of a job cost with an arm."""
    usd_per_h = sum(problem.usd_per_h[i] for i in problem.nodes_by_arm[arm])
    return usd_per_h / 3600.0 * problem.steps * problem.truth[arm].step_s


def fastest(problem: Problem) -> Arm:
    """The arm with the shortest measured step."""
    return min(problem.arms, key=lambda arm: problem.truth[arm].step_s)


def by_rule(name: str, problem: Problem, question: Question, world: World) -> Played:
    """A rule of `policies.baselines`."""
    trials = Trials(problem, world)
    answer = RULES[name](question, trials)
    said = {arm: Said(step_s) for arm, step_s in answer.step_s.items()}
    return Played(problem, answer.arm, said, trials.usd / job_usd(problem, fastest(problem)))


def floor(problem: Problem, world: World) -> Played:
    """Someone who has seen every arm run once, and takes the best: nobody can do much better."""
    rng = world.rng(problem)
    seen = {arm: world.run_s(problem, arm, rng) for arm in problem.arms}
    said = {arm: Said(s, world.noise_of(arm)) for arm, s in seen.items()}
    return Played(problem, min(seen, key=lambda arm: seen[arm]), said)


def forecasts(problem: Problem, residual: Residual) -> dict[Arm, Forecast]:
    """What the recommender expects of every arm, where no limit binds."""
    told = problem.situation
    paths = paths_between(told.nodes, told.network)
    plans = {arm: problem.plan(arm) for arm in problem.arms}
    return {
        arm: forecast(plan, told, paths.links_of(plan), residual) for arm, plan in plans.items()
    }


def chosen_of(found: Mapping[Arm, Forecast], forecast_: Forecast) -> Arm:
    """The arm that a forecast is of."""
    return next(arm for arm, each in found.items() if each is forecast_)


def said_of(found: Mapping[Arm, Forecast]) -> dict[Arm, Said]:
    """The forecasts' steps."""
    return {arm: Said(each.step.mean, each.step.sigma) for arm, each in found.items()}


def ours(
    problem: Problem, prior: Prior | None, world: World, runs: Sequence[int] = RUNS
) -> Iterator[tuple[int, Played]]:
    """The recommender cold (after 0 runs) and after runs of the same script on the same cluster.

    Each run is of what it chooses itself, its Thompson sampling included. A choice that it does
    not think the best counts as exploring, with what it lost by the measured steps.
    """
    told, rng = problem.situation, world.rng(problem)
    seen: list[Experience] = []
    spent = 0.0
    for run in range(max(runs) + 1):
        found = forecasts(problem, learn(told, seen, prior))
        greedy = chosen_of(found, best(list(found.values()), "time"))
        if run in runs:
            yield run, Played(problem, greedy, said_of(found), spent, found)
        arm = chosen_of(found, choose(list(found.values()), told.limits, run + 1))
        lost_usd = job_usd(problem, arm) - job_usd(problem, greedy)
        spent += max(0.0, lost_usd) / job_usd(problem, fastest(problem))
        step_s = world.run_s(problem, arm, rng)
        seen.append(problem.experience(arm, step_s, f"run {run}"))


def prior_alone(problem: Problem) -> Played:
    """The cost model without any experience."""
    found = forecasts(problem, learn(problem.situation, ()))
    greedy = chosen_of(found, best(list(found.values()), "time"))
    return Played(problem, greedy, said_of(found), forecasts=found)


@dataclass(frozen=True, slots=True)
class Fold:
    """Problems that are held out, those that a table may hold, and the rows to learn from."""

    held_out: tuple[Problem, ...]
    shown: tuple[Problem, ...]
    rows: tuple[SweepCell, ...]

    def with_arms(self, exchanges: Sequence[str]) -> "Fold":
        """The same with arms of some exchanges only, and one worker."""
        held_out, shown = (
            tuple(problem.with_arms(exchanges) for problem in problems)
            for problems in (self.held_out, self.shown)
        )
        return replace(self, held_out=held_out, shown=shown)

    @property
    def prior(self) -> Prior | None:
        """What is believed after the rows by who knows that it is on their cluster."""
        return prior_at_home(experience_of(self.rows))


def without_workloads(problems: Sequence[Problem], sweep: Sweep) -> list[Fold]:
    """Each workload left out in turn."""
    folds = []
    for name in dict.fromkeys(problem.workload for problem in problems):
        rows = tuple(row for row in sweep.rows if row.workload != name)
        folds.append(_fold(problems, [p.workload == name for p in problems], rows))
    return folds


def without_networks(problems: Sequence[Problem], sweep: Sweep) -> list[Fold]:
    """Each network left out in turn: everything that several workers did on it."""
    folds = []
    for each in dict.fromkeys(problem.network for problem in problems):
        rows = tuple(row for row in sweep.rows if row.n == 1 or network_of(row) != each)
        folds.append(_fold(problems, [p.network == each for p in problems], rows))
    return folds


def _fold(problems: Sequence[Problem], is_out: Sequence[bool], rows: tuple[SweepCell, ...]) -> Fold:
    pairs = list(zip(problems, is_out, strict=True))
    return Fold(tuple(p for p, out in pairs if out), tuple(p for p, out in pairs if not out), rows)


def played(fold: Fold, prior: Prior | None, world: World) -> dict[str, list[Played]]:
    """All contenders on the problems that a fold holds out.

    Args:
        fold: the problems, and those that a table may hold.
        prior: what is believed on the sweep's own cluster; what ships is that, opened again.
        world: what runs take.
    """
    table = [problem.case() for problem in fold.shown]
    found: dict[str, list[Played]] = {}

    def add(name: str, each: Played) -> None:
        found.setdefault(name, []).append(each)

    for problem in fold.held_out:
        add(FLOOR, floor(problem, world))
        for run, each in ours(problem, None if prior is None else opened(prior), world):
            add(name_after(run), each)
        if prior is not None:
            for run, each in ours(problem, prior, world, RUNS_AT_HOME):
                add(name_after(run, AT_HOME), each)
        add(PRIOR, prior_alone(problem))
        for name in RULES:
            add(name, by_rule(name, problem, problem.question(table), world))
        directly = problem.with_arms((DIRECT,))
        if len(directly.arms) not in {1, len(problem.arms)}:
            for name in OF_ONE_EXCHANGE:
                each = by_rule(name, directly, directly.question(table), world)
                add(f"{name}, direct", replace(each, problem=problem))
    return found


def name_after(run: int, who: str = OURS) -> str:
    """What the recommender is called after so many runs."""
    if run == 0:
        return f"{who}, cold"
    return f"{who}, {run} run" + "s" * (run > 1)
