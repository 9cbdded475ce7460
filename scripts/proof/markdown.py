"""The tables of the proof as Markdown, as docs/policy.md and README.md hold them."""

import math
from collections.abc import Mapping, Sequence

from .big_clusters import SizeScore
from .money import MoneyScore
from .scores import Estimate, Score
from .tables import Goal, Tables


def document(
    about: str,
    tables: Tables,
    money: Mapping[str, Mapping[str, MoneyScore]],
    sizes: Sequence[SizeScore],
    goals: Sequence[Goal],
) -> str:
    """All tables under headings, then the goals."""
    parts = [about]
    parts += [
        f"### {title.capitalize()}\n\n{choices(list(x.values()))}" for title, x in tables.items()
    ]
    parts += [f"### {title}\n\n{costs(list(x.values()))}" for title, x in money.items()]
    parts += [f"### Made-up clusters\n\n{clusters(sizes)}", f"### Goals\n\n{goal_list(goals)}"]
    return "\n\n".join(parts) + "\n"


def choices(scores: Sequence[Score]) -> str:
    """A line for each contender; per cent, the 90 % intervals of workloads drawn again behind."""
    head = (
        "policy",
        "best, or within noise (strictly)",
        "within 5 %",
        "within 10 %",
        "mean regret",
        "worst",
        "trials, of a job's cost",
        "step error, median (of the chosen)",
        "90 % interval holds",
    )
    rows = [
        (
            each.name,
            f"{_percent(each.hit)} ({each.strict.shown(digits=0)})",
            f"{each.within_5.shown(digits=0)} %",
            _percent(each.within_10),
            _percent(each.regret, 1),
            f"{100 * each.worst:.0f} %",
            f"{each.spent.shown()} %",
            f"{_percent(each.step_error, 1)} ({each.chosen_error.shown()})",
            _percent(each.coverage),
        )
        for each in scores
    ]
    return _table(head, rows)


def costs(scores: Sequence[MoneyScore]) -> str:
    """A line for each contender where a limit binds."""
    head = ("policy", "plans", "overran", "kept, where possible", "mean regret", "worst")
    rows = [
        (
            each.name,
            str(each.n_plans),
            _percent(each.overran, 1),
            f"{each.solved.shown(digits=0)} %",
            _percent(each.regret, 1),
            "–" if math.isnan(each.worst) else f"{100 * each.worst:.0f} %",
        )
        for each in scores
    ]
    return _table(head, rows)


def clusters(sizes: Sequence[SizeScore]) -> str:
    """A line for each size of made-up clusters."""
    head = (
        *("nodes", "choices", "within 10 %", "mean regret", "worst"),
        *("first decision", "longest", "on the same map"),
    )
    rows = [
        (
            f"{each.n_nodes:,}",
            str(each.n_choices),
            f"{100 * each.within_10:.0f} %",
            f"{100 * each.regret:.1f} %",
            f"{100 * each.worst:.0f} %",
            f"{1e3 * each.first_s:.0f} ms",
            f"{1e3 * each.longest_s:.0f} ms",
            f"{1e3 * each.again_s:.0f} ms",
        )
        for each in sizes
    ]
    return _table(head, rows)


def goal_list(goals: Sequence[Goal]) -> str:
    """What was aimed at, what came out, and whether that is enough."""
    rows = [
        (each.name.replace("_", " "), each.target, each.value, "met" if each.met else "**missed**")
        for each in goals
    ]
    return _table(("goal", "target", "measured", ""), rows)


def _percent(of: Estimate, digits: int = 0) -> str:
    """`96 % (92–100)`; a dash where there is nothing to score."""
    if math.isnan(of.value):
        return "–"
    text = f"{of.shown(digits=digits)} %"
    if math.isnan(of.low):
        return text
    return f"{text} ({100 * of.low:.{digits}f}–{100 * of.high:.{digits}f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
