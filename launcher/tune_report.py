"""What people read of a search: a line or a table of its trials, the best one, how to go on."""

import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from launcher.figures import clock_text, metric_text, money_limit
from launcher.layout import labelled, plain_table, print_table, shortened
from launcher.trials import command_text, value_text
from launcher.tune_record import Trial, TuneRecord
from launcher.tuning import trial_request
from policies.wording import dollars

MAX_COLUMNS = 5  # of parameters; more of them stand in one column
SUMMARY_EVERY_S = 30.0
STYLES = {"done": "green", "running": "cyan", "failed": "red", "stopped": "dim"}
WORDS = {"stopped": "stopped early"}


class TuneScreen:
    """Shows a search on stderr: a table that lives on a terminal, plain lines elsewhere.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(
        self, console: Console, *, is_live: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console, clock
        self._live = Live(console=console, auto_refresh=False, transient=True) if is_live else None
        self._status: dict[int, str] = {}
        self._said_at_s = clock()

    def begin(self) -> None:
        """Begin to show the table."""
        if self._live is not None:
            self._live.start()

    def stage(self, text: str) -> None:
        """Say what is going on."""
        self.note(f"{text} …")

    def note(self, text: str) -> None:
        """Say in a line what happened."""
        self._console.print(f"launch: {text}", soft_wrap=True)

    def changed(self, record: TuneRecord, doing: Mapping[int, str]) -> None:
        """Show all trials."""
        if self._live is not None:
            self._live.update(trial_table(record, doing), refresh=True)
            return
        for trial in record.trials:
            if self._status.get(trial.number) != trial.status:
                self._status[trial.number] = trial.status
                self.note(trial_line(trial, record))
        if self._clock() - self._said_at_s > SUMMARY_EVERY_S:
            self._said_at_s = self._clock()
            self.note(summary_line(record))

    def close(self) -> None:
        """Take the table away."""
        if self._live is not None:
            self._live.stop()


def trial_table(record: TuneRecord, doing: Mapping[int, str]) -> Table:
    """All trials: parameters, nodes, epochs, metric, cost. The best one stands out."""
    table = plain_table(2)
    names = parameter_names(record)
    is_wide = len(names) > MAX_COLUMNS
    for name in ["", "trial", *(["parameters"] if is_wide else names)]:
        table.add_column(name, no_wrap=True, header_style="bold")
    for name in ["n", "epochs", record.metric or "metric", "cost", "status"]:
        table.add_column(name, no_wrap=True, header_style="bold")
    best = record.best
    for trial in record.trials:
        values = [_shown(trial.params.get(name)) for name in names]
        cells = [_joined(names, values)] if is_wide else values
        status = doing.get(trial.number) or WORDS.get(trial.status, trial.status)
        table.add_row(
            "✔" if best is not None and trial.number == best.number else "",
            str(trial.number),
            *cells,
            _width_text(trial),
            _epochs_text(trial),
            "–" if trial.value is None else metric_text(trial.value),
            dollars(trial.cost_usd),
            shortened(status, 40),
            style=STYLES.get(trial.status, ""),
        )
    return table


def trial_line(trial: Trial, record: TuneRecord) -> str:
    """One trial in a line."""
    names = parameter_names(record)
    params = _joined(names, [_shown(trial.params.get(name)) for name in names])
    pieces = [f"trial {trial.number} {WORDS.get(trial.status, trial.status)}: {params}"]
    if trial.value is not None:
        pieces.append(f"{record.metric} {metric_text(trial.value)} ({_epochs_text(trial)} epochs)")
    if trial.status == "running" and trial.nodes:
        pieces.append(f"{len(trial.nodes)} node{'s' * (len(trial.nodes) > 1)}")
    if trial.cost_usd:
        pieces.append(dollars(trial.cost_usd))
    return " · ".join(pieces)


def summary_line(record: TuneRecord) -> str:
    """How far a search has come."""
    n_open = sum(trial.status in {"running", "paused"} for trial in record.trials)
    n_ended = len(record.trials) - n_open
    budget = record.request.budget_usd
    money = dollars(record.cost_usd) + ("" if budget is None else f" of {money_limit(budget)}")
    best = record.best
    found = (
        f" · best {metric_text(best.value)}" if best is not None and best.value is not None else ""
    )
    return f"{n_ended} of {_counted(record.n_trials)} ended, {n_open} running · {money}{found}"


def print_tune(console: Console, record: TuneRecord, source: str) -> None:
    """The outcome: all trials, the best one, where its model is, and how to train it again."""
    if record.trials:
        print_table(console, trial_table(record, {}))
        console.print()
    console.print(Text(_ending(record)), soft_wrap=True, highlight=False)
    for label, value in pointers(record, source):
        console.print(labelled(label, [value], "", console.width), soft_wrap=True, highlight=False)


def pointers(record: TuneRecord, source: str) -> list[tuple[str, str]]:
    """Where the best model is, and which commands come next."""
    found: list[tuple[str, str]] = []
    best = record.best
    if best is not None:
        names = parameter_names(record)
        params = _joined(names, [_shown(best.params.get(name)) for name in names])
        found.append(("best", f"trial {best.number}: {params}"))
        if best.model is not None:
            found.append(("model", best.model))
        elif best.epoch:
            found.append(("train on", f"launch resume {best.run}"))
        found.append(("again", again_text(record, best, source)))
    if record.status != "done":
        limit = {"budget": " --budget 5", "deadline": " --deadline 30m"}.get(record.status, "")
        found.append(("go on", f"launch tune --resume {record.name}{limit}"))
    return found


def again_text(record: TuneRecord, trial: Trial, source: str) -> str:
    """The command that trains a trial's configuration again."""
    params = {**_fixed(record), **trial.params}
    return command_text(record.script, trial_request(record, params, source))


def parameter_names(record: TuneRecord) -> list[str]:
    """The parameters that any trial has, in the order in which they appear."""
    return list(dict.fromkeys(name for trial in record.trials for name in trial.params))


def tune_json(record: TuneRecord, source: str) -> dict[str, Any]:
    """The record for machines, with what follows from it."""
    from launcher.record import CODEC

    best = record.best
    document: dict[str, Any] = CODEC.encode(record)
    document["best"] = None if best is None else CODEC.encode(best)
    document["again"] = None if best is None else again_text(record, best, source)
    return document


def _fixed(record: TuneRecord) -> Mapping[str, Any]:
    from launcher.space_file import read_space

    return read_space(record.space, record.space_file).fixed


def _ending(record: TuneRecord) -> str:
    how = {
        "done": "done",
        "budget": "stopped at the budget",
        "deadline": "stopped at the deadline",
        "interrupted": "interrupted",
    }.get(record.status, record.status)
    stopped = sum(trial.status == "stopped" for trial in record.trials)
    best = record.best
    pieces = [
        f"{how} after {clock_text(record.spent_s)} for {dollars(record.cost_usd)}",
        f"{_counted(len(record.trials))}, {stopped} stopped early",
    ]
    if best is not None and best.value is not None:
        pieces.append(f"{record.metric} {metric_text(best.value)}")
    return " · ".join(pieces)


def _counted(n: int) -> str:
    return f"{n:,} trial{'s' * (n != 1)}"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else value_text(value)


def _joined(names: list[str], values: list[str]) -> str:
    return " ".join(f"{n}={shlex.quote(v)}" for n, v in zip(names, values, strict=True) if v != "–")


def _width_text(trial: Trial) -> str:
    if trial.n_workers is not None:
        return str(trial.n_workers)
    return f"≤{len(trial.nodes)}" if trial.nodes else "–"


def _epochs_text(trial: Trial) -> str:
    total = "" if trial.epochs is None else f"/{trial.epochs}"
    return f"{trial.epoch}{total}"
