"""What a person sees of a run: stages, the decision, the script's output, the outcome."""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TextIO

from rich.console import Console
from rich.text import Text

from launcher.cluster import Cluster
from launcher.cluster_nodes import busy_text
from launcher.config import Environment, Terminal
from launcher.console import make_console
from launcher.network_text import network_text
from launcher.prepare import Measured, versions
from launcher.progress import Progress, Status
from launcher.progress_streams import make_progress
from launcher.record import RunRecord
from launcher.report import print_decision, print_outcome
from launcher.summary import cluster_text, legend_text, node_letters, script_text
from policies.schema import Decision, Node, Situation

YES = frozenset({"y", "yes"})


class TerminalScreen:
    """Shows a run on the standard streams.

    Args:
        progress: stages, training and the script's output.
        console: for results.
        answers: where a person's answer is read from.
    """

    def __init__(self, progress: Progress, console: Console, answers: TextIO) -> None:
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

    def training(self, status: Status) -> None:
        """Show where training stands."""
        self._progress.training(status)

    def cluster(self, cluster: Cluster) -> None:
        """Show which cluster it is, and its nodes."""
        self._nodes = cluster.nodes
        self._print(cluster_text(cluster.how, cluster.nodes, self._console.width))
        if cluster.busy:
            self.warn(f"{busy_text(cluster.busy)}; --wait 10m waits for that.")

    def measured(self, measured: Measured, cluster: Cluster) -> None:
        """Keep network and script until the decision gives the nodes their letters."""
        self._measured, self._nodes = measured, cluster.nodes

    def decided(self, decision: Decision, situation: Situation) -> None:
        """Show network and script once, then the candidates and the reason."""
        self._show_measured(decision)
        self._letters = self._letters or node_letters(situation.nodes, decision)
        self._print(Text())
        spent = situation.spent_s, situation.spent_usd
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
        self._console.print(text, soft_wrap=True)


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
