import errno
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cluster import Cluster
from launcher.config import Environment
from launcher.config import Terminal as Streams
from launcher.console import make_console
from launcher.journal import KeptStatus
from launcher.prepare import Measured
from launcher.progress import Progress
from launcher.progress_streams import make_progress
from launcher.screen import FollowedScreen, TerminalScreen
from tests.fakes import FakeClock, a_decision, a_network, a_node, a_record, a_workload


class Terminal:
    """A screen on streams that are kept."""

    def __init__(self, answer: str = "") -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        environment = Environment(home=Path("/home/ada"), cwd=Path("/project"))
        progress = Progress(
            self.out, self.err, live=False, shared=False, clock=FakeClock(), width=lambda: 80
        )
        console = make_console(self.out, is_tty=False, environment=environment)
        self.screen = TerminalScreen(progress, console, io.StringIO(answer))


def show_until_decided(terminal: Terminal) -> None:
    record = a_record()
    situation = record.situation()
    assert situation is not None
    cluster = Cluster("10.0.0.4:6379", False, situation.nodes, "joined the cluster running here")
    terminal.screen.cluster(cluster)
    terminal.screen.measured(Measured(a_network(), a_workload(), False), cluster)
    terminal.screen.decided(a_decision(), situation)


def test_a_run_shows_cluster_network_script_and_candidates_in_this_order() -> None:
    terminal = Terminal()
    show_until_decided(terminal)
    text = terminal.out.getvalue()
    words = ["cluster", "nodes", "network", "script", " ✔ ", "3 workers: half"]
    places = [text.index(word) for word in words]
    assert places == sorted(places)


def test_a_second_decision_shows_only_candidates_again() -> None:
    terminal = Terminal()
    show_until_decided(terminal)
    situation = a_record().situation()
    assert situation is not None
    terminal.screen.decided(a_decision(), situation)
    text = terminal.out.getvalue()
    assert text.count("network ") == 1
    assert text.count(" ✔ ") == 2


def test_what_was_measured_is_shown_even_if_no_plan_fits() -> None:
    terminal = Terminal()
    cluster = Cluster("x", False, (a_node(0),), "joined x")
    terminal.screen.measured(Measured(a_network(), a_workload(), True), cluster)
    terminal.screen.ended(replace(a_record(), status="failed"))
    assert "measured earlier" in terminal.out.getvalue()
    assert "failed" not in terminal.out.getvalue()


def test_only_yes_is_yes() -> None:
    for answer, expected in (("y\n", True), ("YES\n", True), ("\n", False), ("", False)):
        terminal = Terminal(answer)
        assert terminal.screen.confirm("Start?") is expected
        assert terminal.err.getvalue() == "Start? [y/N] "


def test_warnings_are_one_line_on_stderr() -> None:
    terminal = Terminal()
    terminal.screen.warn("the loss is\nnan")
    assert terminal.err.getvalue() == "launch: warning: the loss is nan\n"


def test_the_scripts_output_and_the_outcome_are_on_stdout() -> None:
    terminal = Terminal()
    terminal.screen.stage("training")
    terminal.screen.output("hello\n", "stdout")
    terminal.screen.ended(a_record())
    assert terminal.out.getvalue().startswith("hello\ndone in 18 min 52 s")
    assert terminal.err.getvalue() == "launch: training\n"


def test_a_dry_run_says_that_nothing_was_started() -> None:
    terminal = Terminal()
    terminal.screen.ended(replace(a_record(), segments=()))
    assert terminal.out.getvalue() == "dry run: nothing was started\n"


def test_who_follows_a_run_sees_what_its_launcher_sees() -> None:
    here, elsewhere = Terminal("y\n"), Terminal("n\n")
    screen = FollowedScreen(here.screen, elsewhere.screen)
    record = a_record()
    situation = record.situation()
    assert situation is not None
    cluster = Cluster("10.0.0.4:6379", False, situation.nodes, "joined the cluster running here")
    screen.stage("probing")
    screen.cluster(cluster)
    screen.measured(Measured(a_network(), a_workload(), False), cluster)
    screen.decided(a_decision(), situation)
    screen.warn("a node is silent")
    screen.output("hello\n", "stdout")
    screen.training(KeptStatus(epoch=1, epoch_ended=True))
    screen.ended(record)
    assert here.out.getvalue() == elsewhere.out.getvalue() != ""
    assert here.err.getvalue() == elsewhere.err.getvalue() != ""
    assert screen.confirm("Start?")  # only who launched it is asked
    assert "Start?" not in elsewhere.err.getvalue()


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_is_gone_ends_no_run() -> None:
    environment = Environment(home=Path("/home/ada"), cwd=Path("/project"))
    progress = Progress(
        Gone(), Gone(), live=False, shared=False, clock=FakeClock(), width=lambda: 80
    )
    console = make_console(Gone(), is_tty=False, environment=environment)
    screen = TerminalScreen(progress, console, io.StringIO())
    screen.stage("probing")
    screen.decided(a_decision(), a_record().situation())  # type: ignore[arg-type]
    screen.ended(a_record())


def test_a_reader_that_goes_away_does_not_end_a_run() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = Environment(home=Path("/home/ada"), cwd=Path("/project"))
    with os.fdopen(writer, "w") as stream:
        console = make_console(stream, is_tty=False, environment=environment)
        progress = Progress(
            stream, io.StringIO(), live=False, shared=False, clock=FakeClock(), width=lambda: 80
        )
        screen = TerminalScreen(progress, console, io.StringIO())
        screen.ended(a_record())
        screen.output("more", "stdout")
        screen.ended(a_record())


def test_a_terminal_without_control_codes_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = Environment(home=Path("/home/ada"), cwd=Path("/project"))
    terminal = Streams(stdin_is_tty=True, stdout_is_tty=True, stderr_is_tty=True)
    monkeypatch.setenv("TERM", "dumb")
    make_progress(environment, terminal, FakeClock(), is_json=False).stage("profiling")
    assert capsys.readouterr().err == "launch: profiling\n"
