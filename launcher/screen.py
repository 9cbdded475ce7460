"""What a person sees of a run: stages, the decision, the script's output, the outcome."""

import errno
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

from rich.console import Console
from rich.text import Text

from launcher.cluster import Cluster
from launcher.cluster_nodes import busy_text
from launcher.config import Environment, Terminal
from launcher.console import make_console
from launcher.journal import Journal, JournalAnswers, JournalLines, JournalText
from launcher.layout import PLAIN_WIDTH
from launcher.network_text import network_text
from launcher.prepare import Measured, versions
from launcher.progress import Status
from launcher.progress_streams import make_progress
from launcher.record import RunRecord
from launcher.report import print_decision, print_outcome
from launcher.summary import (
    cluster_text,
    legend_text,
    node_letters,
    nodes_to_show,
    script_text,
)
from policies.schema import Decision, Node, Situation

YES = frozenset({"y", "yes"})


class Lines(Protocol):
    """Where stages, training and the script's output are shown: a terminal, or a journal."""

    def stage(self, text: str) -> None:
        """Say what is going on now."""

    def line(self, text: str) -> None:
        """Write a line of ours that stays."""

    def output(self, text: str, stream: str = "stdout") -> None:
        """Pass on what the script printed."""

    def training(self, status: Status) -> None:
        """Show where training stands."""

    def pause(self) -> None:
        """Take the live line away, until there is something new to show."""

    def close(self) -> None:
        """Take the live line away for good."""


class Answers(Protocol):
    """Where a person's answers come from."""

    def readline(self) -> str:
        """The next answer."""


class TerminalScreen:
    """Shows a run on the standard streams.

    Args:
        progress: stages, training and the script's output.
        console: for results.
        answers: where a person's answer is read from.
    """

    def __init__(self, progress: Lines, console: Console, answers: Answers) -> None:
        self._progress, self._console, self._answers = progress, console, answers
        self._letters: Mapping[str, str] = {}
        self._nodes: Sequence[Node] = ()
        self._measured: Measured | None = None
        self._began = datetime.now(UTC)  # an earlier network map tells its age

    def stage(self, text: str) -> None:
        """Say what is going on."""
        self._progress.stage(text)

    def output(self, text: str, stream: str) -> None:
        """Pass on what the script printed."""
        self._progress.output(text, stream)

    def warn(self, text: str) -> None:
        """Say that something is not as it should be."""
        self._progress.line(f"launch: warning: {' '.join(text.split())}")

    def note(self, text: str) -> None:
        """Say in a line what happened, or was decided."""
        self._progress.line(f"launch: {' '.join(text.split())}")

    def training(self, status: Status) -> None:
        """Show where training stands."""
        self._progress.training(status)

    def cluster(self, cluster: Cluster) -> None:
        """Show which cluster it is, and its nodes."""
        self._nodes = cluster.nodes
        shown = (*cluster.nodes, *cluster.to_start)
        self._print(cluster_text(cluster.how, shown, self._console.width))
        if cluster.busy:
            self.warn(f"{busy_text(cluster.busy)}; --wait 10m waits for that.")

    def measured(self, measured: Measured, cluster: Cluster) -> None:
        """Keep network and script until the decision gives the nodes their letters."""
        self._measured, self._nodes = measured, cluster.nodes

    def decided(self, decision: Decision, situation: Situation) -> None:
        """Show network and script once, then the candidates and the reason."""
        if self._measured is not None:
            self._nodes = nodes_to_show(situation.nodes, decision)
        self._show_measured(decision)
        self._letters = self._letters or node_letters(situation.nodes, decision)
        self._print(Text())
        spent = situation.spent_s, situation.spent_usd
        with _left_terminal_ignored():
            print_decision(self._console, decision, self._letters, *spent)
        self._print(Text())

    def confirm(self, question: str) -> bool:
        """Ask the person at the terminal; anything but yes is no."""
        self._progress.pause()
        self._progress.output(f"{question} [y/N] ", "stderr")
        answer = self._answers.readline()
        self._progress.pause()
        return answer.strip().lower() in YES

    def ended(self, record: RunRecord) -> None:
        """Show the outcome; a failure shows its error instead."""
        self._show_measured(None)
        self._progress.close()
        if record.status == "failed":
            return
        if not record.segments and record.status == "done":
            self._print(Text("dry run: nothing was started"))
            return
        with _left_terminal_ignored():
            print_outcome(self._console, record)

    def close(self) -> None:
        """Leave a clean terminal."""
        self._progress.close()

    def _show_measured(self, decision: Decision | None) -> None:
        if self._measured is None:
            return
        measured, self._measured = self._measured, None
        self._letters = node_letters(self._nodes, decision)
        width = self._console.width
        if len(self._nodes) > 1:
            self._print(legend_text(self._letters, self._nodes, width))
        self._print(network_text(measured.network, self._letters, width, self._began))
        basis = "measured earlier" if measured.profile_remembered else "measured"
        self._print(script_text(measured.workload, versions(), width, basis))

    def _print(self, text: Text) -> None:
        self._progress.pause()
        with _left_terminal_ignored():
            self._console.print(text, soft_wrap=True)


class FollowedScreen:
    """Shows a run to the person who launched it and, in its journal, to those who follow it."""

    def __init__(self, here: TerminalScreen, journal: TerminalScreen) -> None:
        self._here, self._both = here, (here, journal)

    def stage(self, text: str) -> None:
        """Say what is going on."""
        for screen in self._both:
            screen.stage(text)

    def output(self, text: str, stream: str) -> None:
        """Pass on what the script printed."""
        for screen in self._both:
            screen.output(text, stream)

    def warn(self, text: str) -> None:
        """Say that something is not as it should be."""
        for screen in self._both:
            screen.warn(text)

    def note(self, text: str) -> None:
        """Say in a line what happened, or was decided."""
        for screen in self._both:
            screen.note(text)

    def training(self, status: Status) -> None:
        """Show where training stands."""
        for screen in self._both:
            screen.training(status)

    def cluster(self, cluster: Cluster) -> None:
        """Show which cluster it is, and its nodes."""
        for screen in self._both:
            screen.cluster(cluster)

    def measured(self, measured: Measured, cluster: Cluster) -> None:
        """Show network and script."""
        for screen in self._both:
            screen.measured(measured, cluster)

    def decided(self, decision: Decision, situation: Situation) -> None:
        """Show the candidates and the reason."""
        for screen in self._both:
            screen.decided(decision, situation)

    def confirm(self, question: str) -> bool:
        """Ask the person at the terminal."""
        return self._here.confirm(question)

    def ended(self, record: RunRecord) -> None:
        """Show the outcome."""
        for screen in self._both:
            screen.ended(record)


def make_screen(
    environment: Environment, terminal: Terminal, clock: Callable[[], float], *, is_json: bool
) -> TerminalScreen:
    """The screen on this process's standard streams.

    With `is_json` stdout is left to the record: all else goes to stderr.
    """
    out, out_is_tty = (
        (sys.stderr, terminal.stderr_is_tty) if is_json else (sys.stdout, terminal.stdout_is_tty)
    )
    console = make_console(out, is_tty=out_is_tty, environment=environment)
    progress = make_progress(environment, terminal, clock, is_json=is_json)
    return TerminalScreen(progress, console, sys.stdin)


def make_journal_screen(
    journal: Journal, environment: Environment, *, columns: int = PLAIN_WIDTH, colour: bool = False
) -> TerminalScreen:
    """A screen that writes a run's journal; questions wait for an answer of who follows it.

    Args:
        columns: of the terminal that the run is likely to be shown on.
        colour: whether tables are coloured; who follows without a terminal gets them plain.
    """
    console = Console(
        file=JournalText(journal),  # type: ignore[arg-type] # all that a console asks of a stream
        force_terminal=colour,
        no_color=environment.no_color,
        width=columns,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    return TerminalScreen(JournalLines(journal), console, JournalAnswers(journal))


@contextmanager
def _left_terminal_ignored() -> Iterator[None]:
    """A terminal that is gone must not end a run that stops at a checkpoint."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
