"""What people read of past runs that were replayed through other policies."""

from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table

from launcher import figures as f
from launcher.layout import fitting, labelled, plain_table, print_table, sentence
from launcher.past_runs import LeftOut
from launcher.replaying import Pasts, Replay
from launcher.report import print_damaged
from policies.replay import Replayed
from policies.schema import Interval, Plan
from policies.wording import dollars, duration, exchange_name, workers

Show = Callable[[float], str]
CAPTION = (
    "would take and cost with 90 % intervals: measured in other runs with a plan alike, or "
    "predicted by the model fitted to all runs here; same: nothing would have been different; "
    "~: the interval holds gains and losses"
)
COMPARED = (
    "against what the runs took, with 90 % intervals; in so many runs the plan would have been the "
    "same, was measured in others, or is predicted; ~: the interval holds gains and losses"
)


def print_replay(console: Console, replay: Replay, pasts: Pasts) -> None:
    """Each run with what it took and would have taken, then the sum of both."""
    summary = replay.summary.rstrip(".")
    console.print(labelled("policy", [replay.policy, summary], "", console.width), soft_wrap=True)
    _print_where(console, pasts)
    if replay.runs:
        console.print()
        variants = [partial(_table, replay.runs, *size) for size in _SIZES]
        print_table(console, fitting(console, variants))
        console.print(sentence(CAPTION, console.width), soft_wrap=True, style="dim")
        console.print()
        console.print(sentence(_total(replay), console.width), soft_wrap=True)
        for note in _notes(replay):
            console.print(sentence(note, console.width), soft_wrap=True)
    _print_left_out(console, "not replayed", replay.left_out)
    print_damaged(console, pasts.damaged)


def print_comparison(console: Console, replays: Sequence[Replay], pasts: Pasts) -> None:
    """Every policy in a line: what all runs together would have lost or saved."""
    _print_where(console, pasts)
    if any(each.runs for each in replays):
        console.print()
        variants = [partial(_comparison, replays, *size) for size in _SIZES]
        print_table(console, fitting(console, variants))
        console.print(sentence(COMPARED, console.width), soft_wrap=True, style="dim")
    common = [x for x in replays[0].left_out if all(x in each.left_out for each in replays)]
    _print_left_out(console, "not replayed", common)
    for each in replays:
        own = [x for x in each.left_out if x not in common]
        _print_left_out(console, f"not replayed through {each.policy}", own)
    print_damaged(console, pasts.damaged)


def _print_where(console: Console, pasts: Pasts) -> None:
    """Which runs they are."""
    if not pasts.n_all:
        console.print("No runs yet. Start one: launch train.py --budget 5")
        return
    n, noun = pasts.n_looked_at, "run" if pasts.n_looked_at == 1 else "runs"
    pieces = [f"{n:,} {noun} in {pasts.storage}"]
    if n < pasts.n_all:
        pieces = [f"the last {n:,} of {pasts.n_all:,} runs in {pasts.storage}"]
        pieces.append(f"all of them: --last {pasts.n_all}")
    days = list(dict.fromkeys(f"{moment:%Y-%m-%d}" for moment in pasts.began))
    pieces.insert(1, " to ".join(days))
    console.print(labelled("runs", pieces, "", console.width), soft_wrap=True)


# Gaps between columns, and what is shown beside the interval of time; the narrowest is last.
_SIZES = ((2, True, True), (1, True, True), (1, False, True), (2, False, False))


def _comparison(replays: Sequence[Replay], gap: int, money_bounds: bool, counts: bool) -> Table:
    table = plain_table(gap)
    names = ("policy", "time", "cost", "same", "measured", "predicted", "over a limit")
    for name in names if counts else names[:3]:
        align = "left" if name in names[:3] else "right"
        table.add_column(name, justify=align, no_wrap=True, header_style="bold")  # type: ignore[arg-type]
    for each in replays:
        sums = each.total
        time = _lost_cell(sums.lost_s, duration, bounds=True)
        cells = [each.policy, time, _lost_cell(sums.lost_usd, dollars, bounds=money_bounds)]
        numbers = (sums.n_same, sums.n_measured, sums.n_predicted, sums.n_exceeded)
        table.add_row(*cells, *([str(n) if n else "–" for n in numbers] if counts else []))
    return table


def _table(runs: Sequence[Replayed], gap: int, money_bounds: bool, totals: bool) -> Table:
    table = plain_table(gap)
    names = [
        "run",
        "n",
        "took",
        "cost",
        "→ n",
        "would take",
        "would cost",
        "lost or saved",
        "basis",
    ]
    for name in names if totals else [names[0], names[4], names[5], *names[7:]]:
        table.add_column(name, no_wrap=True, header_style="bold")
    for each in runs:
        table.add_row(*(_cells(each, money_bounds) if totals else _few_cells(each)))
    return table


def _cells(each: Replayed, money_bounds: bool) -> list[str]:
    own = ", then ".join(_plan_text(plan, each.plan) for plan in each.plans)
    cells = [each.run, own, f.clock_text(each.took_s), dollars(each.took_usd)]
    cells.append(_plan_text(each.plan, each.plans[0]))
    if each.is_same:
        return [*cells, "the same", "", "", "same"]
    cells.append(f.time_interval(each.time_s))
    cells.append(f.money_interval(each.cost_usd) if money_bounds else dollars(each.cost_usd.mean))
    return [*cells, _lost_cells(each), _basis(each)]


def _few_cells(each: Replayed) -> list[str]:
    """For narrow terminals."""
    change = f"{', '.join(str(plan.n_workers) for plan in each.plans)} → {each.plan.n_workers}"
    if each.is_same:
        return [each.run, change, "the same", "", "same"]
    return [each.run, change, f.time_interval(each.time_s), _lost_cells(each), _basis(each)]


def _basis(each: Replayed) -> str:
    return ", ".join([each.basis, *(f"over the {limit}" for limit in each.exceeded)])


def _lost_cells(each: Replayed) -> str:
    """`39 min saved, $0.08 lost`, or `2 h 27 min, $3.47 saved`."""
    time = _lost_cell(each.lost_s, duration)
    if not (each.lost_usd.high or each.lost_usd.low):
        return time
    money = _lost_cell(each.lost_usd, dollars)
    word = f" {_word(each.lost_usd)}"
    return f"{time.removesuffix(word) if money.endswith(word) else time}, {money}"


def _plan_text(plan: Plan, other: Plan) -> str:
    """`4 direct`, or `1`; beside a plan that seems the same, `4 direct, two-shot`."""
    if plan.n_workers == 1:
        return "1"
    alike = (plan.n_workers, plan.strategy) == (other.n_workers, other.strategy)
    is_other = alike and plan.options.algorithm != other.options.algorithm
    return f"{plan.n_workers:,} {exchange_name(plan) if is_other else plan.strategy}"


def _lost_cell(lost: Interval, show: Show, *, bounds: bool = False) -> str:
    """`36 min lost`, `~2 min saved`, `36 min lost (34 min–39 min)`."""
    if lost.low == lost.high == 0.0:
        return "nothing"
    is_unsure = lost.low < 0.0 < lost.high
    low, high = (show(abs(x)) for x in (lost.low, lost.high))
    text = f"{'~' if is_unsure else ''}{show(abs(lost.mean))} {_word(lost)}"
    if not bounds:
        return text
    if is_unsure:
        return f"{text} ({low} saved–{high} lost)"
    return f"{text} ({low}–{high})" if lost.mean > 0 else f"{text} ({high}–{low})"


def _word(lost: Interval) -> str:
    return "lost" if lost.mean > 0 else "saved"


def lost_text(lost: Interval, show: Show) -> str:
    """`36 min (34 min to 39 min)`, or `about 2 min (5 min saved to 1 min lost)`."""
    if lost.low == lost.high == 0.0:
        return "nothing"
    low, high = (show(abs(x)) for x in (lost.low, lost.high))
    if lost.low < 0.0 < lost.high:
        return f"about {show(abs(lost.mean))} ({low} saved to {high} lost)"
    first, last = (low, high) if lost.mean > 0 else (high, low)
    return f"{show(abs(lost.mean))} ({first} to {last})"


def _total(replay: Replay) -> str:
    """What all runs together would have lost or saved."""
    sums = replay.total
    took = duration(sums.took_s) + (f" and {dollars(sums.took_usd)}" if sums.took_usd else "")
    noun = "run" if sums.n_runs == 1 else "runs"
    what = f"{_word(sums.lost_s)} {lost_text(sums.lost_s, duration)}"
    if sums.took_usd or sums.lost_usd.high:
        word = "" if _word(sums.lost_usd) == _word(sums.lost_s) else f" {_word(sums.lost_usd)}"
        what += f" and{word} {lost_text(sums.lost_usd, dollars)}"
    if sums.n_same == sums.n_runs:
        what = "changed nothing"
    return (
        f"Over {sums.n_runs} {noun}, which took {took}, {replay.policy} would have {what}: "
        f"{sums.n_same} the same, {sums.n_measured} measured in other runs, "
        f"{sums.n_predicted} predicted."
    )


def _notes(replay: Replay) -> list[str]:
    """What the numbers hold besides."""
    notes = []
    n_tried = sum(len([p for p in each.tried if p.n_workers > 1]) for each in replay.runs)
    if n_tried:
        noun = "plan" if n_tried == 1 else "plans"
        notes.append(
            f"It would have tried {n_tried} {noun} before choosing; the time and price of that "
            "are predicted, and counted in."
        )
    asked = [each for each in replay.runs if each.asked is not None]
    if asked:
        named = ", ".join(f"{each.run} ({workers(each.asked or 0)})" for each in asked[:3])
        more = f" and {len(asked) - 3} more" if len(asked) > 3 else ""
        notes.append(f"--workers had fixed n in {named}{more}; here the policy was free to choose.")
    return notes


def _print_left_out(console: Console, title: str, left_out: Sequence[LeftOut]) -> None:
    """Runs that could not be replayed, and why."""
    if not left_out:
        return
    console.print(f"\n{title}", style="bold")
    width = max(len(each.run) for each in left_out)
    for each in left_out:
        text = sentence(each.reason, max(console.width - width - 4, 20))
        text = text.replace("\n", "\n" + " " * (width + 4))
        console.print(f"  {each.run:<{width}}  {text}", soft_wrap=True)
