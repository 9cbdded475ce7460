"""Which cluster afar a command line names, as far as it needs no cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.job_book import JobBook, JobPlace
from tests.command_line import Launch, command_line

SCRIPT = "import keras\nmodel = keras.Sequential([keras.layers.Dense(1)])\nmodel.fit([1], [1])\n"
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Launch]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    with command_line(capsys) as call:
        yield call


def test_a_dashboard_where_nobody_answers_is_one_line(launch: Launch) -> None:
    code, out, err = launch("train.py", "--address", NOBODY)
    assert (code, out) == (4, "")
    assert f"launch: No Ray dashboard answers at {NOBODY}: Connection refused. Is the" in err


@pytest.mark.parametrize("command", ["attach", "stop", "fetch"])
def test_a_run_that_was_sent_from_here_is_looked_for_there(
    launch: Launch, tmp_path: Path, command: str
) -> None:
    book = JobBook(tmp_path / "home" / ".launch" / "jobs")
    book.write("far", JobPlace("job-1", "/root/launch", address=NOBODY))
    code, _, err = launch(command, "far")
    assert (code, "No Ray dashboard answers at" in err) == (4, True)


def test_a_cluster_file_that_is_not_there_is_refused(launch: Launch) -> None:
    code, _, err = launch("train.py", "--cluster", "no.yaml", "--down-when-done")
    assert code == 2
    assert "no.yaml cannot be read: No such file or directory" in err


def test_two_clusters_are_refused(launch: Launch) -> None:
    code, _, err = launch("train.py", "--cluster", "no.yaml", "--address", NOBODY)
    assert code == 2
    assert "--address and --cluster name two clusters. Leave one of them out." in err


def test_only_a_cluster_from_a_file_can_be_taken_down(launch: Launch) -> None:
    code, _, err = launch("train.py", "--address", NOBODY, "--down-when-done")
    assert code == 2
    assert "--down-when-done takes a cluster down that --cluster FILE names." in err


def test_a_flag_wins_over_the_variable_for_the_other(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCH_CLUSTER", "no.yaml")
    assert "No Ray dashboard answers" in launch("train.py", "--address", NOBODY)[2]
    assert "no.yaml cannot be read" in launch("train.py")[2]
    assert "--down-when-done" not in launch("runs")[2]
