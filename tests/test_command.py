"""How a command ends: its last words, its exit code, and what it does to a terminal."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from launcher.command import Session, execute, report_error
from launcher.config import Environment, Terminal
from launcher.errors import ClusterError, ScriptFailedError, StorageError
from launcher.runs import RunIndex, RunStore
from launcher.storage import Storage
from tests.command_line import command_line
from tests.fakes import a_record


@pytest.fixture
def home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Path]:
    """The home of whoever calls a command, which is not there yet."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with command_line(capsys):
        yield tmp_path / "home"


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    home = tmp_path / "home"
    return RunStore(Storage.open(str(home / "launch")), RunIndex(home / ".launch" / "runs"))


def test_an_unexpected_error_is_one_line_with_the_log(
    home: Path,
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oh")

    class Group:
        def main(self, **_: object) -> None:
            broken()

    code = execute(Group(), [])
    assert code == 1
    (log,) = (home / ".launch" / "logs").rglob("launch.log")
    assert "ZeroDivisionError: oh" in log.read_text()
    assert "def broken" not in log.read_text()
    assert "in broken" in log.read_text()


def test_an_unexpected_error_without_a_home_to_log_in_is_told_all_the_same(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_text("a file")

    class Group:
        def main(self, **_: object) -> None:
            raise ZeroDivisionError("oh")

    assert execute(Group(), []) == 1
    assert capsys.readouterr().err.endswith("launch: internal error: ZeroDivisionError: oh.\n")


def test_a_home_that_cannot_hold_logs_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    session = Session(Environment(home=tmp_path / "home", cwd=tmp_path), Terminal())
    with pytest.raises(StorageError, match=r"log folder .* cannot be written.*Set HOME"):
        session.start_logging(print)


def a_session(tmp_path: Path) -> Session:
    session = Session(Environment(home=tmp_path, cwd=tmp_path), Terminal())
    session.log_file = tmp_path / "logs" / "launch.log"
    session.log_file.parent.mkdir()
    (session.log_file.parent / "ray.log").write_text("noise")
    return session


def test_a_failed_script_shows_its_traceback_and_nothing_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traceback = "Traceback (most recent call last):\nValueError: boom\n"
    assert report_error(ScriptFailedError(0, traceback), a_session(tmp_path)) == 1
    assert capsys.readouterr().err == traceback


def test_a_failed_cluster_names_the_log_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(ClusterError("No cluster."), a_session(tmp_path)) == 4
    assert capsys.readouterr().err == (
        f"launch: No cluster.\nlaunch: what Ray and TensorFlow said is in {tmp_path}/logs\n"
    )


def test_an_interrupt_before_training_has_its_exit_code(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = typer.Typer()

    @stopped.command()
    def stop() -> None:
        raise KeyboardInterrupt

    assert execute(typer.main.get_command(stopped), []) == 130
    assert capsys.readouterr().err == "launch: interrupted before training began\n"


def children_cpu_s() -> float:
    """Processor time of child processes that have ended: others who compute do not add to it."""
    times = os.times()
    return times.children_user + times.children_system


def test_help_comes_at_once_and_loads_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['launch', '--help']\n"
        "from launcher.cli import main\n"
        "try: main()\n"
        "finally: print([m for m in ('ray', 'tensorflow', 'sklearn', 'numpy', 'pyarrow')"
        " if m in sys.modules])"
    )
    before_s = children_cpu_s()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.rstrip().endswith("[]")
    assert children_cpu_s() - before_s < 5  # 0.2 s on an idle machine


def test_closed_streams_and_a_folder_that_is_gone_are_no_reason_for_a_traceback(
    store: RunStore, tmp_path: Path
) -> None:
    store.save(a_record())
    launch = f"{sys.executable} -c 'from launcher.cli import main; main()' runs"
    script = f"{launch} >&- || exit 3; {launch} 2>&- || exit 4; cd gone; rmdir ../gone; {launch}"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 2, done.stderr
    assert "launch: The current folder cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error_worth_a_traceback(store: RunStore, tmp_path: Path) -> None:
    store.save(a_record())
    program = "from launcher.cli import main; main()"
    command = f"{sys.executable} -c '{program}' runs | true"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "HOME": str(tmp_path / "home")},
    )
    assert done.stderr == ""
