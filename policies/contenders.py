"""Every policy by its name, each asked about a past run in the same way."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from policies.baselines import RULES
from policies.candidates import strategies
from policies.cost_model import evaluation_s, step_parts
from policies.forecast import Forecast, room_s
from policies.hindsight import Hindsight, Judged
from policies.past import PastRun, sound
from policies.paths import Paths, paths_between
from policies.question import ALLREDUCE, Arm, Case, Question, RingLink, Rule
from policies.recommend import recommend
from policies.rows import prior_of
from policies.schema import Experience, Plan
from policies.survey import Survey, survey

# Nothing is nearer or faster, for logarithms.
LEAST_RTT_S: Final = 1e-5
LEAST_STEP_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy would have chosen, and the plans that it would have tried before."""

    plan: Plan
    tried: tuple[Plan, ...] = ()


class Asked:
    """A past run as policies are asked about it: with what was known when it was decided.

    Args:
        past: the run.
        hindsight: answers for plans that a policy wants to try.
    """

    def __init__(self, past: PastRun, hindsight: Hindsight) -> None:
        self.past, self.hindsight = past, hindsight

    @cached_property
    def paths(self) -> Paths:
        """Between the run's nodes."""
        return paths_between(self.past.situation.nodes, self.past.situation.network)

    @cached_property
    def survey(self) -> Survey:
        """The best plan of each n, by what was known then."""
        return survey(self.past.situation, self.past.before, self.hindsight.prior)

    @cached_property
    def forecast_by_arm(self) -> dict[Arm, Forecast]:
        """The best plan of every n with every way to exchange gradients."""
        found: dict[Arm, Forecast] = {}
        for n in self.survey.all_forecasts():
            for strategy in strategies(self.survey.situation, n):
                best = self.survey.best_of(n, [strategy])
                if best is not None:
                    found[Arm(n, strategy)] = best
        return found

    def judged(self, plan: Plan) -> Judged:
        """What a plan would have taken, by all that is known now."""
        return self.hindsight.judge(self.past, plan, self.paths)

    def question(self) -> Question:
        """The run as a rule sees it."""
        situation, by_arm = self.survey.situation, self.forecast_by_arm
        by_cost = situation.limits.objective == "cost"
        away_s = self.paths.default.links.one_way_s
        return Question(
            arms=tuple(by_arm),
            batch=situation.work.global_batch,
            payload_bytes=situation.workload.payload_bytes,
            rtt_s=max(2.0 * float(away_s.max()), LEAST_RTT_S),
            alone_s=self._alone_s,
            links_for=self._links_for,
            table=tuple(table_of(self.past.before)),
            price={arm: f.usd_per_h for arm, f in by_arm.items()} if by_cost else {},
            limit_s={arm: s for arm, f in by_arm.items() if (s := self._limit_s(f)) is not None},
        )

    def _alone_s(self, rows: float) -> float:
        """A step of one worker on so many rows, as profiled."""
        situation, plan = self.survey.situation, self.forecast_by_arm[Arm(1)].plan
        links, batch = self.paths.links_of(plan), max(1, round(rows))
        return step_parts(plan, situation.nodes, links, situation.workload, batch).total_s

    def _links_for(self, n_workers: int) -> list[RingLink]:
        """The ring of n workers that the launcher would have taken."""
        arms = sorted(arm for arm in self.forecast_by_arm if arm.n_workers == n_workers)
        plan = self.forecast_by_arm[arms[0]].plan
        path = self.paths.of(plan)
        ends = zip(path.one_way_s(plan.nodes), path.s_per_byte(plan.nodes), strict=True)
        return [RingLink(float(latency_s), 1.0 / float(inverse)) for latency_s, inverse in ends]

    def _limit_s(self, of: Forecast) -> float | None:
        """The longest step with which a plan keeps budget and deadline, where there are any."""
        work = self.survey.situation.work
        room = room_s(self.survey.situation, of.usd_per_h, of.lingering_usd)
        if math.isinf(room):
            return None
        n_steps = work.steps + evaluation_s(of.parts, work) / of.parts.total_s
        beside_s = of.time.mean - n_steps * of.step.mean
        return max((room - beside_s) / max(n_steps, 1.0), LEAST_STEP_S)


def table_of(before: Sequence[Experience]) -> Iterator[Case]:
    """Earlier runs as cases: speed-ups over one worker, by script, batch and latency."""
    places: dict[tuple[str, int, int], list[Experience]] = {}
    for each in sound(before):
        half_octave = round(2.0 * math.log2(_rtt_s(each)))
        key = each.workload.fingerprint, each.global_batch, half_octave
        places.setdefault(key, []).append(each)
    for (_, batch, _), found in places.items():
        yield Case(batch, _rtt_s(found[0]), _speedups(found))


def _rtt_s(each: Experience) -> float:
    """Round trip between the farthest nodes."""
    away_s = paths_between(each.nodes, each.network).default.links.one_way_s
    return max(2.0 * float(away_s.max()), LEAST_RTT_S)


def _speedups(found: Sequence[Experience]) -> dict[Arm, float]:
    """By the means of measured steps; one worker's is what its profile says until measured."""
    steps_s: dict[Arm, list[float]] = {}
    for each in found:
        n = each.plan.n_workers
        steps_s.setdefault(Arm(n, ALLREDUCE if n == 1 else each.plan.strategy), []).append(
            each.step_s
        )
    mean_s = {arm: sum(all_s) / len(all_s) for arm, all_s in steps_s.items()}
    alone_s = mean_s.setdefault(Arm(1), _profiled_s(found[0]))
    return {arm: alone_s / s for arm, s in mean_s.items()}


def _profiled_s(each: Experience) -> float:
    """A step of one worker on the first node of a plan."""
    alone = Plan(1, each.plan.nodes[:1], ALLREDUCE, each.plan.options)
    return prior_of(replace(each, plan=alone)).total_s


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy that past runs can be replayed through.

    Attributes:
        name: as it is typed.
        summary: what it does, in a line.
        moves: whether it would have moved to other plans in mid-run, as the launcher does.
    """

    name: str
    summary: str
    choose: Callable[[Asked], Choice]
    moves: bool = False


def _launch(asked: Asked) -> Choice:
    past, prior = asked.past, asked.hindsight.prior
    return Choice(recommend(past.situation, past.before, past.seed, prior=prior).chosen)


def _cold(asked: Asked) -> Choice:
    prior = asked.hindsight.prior
    return Choice(recommend(asked.past.situation, (), 0, prior=prior).chosen)


def _prior(asked: Asked) -> Choice:
    return Choice(recommend(asked.past.situation, (), 0).chosen)


def _by_rule(rule: Rule) -> Callable[[Asked], Choice]:
    """The launcher's best plan for the n and exchange that a rule chooses."""

    def choose(asked: Asked) -> Choice:
        tried: dict[Plan, None] = {}

        def observe(arm: Arm) -> float:
            plan = asked.forecast_by_arm[arm].plan
            tried[plan] = None
            return asked.judged(plan).step.mean

        answer = rule(asked.question(), observe)
        return Choice(asked.forecast_by_arm[answer.arm].plan, tuple(tried))

    return choose


def _contenders() -> Iterator[Contender]:
    yield Contender("launch", "This launcher, knowing the runs from before.", _launch, moves=True)
    yield Contender("cold", "This launcher, knowing no run.", _cold)
    yield Contender("prior", "This launcher's cost model, which has learned nothing.", _prior)
    for name, rule in RULES.items():
        summary = (rule.__doc__ or "").strip().splitlines()[0].replace("`", "")
        yield Contender(name.lower().replace(" ", "-"), summary, _by_rule(rule))


CONTENDERS: Final[Mapping[str, Contender]] = {each.name: each for each in _contenders()}
