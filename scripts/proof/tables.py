"""Scores as tables for people, and the goals that they are held against."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from policies.baselines import RULES

from .big_clusters import SizeScore
from .contest import AT_HOME, FLOOR, OURS, PRIOR, name_after
from .money import MoneyScore
from .scores import Estimate, Score

COLD, AFTER_3 = name_after(0), name_after(3)


def choice_table(title: str, scores: Sequence[Score]) -> str:
    """A line for each contender, that of the noise floor first; in per cent."""
    n_problems = max(each.n_problems for each in scores)
    lines = [
        f"{title}: {n_problems} choices",
        f"{'':22}{'best, or within':>16}{'within':>8}{'within':>8}{'regret':>7}{'regret':>8}"
        f"{'step':>7}{'of the':>8}{'90 % interval':>17}{'trials':>9}{'both':>8}",
        f"{'policy':22}{'noise  (strictly)':>17}{'5 %':>7}{'10 %':>8}{'mean':>7}{'worst':>8}"
        f"{'error':>7}{'chosen':>8}{'holds':>17}{'of a job':>9}{'losses':>8}",
    ]
    for each in scores:
        holds = each.coverage.shown(digits=0)
        if holds != "-" and not math.isnan(each.coverage.low):
            holds += f" ({each.coverage.low * 100:.0f}-{each.coverage.high * 100:.0f})"
        lines.append(
            f"{each.name:22}{each.hit.shown(digits=0):>8}{f'({each.strict.shown(digits=0)})':>9}"
            f"{each.within_5.shown(digits=0):>7}{each.within_10.shown(digits=0):>8}"
            f"{each.regret.shown():>7}{100 * each.worst:8.0f}{each.step_error.shown():>7}"
            f"{each.chosen_error.shown():>8}{holds:>17}{each.spent.shown():>9}"
            f"{each.whole.shown():>8}"
        )
    return "\n".join(lines)


def money_table(title: str, scores: Sequence[MoneyScore]) -> str:
    """A line for each contender; in per cent."""
    lines = [
        title,
        f"{'policy':22}{'plans':>6}{'overran':>18}{'kept, where possible':>22}"
        f"{'regret mean':>13}{'worst':>8}",
    ]
    for each in scores:
        overran = each.overran.shown()
        if not math.isnan(each.overran.low):
            overran += f" ({100 * each.overran.low:.1f}-{100 * each.overran.high:.1f})"
        worst = "-" if math.isnan(each.worst) else f"{100 * each.worst:.0f}"
        lines.append(
            f"{each.name:22}{each.n_plans:6}{overran:>18}{each.solved.shown():>22}"
            f"{each.regret.shown():>13}{worst:>8}"
        )
    return "\n".join(lines)


def size_table(scores: Sequence[SizeScore]) -> str:
    """A line for each size of cluster."""
    lines = [
        "Made-up clusters, no experience, against the best known",
        f"{'nodes':>6}{'choices':>9}{'within 10 %':>13}{'regret mean':>13}{'worst':>8}"
        f"{'first decision':>16}{'longest':>10}{'on the same map':>17}",
    ]
    lines += [
        f"{each.n_nodes:6}{each.n_choices:9}{100 * each.within_10:11.0f} %"
        f"{100 * each.regret:11.1f} %{100 * each.worst:6.0f} %"
        f"{1e3 * each.first_s:13.0f} ms{1e3 * each.longest_s:7.0f} ms"
        f"{1e3 * each.again_s:14.0f} ms"
        for each in scores
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, and whether it was met."""

    name: str
    value: str
    target: str
    met: bool

    def __str__(self) -> str:
        verdict = "met" if self.met else "missed"
        return f"goal {self.name}: {self.value} (target {self.target}) {verdict}"


Tables = Mapping[str, Mapping[str, Score]]


def choice_goals(tables: Tables) -> list[Goal]:
    """The goals of the choices; each must be met in every table."""

    def values(policy: str, key: str) -> dict[str, Estimate]:
        return {title: getattr(scores[policy], key) for title, scores in tables.items()}

    def goal(name: str, policy: str, key: str, target: str, fits: Callable[[float], bool]) -> Goal:
        found = values(policy, key)
        shown = "; ".join(
            f"{title} {each.shown()} % ({100 * each.low:.1f}-{100 * each.high:.1f}), "
            f"noise floor {getattr(tables[title][FLOOR], key).shown()} %"
            for title, each in found.items()
        )
        return Goal(name, shown, target, all(fits(each.value) for each in found.values()))

    return [
        goal("hit_cold", COLD, "hit", ">= 85 %", lambda x: x >= 0.85),
        goal("within_10_cold", COLD, "within_10", ">= 95 %", lambda x: x >= 0.95),
        goal("regret_cold", COLD, "regret", "<= 2 %", lambda x: x <= 0.02),
        goal("regret_after_3_runs", AFTER_3, "regret", "<= 1 %", lambda x: x <= 0.01),
        goal("step_error_cold", COLD, "step_error", "<= 10 %", lambda x: x <= 0.10),
        goal("step_error_after_3_runs", AFTER_3, "step_error", "<= 4 %", lambda x: x <= 0.04),
        *(
            goal(f"coverage_{name}", policy, "coverage", "87-93 %", lambda x: 0.87 <= x <= 0.93)
            for name, policy in _at_home(tables).items()
        ),
        *(_better(name, policy, tables) for name, policy in (("cold", COLD), ("3_runs", AFTER_3))),
    ]


def _at_home(tables: Tables) -> dict[str, str]:
    """Whose intervals are judged: of who knows that the cluster is the sweep's own."""
    known = all(name_after(0, AT_HOME) in scores for scores in tables.values())
    who = AT_HOME if known else OURS
    return {"cold": name_after(0, who), "after_3_runs": name_after(3, who)}


def _better(name: str, policy: str, tables: Tables) -> Goal:
    """Better than every rival in hits, regret and step error; whoever is not worse is named.

    Regret includes what trials cost, as those who try every plan know the best one in the end.
    """
    ahead: dict[str, list[str]] = {"hits": [], "regret": [], "step error": []}
    for scores in tables.values():
        mine = scores[policy]
        for each in scores.values():
            if each.name == FLOOR or each.name.startswith(OURS):
                continue
            beaten = {
                "hits": mine.hit.value > each.hit.value,
                "regret": mine.whole.value < each.whole.value,
                "step error": not mine.step_error.value >= each.step_error.value,
            }
            for key, won in beaten.items():
                if not won and each.name not in ahead[key]:
                    ahead[key].append(each.name)
    found = [f"{key} {', '.join(names)}" for key, names in ahead.items() if names]
    value = f"as good or ahead: {'; '.join(found)}" if found else "no rival as good"
    return Goal(f"better_than_rivals_{name}", value, f"{len(RULES)} rules and {PRIOR}", not found)


def money_goals(by_task: Mapping[str, Mapping[str, MoneyScore]]) -> list[Goal]:
    """No overruns, within sampling error: the 90 % interval of their share reaches down to 0."""
    goals = []
    for name, policy in (("cold", COLD), ("after_3_runs", AFTER_3)):
        found = {title: scores[policy].overran for title, scores in by_task.items()}
        shown = "; ".join(
            f"{title} {each.shown()} % ({100 * each.low:.1f}-{100 * each.high:.1f})"
            for title, each in found.items()
        )
        met = all(each.value == 0.0 or each.low <= 0.0 for each in found.values())
        goals.append(Goal(f"overruns_{name}", shown, "0 % within the interval", met))
    return goals
