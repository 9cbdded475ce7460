"""The recommender: from a situation and experience to a decision that gives its reasons."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from policies.bandit import best, choose
from policies.explain import Explanation, Fact, explain
from policies.forecast import Forecast
from policies.notes import notes
from policies.reasons import reason_line
from policies.robust import Prior
from policies.schema import Candidate, Decision, Experience, Plan, Situation
from policies.survey import Survey, survey
from policies.wording import dollars, duration, workers

__all__ = ["Explanation", "Fact", "NoPlanError", "explain", "recommend"]

POLICY: Final = "bayesian-4"
MAX_ROWS: Final = 8
# Below this chance to fit, a run is refused; between this and `P_FITS` the launcher asks.
P_REFUSED: Final = 0.1


class NoPlanError(ValueError):
    """No plan is possible, or none has a fair chance to keep budget and deadline.

    Args:
        problem: what is in the way, with the values.
        remedy: what to do about it.
        cheapest: the cheapest plan with its prediction, where there is any plan.
    """

    def __init__(self, problem: str, remedy: str, cheapest: Candidate | None = None) -> None:
        super().__init__(problem, remedy, cheapest)
        self.problem, self.remedy, self.cheapest = problem, remedy, cheapest

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


def recommend(
    situation: Situation,
    experience: Sequence[Experience],
    seed: int,
    *,
    at_step: int = 0,
    prior: Prior | None = None,
) -> Decision:
    """Choose how many workers, on which nodes in which order, for the remaining work.

    Args:
        situation: nodes, network, workload, work, limits and what is already spent.
        experience: measured segments of past runs (and of this one), in any order.
        seed: decides what is explored; 0 explores nothing.
        at_step: where training stands; past the first step nothing is explored.
        prior: what is believed before any experience, as the shipped sweep leaves it.

    Raises:
        NoPlanError: no plan is possible, or the likeliest keeps budget and deadline with
            less than 10 %.
    """
    return recommend_from(survey(situation, experience, prior), experience, seed, at_step=at_step)


def recommend_from(
    found: Survey, experience: Sequence[Experience], seed: int, *, at_step: int = 0
) -> Decision:
    """As `recommend`, where everything has been prepared for it."""
    by_n = _forecasts(found)
    choice = _choice(found, by_n, 0 if at_step else seed)
    chosen, rival = choice.chosen, choice.rival
    n, rows = chosen.plan.n_workers, _rows(found, by_n, chosen)
    other = None if rival is None else rival.candidate
    return Decision(
        at_step=at_step,
        reason=reason_line(rows, n, found.ceiling, found.situation, found.paths, other),
        policy=POLICY,
        seed=seed,
        history=tuple(dict.fromkeys(e.run for e in experience)),
        chosen=chosen.plan,
        candidates=tuple(rows.values()),
        p_fits=chosen.p_fits,
        rival=other,
        notes=notes(chosen, found, explored=choice.explored),
    )


def _rows(found: Survey, by_n: dict[int, Forecast], chosen: Forecast) -> dict[int, Candidate]:
    """The candidates that are shown, by n: beside the chosen one both neighbours."""
    n, limit = chosen.plan.n_workers, found.ceiling.n_workers
    fresh: list[int] = []
    if found.situation.limits.workers is None:
        fresh = [m for m in (n - 1, n + 1) if m not in by_n and 1 <= m <= limit]
    every = by_n | found.forecasts(fresh) | {n: chosen}
    return {m: every[m].candidate for m in rows_to_show(sorted(every), n)}


@dataclass(frozen=True, slots=True)
class _Choice:
    """The chosen plan, the best of as many workers with the other strategy, whether it is a try."""

    chosen: Forecast
    rival: Forecast | None
    explored: bool


def _choice(found: Survey, by_n: dict[int, Forecast], seed: int) -> _Choice:
    """The best plan, or one that is tried; the best one's rival may be tried too."""
    limits, candidates = found.situation.limits, _open_to_choice(by_n, found.situation)
    greedy = best(candidates, limits.objective)
    rival = found.rival_of(greedy.plan)
    chosen = choose(candidates, limits, seed, () if rival is None else (rival,))
    if chosen.p_fits < P_REFUSED:
        raise refusal(chosen, by_n, found.situation)
    if chosen == greedy:
        return _Choice(chosen, rival, explored=False)
    other = greedy if chosen == rival else found.rival_of(chosen.plan)
    return _Choice(chosen, other, explored=True)


def _forecasts(found: Survey) -> dict[int, Forecast]:
    """Best plans by n: all of them, or one worker's and those of the n asked for."""
    limit, asked = found.ceiling, found.situation.limits.workers
    if not found.grounds:
        raise NoPlanError(
            "No node has free CPUs or GPUs for a worker.",
            "Free some, add nodes, or ask for less with --cpus-per-worker or --gpus-per-worker.",
        )
    if limit.n_workers < 1:
        raise NoPlanError(
            f"Not even one worker can train: {limit.reason}.", "Use more data or a larger batch."
        )
    if asked is None:
        return found.all_forecasts()
    if asked > limit.n_workers:
        raise NoPlanError(
            f"{workers(asked)} cannot be had: {limit.reason}.",
            f"Ask for at most {limit.n_workers}, or leave the choice to --workers auto.",
        )
    return found.forecasts(sorted({1, asked}))


def _open_to_choice(by_n: dict[int, Forecast], situation: Situation) -> list[Forecast]:
    asked, limits = situation.limits.workers, situation.limits
    if not limits.asynchrony.own_data:
        return list(by_n.values()) if asked is None else [by_n[asked]]
    sites = {node.site for node in situation.nodes}
    found = [f for n, f in by_n.items() if asked in (None, n)]
    open_now = [f for f in found if _sites_of(f.plan, situation) == sites]
    if not open_now:
        raise NoPlanError(
            f"No plan has a worker at each of the {len(sites)} sites with data of their own.",
            "Leave the number to --workers auto, or name data of fewer sites.",
        )
    return open_now


def _sites_of(plan: Plan, situation: Situation) -> set[str | None]:
    return {node.site for node in situation.nodes if node.id in plan.nodes}


def rows_to_show(counts: Sequence[int], n: int) -> tuple[int, ...]:
    """At most eight n for the table: 1, the chosen one and its neighbours, the largest, others.

    The others are spread evenly over what is left.
    """
    if len(counts) <= MAX_ROWS:
        return tuple(counts)
    musts = {m for m in (1, n - 1, n, n + 1, counts[-1]) if m in counts}
    others = [m for m in counts if m not in musts]
    free = MAX_ROWS - len(musts)
    spread = {others[(2 * i + 1) * len(others) // (2 * free)] for i in range(free)}
    return tuple(sorted(musts | spread))


def refusal(likeliest: Forecast, by_n: dict[int, Forecast], situation: Situation) -> NoPlanError:
    """Why a run is not begun whose likeliest plan hardly keeps budget and deadline."""
    cheapest = min(by_n.values(), key=lambda f: (f.cost_usd, f.time.mean))
    limits, needs = situation.limits, f"about {duration(likeliest.time.mean)}"
    if likeliest.usd_per_h > 0:
        needs += f" and {dollars(likeliest.cost_usd)}"
    options = []
    if limits.budget_usd is not None:
        options.append("--budget")
    if limits.deadline_s is not None:
        options.append("--deadline")
    problem = (
        f"Even the likeliest plan, {workers(likeliest.plan.n_workers)}, needs {needs}; "
        f"{_what_is_left(situation)}."
    )
    remedy = f"Raise {' or '.join(options)}, or train fewer epochs."
    return NoPlanError(problem, remedy, cheapest.candidate)


def _what_is_left(situation: Situation) -> str:
    """What is left of budget and deadline, or that either is spent before training began."""
    limits = situation.limits
    left: list[str] = []
    gone: list[str] = []
    if limits.budget_usd is not None:
        spent = f"{dollars(situation.spent_usd)} of the {dollars(limits.budget_usd)}"
        left_usd = limits.budget_usd - situation.spent_usd
        (left if left_usd > 0 else gone).append(dollars(left_usd) if left_usd > 0 else spent)
    if limits.deadline_s is not None:
        spent = f"{duration(situation.spent_s)} of the {duration(limits.deadline_s)}"
        left_s = limits.deadline_s - situation.spent_s
        (left if left_s > 0 else gone).append(duration(left_s) if left_s > 0 else spent)
    if gone:
        return f"{' and '.join(gone)} {'is' if len(gone) == 1 else 'are'} spent already"
    return f"only {' and '.join(left)} {'is' if len(left) == 1 else 'are'} left"
