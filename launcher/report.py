"""What people read of a run: the candidates, the outcome, the list of all runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher import figures as f
from launcher.layout import (
    fitting,
    labelled,
    plain_table,
    print_table,
    ring_text,
    sentence,
    shortened,
)
from launcher.record import RunRecord, ShownStatus, parse_timestamp
from launcher.runs import Runs
from policies.schema import Candidate, Decision
from policies.wording import dollars, exchange_name, percent

FITS = 0.9  # DESIGN: a plan fits when it keeps the limit with this probability
NO_RESULT = {"learning_rate", "lr"}  # Keras logs them beside the metrics
STYLE_BY_STATUS = {
    "done": "green",
    "running": "cyan",
    "detached": "cyan",
    "failed": "red",
    "lost": "red",
}


def print_decision(
    console: Console,
    decision: Decision,
    letters: Mapping[str, str],
    spent_s: float = 0.0,
    spent_usd: float = 0.0,
) -> None:
    """The candidates as a table, and the reason.

    Args:
        letters: short names of the nodes.
        spent_s: time already spent, which comes on top of the candidates' (seconds).
        spent_usd: money already spent, which comes on top.
    """

    def variant(gap: int, *, exchange: bool, bounds: bool) -> Callable[[], Table]:
        return lambda: _candidates(decision, letters, gap, exchange=exchange, bounds=bounds)

    variants = [
        variant(2, exchange=True, bounds=True),
        variant(1, exchange=True, bounds=True),
        variant(1, exchange=False, bounds=True),
        variant(1, exchange=False, bounds=False),
    ]
    print_table(console, fitting(console, variants))
    caption = "step, time and cost predicted, with 90 % intervals"
    if spent_s >= 1:
        caption += f"; {f.clock_text(spent_s)}"
        caption += f" and {dollars(spent_usd)} spent before" if spent_usd else " spent before"
    console.print(f"    {caption}", style="dim", soft_wrap=True)
    console.print()
    console.print(sentence(decision.reason, console.width), soft_wrap=True, highlight=False)
    for note in decision.notes:
        console.print(sentence(note, console.width), soft_wrap=True, style="dim", highlight=False)


def print_outcome(console: Console, record: RunRecord, *, is_explained: bool = False) -> None:
    """How the run ended, what it took against what was predicted, and what to do next.

    With `is_explained` it does not point at `launch explain`.
    """
    text = Text(_ending(record), style=STYLE_BY_STATUS.get(record.status, "yellow"))
    pieces = list(_totals(record))
    if record.outcome is not None:
        metrics = {k: v for k, v in record.outcome.metrics.items() if k not in NO_RESULT}
        shown = {k: v for k, v in metrics.items() if k != "loss"} or metrics
        pieces += [f"{name} {f.metric_text(value)}" for name, value in list(shown.items())[-3:]]
    first, *others = pieces or [""]
    text.append(f" {first}" if first else "", style="default")
    for piece in others:
        text.append(f" · {piece}", style="default")
    console.print(text, soft_wrap=True, highlight=False)
    for label, value in _pointers(record, is_explained=is_explained):
        console.print(labelled(label, [value], "", console.width), soft_wrap=True, highlight=False)


def print_runs(
    console: Console, runs: Runs, now: datetime, status_by_run: Mapping[str, ShownStatus]
) -> None:
    """Every run: chosen n, what was predicted, what it took."""
    if not runs.records:
        console.print("No runs yet. Start one: launch train.py --budget 5", highlight=False)

    def variant(gap: int, script: int, *, when: bool) -> Callable[[], Table]:
        return lambda: _runs(runs.records, now, status_by_run, gap, script, when=when)

    if runs.records:
        variants = [
            variant(2, 40, when=True),
            variant(2, 16, when=True),
            variant(1, 12, when=True),
            variant(1, 10, when=False),
        ]
        print_table(console, fitting(console, variants))
    print_damaged(console, runs.damaged)


def print_damaged(console: Console, damaged: Sequence[str]) -> None:
    """Why records cannot be read."""
    for text in damaged:
        console.print(sentence(f"warning: {text}", console.width), soft_wrap=True, style="yellow")


def predicted(record: RunRecord) -> tuple[float, float] | None:
    """Time (s) and cost (USD) of the whole run as first predicted."""
    if not record.decisions:
        return None
    entry = record.decisions[0]
    prediction = entry.decision.candidate.prediction
    return prediction.time_s.mean + entry.spent_s, prediction.cost_usd.mean + entry.spent_usd


def _candidates(
    decision: Decision, letters: Mapping[str, str], gap: int, *, exchange: bool, bounds: bool
) -> Table:
    table = plain_table(gap)
    unsure = any(candidate.p_fits < FITS for candidate in decision.candidates)
    names = ["", "n", "nodes", *(["exchange"] if exchange else []), "step", "time", "cost"]
    for name in [*names, *(["fits"] if unsure else [])]:
        align = "right" if name == "n" else "left"
        table.add_column(name, justify=align, no_wrap=True, header_style="bold")  # type: ignore[arg-type]
    for candidate in decision.candidates:
        chosen = candidate.plan == decision.chosen
        cells = _cells(candidate, letters, exchange=exchange, bounds=bounds)
        if unsure:
            cells.append(percent(candidate.p_fits))
        style = "bold green" if chosen else "dim" if candidate.p_fits < FITS else ""
        table.add_row(" ✔" if chosen else "", *cells, style=style)
    return table


def _cells(
    candidate: Candidate, letters: Mapping[str, str], *, exchange: bool, bounds: bool
) -> list[str]:
    plan, prediction = candidate.plan, candidate.prediction
    money = prediction.cost_usd
    return [
        f"{plan.n_workers:,}",
        ring_text(plan.nodes, letters),
        *([exchange_name(plan)] if exchange else []),
        f.time_interval(prediction.step_s),
        f.time_interval(prediction.time_s),
        f.money_interval(money) if bounds else dollars(money.mean),
    ]


def _runs(
    records: Sequence[RunRecord],
    now: datetime,
    status_by_run: Mapping[str, ShownStatus],
    gap: int,
    script: int,
    *,
    when: bool,
) -> Table:
    table = plain_table(gap)
    columns = ["run", "status", "script", "n", "time (predicted)", "cost (predicted)"]
    for name in [*columns, *(["when"] if when else [])]:
        align = "right" if name == "n" else "left"
        table.add_column(name, justify=align, no_wrap=True, header_style="bold")  # type: ignore[arg-type]
    for record in records:
        status = status_by_run.get(record.run, record.status)
        decision = record.decision
        foreseen = predicted(record)
        time = "–" if record.outcome is None else f.time_text(record.outcome.time_s)
        age_s = (now - parse_timestamp(record.created)).total_seconds()
        cells: list[str | Text] = [
            record.run,
            Text(status, style=STYLE_BY_STATUS.get(status, "yellow")),
            shortened(record.request.script.name, script),
            "–" if decision is None else str(decision.chosen.n_workers),
            time if foreseen is None else f"{time} ({f.time_text(foreseen[0])})",
            _cost_cell(record, foreseen),
            *([f.age_text(age_s)] if when else []),
        ]
        table.add_row(*cells)
    return table


def _cost_cell(record: RunRecord, foreseen: tuple[float, float] | None) -> str:
    cost = dollars(record.cost_usd)
    return cost if foreseen is None else f"{cost} ({dollars(foreseen[1])})"


def _ending(record: RunRecord) -> str:
    if not record.segments and record.status != "done":
        return f"{record.status} before training began"
    return {
        "done": "done",
        "budget": "stopped at the budget",
        "deadline": "stopped at the deadline",
        "interrupted": "interrupted",
        "failed": "failed",
        "running": "running",
    }.get(record.status, record.status)


def _totals(record: RunRecord) -> Iterator[str]:
    if record.outcome is None or not record.segments:
        return
    outcome, foreseen = record.outcome, predicted(record)
    text = f"in {f.clock_text(outcome.time_s)} for {dollars(outcome.cost_usd)}"
    if foreseen is not None:
        text += f" (predicted {f.time_text(foreseen[0])}, {dollars(foreseen[1])})"
    yield text


def _pointers(record: RunRecord, *, is_explained: bool) -> Iterator[tuple[str, str]]:
    """Where things are, and which command comes next."""
    outcome = record.outcome
    if outcome is not None and outcome.model:
        yield "model", outcome.model
    if outcome is not None and outcome.artifacts:
        yield "files", outcome.artifacts
    if record.status in {"budget", "deadline", "interrupted"} and record.checkpoints:
        limit = "--deadline 30m" if record.status == "deadline" else "--budget 5"
        option = "" if record.status == "interrupted" else f" {limit}"
        yield "go on", f"launch resume {record.run}{option}"
    if record.decision is not None and record.segments and not is_explained:
        yield f"why {record.decision.chosen.n_workers}?", f"launch explain {record.run}"
