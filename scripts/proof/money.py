"""The same choices where money or a deadline binds: what they cost, and which would have overrun.

A job's time is its start-up and its way down as the cost model says, which the sweep did not
measure, and its steps as measured, with the noise of one more run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from policies.bandit import P_FITS, best
from policies.baselines import RULES, Case
from policies.constants import CONSTANTS, S_PER_H
from policies.cost_model import checkpoints_s
from policies.forecast import Forecast
from policies.question import Arm
from policies.schema import Objective
from policies.startup import startup_parts

from .contest import Trials, World
from .problems import Problem
from .scores import Estimate, Played, estimate

# Dollars per hour of four hosts: on demand, a spot price of a third, or a node of one's own.
ON_DEMAND, SPOT, OWN = 0.1, 0.03, 0.0
PRICES: Final = (
    (ON_DEMAND, ON_DEMAND, ON_DEMAND, ON_DEMAND),
    (OWN, SPOT, ON_DEMAND, ON_DEMAND),
    (ON_DEMAND, SPOT, SPOT, ON_DEMAND),
)
# Deadlines over the fastest job's time; budgets over its cost.
DEADLINES: Final = (1.1, 1.5, 3.0)
BUDGETS: Final = (0.7, 1.1, 2.0)
NO_PRICE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Task:
    """A problem with prices, and a deadline in seconds or a budget in dollars that binds."""

    problem: Problem
    objective: Objective
    limit: float

    def usd_per_h(self, arm: Arm) -> float:
        """Price of an arm's nodes."""
        return sum(self.problem.usd_per_h[i] for i in self.problem.nodes_by_arm[arm])

    def room_s(self, arm: Arm) -> float:
        """The longest time of an arm's job that the limit allows, in seconds."""
        if self.objective == "cost":
            return self.limit
        usd_per_h = self.usd_per_h(arm)
        return self.limit / usd_per_h * S_PER_H if usd_per_h > 0.0 else math.inf

    def loss(self, arm: Arm, job_s: float) -> float:
        """What the objective counts: seconds, or dollars."""
        return job_s if self.objective == "time" else job_s * self.usd_per_h(arm) / S_PER_H


def rest_s(problem: Problem, arm: Arm) -> float:
    """What a job takes besides its steps, as the cost model says."""
    told = problem.situation
    starting = startup_parts(problem.plan(arm), told.nodes, problem.load).total_s
    training_s = problem.steps * problem.truth[arm].step_s
    saving_s = checkpoints_s(training_s, told.work, problem.load.weights_bytes)
    return starting + saving_s + CONSTANTS.release_s


def job_s(problem: Problem, arm: Arm, step_s: float) -> float:
    """Time of a whole job with this step."""
    return rest_s(problem, arm) + problem.steps * step_s


def tasks_of(problem: Problem, number: int) -> list[Task]:
    """Cheapest within a deadline, and fastest within a budget; prices differ by `number`."""
    prices = PRICES[number % len(PRICES)][: len(problem.hosts)]
    priced = replace(problem, usd_per_h=prices)
    times = {arm: job_s(priced, arm, truth.step_s) for arm, truth in priced.truth.items()}
    fastest = min(times, key=lambda arm: times[arm])
    usd = Task(priced, "time", 0.0).usd_per_h(fastest) * times[fastest] / S_PER_H
    found = [Task(priced, "cost", factor * times[fastest]) for factor in DEADLINES]
    return found + [Task(priced, "time", factor * usd) for factor in BUDGETS if usd > 0.0]


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of a task; `arm` is None where a contender found nothing that fits.

    `seconds` are what one more run of each arm would take.
    """

    task: Task
    arm: Arm | None
    seconds: Mapping[Arm, float]

    @property
    def problem(self) -> Problem:
        """Whose task it is."""
        return self.task.problem

    def fits(self, arm: Arm) -> bool:
        """Whether an arm would have kept the limit."""
        return self.seconds[arm] <= self.task.room_s(arm)

    @property
    def overran(self) -> list[float]:
        """1 if the plan that was taken for fitting would have overrun, else 0."""
        return [] if self.arm is None else [float(not self.fits(self.arm))]

    @property
    def solved(self) -> list[float]:
        """1 if a plan was taken that kept the limit, where there is one."""
        if not any(self.fits(arm) for arm in self.seconds):
            return []
        return [float(self.arm is not None and self.fits(self.arm))]

    @property
    def regret(self) -> list[float]:
        """Loss over the best that kept the limit, minus one, of plans that kept it.

        Where the best costs nothing, what is lost counts in parts of a node's price on demand.
        """
        if self.arm is None or not self.fits(self.arm):
            return []
        loss = {a: self.task.loss(a, s) for a, s in self.seconds.items() if self.fits(a)}
        least = min(loss.values())
        scale = least if least > 0.0 else ON_DEMAND * self.seconds[self.arm] / S_PER_H
        return [(loss[self.arm] - least) / scale]


def runs_s(task: Task, world: World) -> dict[Arm, float]:
    """What one more run of each arm would take, in seconds."""
    problem = task.problem
    rng = world.rng(problem)
    return {arm: job_s(problem, arm, world.run_s(problem, arm, rng)) for arm in problem.arms}


def by_forecasts(task: Task, forecasts: Mapping[Arm, Forecast]) -> Arm | None:
    """The recommender's choice; nothing where none fits with 90 %."""
    priced = {
        arm: replace(
            each,
            usd_per_h=task.usd_per_h(arm),
            p_fits=each.time.p_at_most(task.room_s(arm)),
        )
        for arm, each in forecasts.items()
    }
    chosen = best(list(priced.values()), task.objective)
    if chosen.p_fits < P_FITS:
        return None
    return next(arm for arm, each in priced.items() if each is chosen)


def by_rule(name: str, task: Task, table: Sequence[Case], world: World) -> Arm | None:
    """A rule's choice; nothing where its own model says that it does not fit."""
    problem = task.problem
    limit_s = {
        arm: max((task.room_s(arm) - rest_s(problem, arm)) / problem.steps, NO_PRICE)
        for arm in problem.arms
    }
    price = dict.fromkeys(problem.arms, 1.0)
    if task.objective == "cost":
        price = {arm: max(task.usd_per_h(arm), NO_PRICE) for arm in problem.arms}
    asked = problem.question(table, price=price, limit_s=limit_s)
    answer = RULES[name](asked, Trials(problem, world))
    return answer.arm if answer.step_s.get(answer.arm, 0.0) <= limit_s[answer.arm] else None


@dataclass(frozen=True, slots=True)
class MoneyScore:
    """A contender's line; fractions."""

    name: str
    n_plans: int
    overran: Estimate
    solved: Estimate
    regret: Estimate
    worst: float


def money_score(name: str, taken: Sequence[Taken]) -> MoneyScore:
    """All figures of a contender."""
    worst = [x for each in taken for x in each.regret]
    return MoneyScore(
        name,
        sum(each.arm is not None for each in taken),
        estimate(taken, lambda each: each.overran),
        estimate(taken, lambda each: each.solved),
        estimate(taken, lambda each: each.regret),
        max(worst, default=math.nan),
    )


def played_for_money(
    by_name: Mapping[str, Sequence[Played]],
    tables: Mapping[str, Sequence[Case]],
    world: World,
) -> dict[str, list[Taken]]:
    """Every contender on every task; those with forecasts by them, the rules of baselines anew.

    `tables` are what a table holds when a workload is held out, by its name.
    """
    found: dict[str, list[Taken]] = {}
    for name, plays in by_name.items():
        for number, each in enumerate(plays):
            for task in tasks_of(each.problem, number):
                if each.forecasts:
                    arm = by_forecasts(task, each.forecasts)
                elif name in RULES:
                    arm = by_rule(name, task, tables[each.problem.workload], world)
                else:
                    continue
                found.setdefault(name, []).append(Taken(task, arm, runs_s(task, world)))
    return found
