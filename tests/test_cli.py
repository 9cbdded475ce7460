import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.command import conclude
from launcher.journal import Journal
from launcher.ownership import Driver, this_driver
from launcher.process import Process
from launcher.record import dump_record
from launcher.runs import RunIndex, RunStore
from launcher.storage import Storage
from tests.command_line import Launch, command_line
from tests.fakes import a_record


@pytest.fixture
def launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Launch]:
    """Runs a command line in an empty folder; gives exit code, stdout and stderr."""
    for name in [*os.environ]:
        if name.startswith("LAUNCH_") or name in {"TF_CONFIG", "KERAS_BACKEND", "RAY_ADDRESS"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with command_line(capsys) as call:
        yield call


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    home = tmp_path / "home"
    return RunStore(Storage.open(str(home / "launch")), RunIndex(home / ".launch" / "runs"))


def refused(result: tuple[int, str, str], message: str, code: int = 2) -> None:
    """One clear line, the right exit code, and nothing on stdout."""
    assert result[0] == code
    assert result[1] == ""
    assert message in result[2]
    assert result[2].startswith("launch: ")
    assert "Traceback" not in result[2]
    assert result[2].count("\n") == 1


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_names_the_commands(launch: Launch, words: list[str]) -> None:
    code, out, err = launch(*words)
    assert (code, err) == (0, "")
    names = ("run", "resume", "attach", "stop", "runs", "explain", "probe", "doctor")
    assert all(name in out for name in names)


def test_the_version_is_printed(launch: Launch) -> None:
    code, out, _ = launch("--version")
    assert code == 0
    assert out.startswith("launch 0.")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "nothing.py", "--budget", "5"],
        ["nothing.py", "--budget", "5"],
        ["--budget", "5", "nothing.py"],
        ["--dry-run", "--budget=5", "nothing.py", "--yes", "--", "--epochs", "3"],
    ],
)
def test_options_may_stand_before_or_after_the_script(launch: Launch, words: list[str]) -> None:
    refused(launch(*words), "There is no script ")


def test_a_folder_is_refused(launch: Launch) -> None:
    Path("project").mkdir()
    refused(launch("project"), "is a folder, not a script")


def test_a_syntax_error_is_shown_like_python_shows_it(launch: Launch) -> None:
    Path("train.py").write_text("def f(:\n")
    code, out, err = launch("train.py")
    assert (code, out) == (2, "")
    assert 'train.py", line 1' in err
    assert "SyntaxError" in err
    assert "Traceback" not in err


def test_a_script_without_training_is_refused(launch: Launch) -> None:
    Path("train.py").write_text("print('hello')\n")
    refused(launch("train.py"), "does not train anything")


@pytest.mark.parametrize("amount", ["0", "-3", "abc", "nan", "1e9"])
def test_a_senseless_budget_is_refused(launch: Launch, amount: str) -> None:
    refused(launch("train.py", "--budget", amount), "--budget")


def test_senseless_workers_and_deadlines_are_refused(launch: Launch) -> None:
    refused(launch("train.py", "--workers", "0"), "--workers '0' is not a number of workers")
    refused(launch("train.py", "--deadline", "soon"), "--deadline 'soon' is not a time span")


def test_a_variable_stands_for_a_flag(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCH_BUDGET", "abc")
    refused(launch("train.py"), "LAUNCH_BUDGET 'abc'")


def test_tf_config_is_refused(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    refused(launch("train.py"), "TF_CONFIG is already set")


def test_an_unknown_option_gets_a_suggestion(launch: Launch) -> None:
    refused(launch("train.py", "--budgt", "5"), "no option --budgt. Did you mean --budget?")


def test_a_scripts_option_without_the_dashes_is_explained(launch: Launch) -> None:
    refused(launch("train.py", "--epochs", "3"), "own arguments go after --")
    refused(launch("train.py", "5"), "Unexpected argument '5'")


def test_an_option_that_is_not_offered_yet_is_unknown(launch: Launch) -> None:
    refused(launch("train.py", "--compress"), "There is no option --compress")
    refused(
        launch("train.py", "--strategy", "gossip"),
        "Choose auto, allreduce, direct or decentralized",
    )


def test_an_option_without_its_value_is_refused(launch: Launch) -> None:
    refused(launch("train.py", "--budget"), "requires an argument")


def test_a_mistyped_command_gets_a_suggestion(launch: Launch) -> None:
    refused(launch("explian", "brave-otter"), "Did you mean `launch explain`?")
    refused(launch("--budget", "5", "runs"), "The command stands first: launch runs")


def test_the_doctor_refuses_a_script_that_cannot_be_trained(launch: Launch) -> None:
    refused(launch("doctor", "nothing.py"), "There is no script ")
    refused(launch("doctor", "--", "--data", "/mnt/x"), "takes no arguments after --")


def test_the_doctor_says_in_one_line_that_there_is_no_cluster(launch: Launch) -> None:
    code, out, err = launch("doctor", "--address", "127.0.0.1:9")
    assert (code, out) == (4, "")
    assert "No Ray cluster answers at 127.0.0.1:9" in err.splitlines()[-1]


def test_a_missing_script_is_named(launch: Launch) -> None:
    refused(launch("run"), "SCRIPT")
    refused(launch("--", "--epochs", "3"), "SCRIPT")


def test_arguments_after_the_dashes_are_for_scripts_only(launch: Launch) -> None:
    refused(launch("runs", "--", "x"), "takes no arguments after --")


@pytest.mark.parametrize("command", ["resume", "explain", "attach", "stop"])
def test_an_unknown_run_is_refused(launch: Launch, command: str) -> None:
    refused(launch(command, "brave-otter"), "There is no run named 'brave-otter'")


@pytest.mark.parametrize("command", ["resume", "explain", "attach", "stop"])
def test_a_damaged_record_is_refused(launch: Launch, store: RunStore, command: str) -> None:
    store.storage.write("runs/otter/run.json", b"{")
    refused(launch(command, "otter"), "run.json is damaged")


def test_a_run_that_used_its_budget_asks_for_a_new_one(launch: Launch, store: RunStore) -> None:
    record = replace(a_record(), status="budget")
    assert record.outcome is not None
    store.save(replace(record, outcome=replace(record.outcome, cost_usd=4.99)))
    refused(launch("resume", "brave-otter"), "launch resume brave-otter --budget 5")


def test_nothing_is_detached_from_a_dry_run(launch: Launch) -> None:
    Path("train.py").write_text("model.fit(x)\n")
    refused(launch("train.py", "--dry-run", "--detach"), "Leave --detach out")


def test_only_a_run_that_is_driven_can_be_stopped(launch: Launch, store: RunStore) -> None:
    store.save(a_record())
    refused(launch("stop", "brave-otter"), "brave-otter is not running: done.")
    store.ownership("lost-otter").take(1, Driver(process_of_nobody()))
    store.save(replace(a_record("lost-otter"), status="running"))
    refused(launch("stop", "lost-otter"), "lost. Go on with it: launch resume lost-otter")


def test_a_run_that_has_ended_is_shown_with_its_exit_code(launch: Launch, store: RunStore) -> None:
    store.save(replace(a_record(), status="budget", exit_code=5))
    code, out, _ = launch("attach", "brave-otter")
    assert code == 5
    assert out.startswith("stopped at the budget in 18 min 52 s")


def test_a_run_of_this_machine_is_shown_as_it_was_printed(
    launch: Launch, store: RunStore, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    store.ownership("brave-otter").take(1, this_driver(str(journal.path)))
    store.save(replace(a_record(), status="failed", exit_code=1))
    journal.output("hello\n", "stdout")
    conclude(journal, 1, "Traceback\nValueError: no\n", a_record())
    code, out, err = launch("attach", "brave-otter")
    assert (code, out, err) == (1, "hello\n", "Traceback\nValueError: no\n")
    code, out, err = launch("attach", "brave-otter", "--json")
    assert json.loads(out)["run"] == "brave-otter"
    assert "hello" in err


def test_a_run_of_another_machine_is_looked_for_there(launch: Launch, store: RunStore) -> None:
    store.index.remember("brave-otter", "/root/launch", "far")
    refused(launch("explain", "brave-otter"), "brave-otter is kept in /root/launch on far.")


def test_runs_tells_which_are_lost_and_which_detached(launch: Launch, store: RunStore) -> None:
    for name, process in (("otter", process_of_mine()), ("hare", process_of_nobody())):
        store.ownership(name).take(1, Driver(process, detached=True))
        store.save(replace(a_record(name), status="running", detached=True))
    _, out, _ = launch("runs")
    assert re.search("otter +detached", out)
    assert re.search("hare +lost", out)


def process_of_mine() -> Process:
    return this_driver().process


def process_of_nobody() -> Process:
    return replace(this_driver().process, started="1")


def test_runs_lists_what_there_is(launch: Launch, store: RunStore) -> None:
    store.save(a_record())
    store.storage.write("runs/broken/run.json", b"{")
    code, out, _ = launch("runs")
    assert code == 0
    assert "brave-otter" in out
    assert "runs/broken/run.json" in out


def test_runs_as_json_is_a_list_of_records(launch: Launch, store: RunStore) -> None:
    store.save(a_record())
    code, out, err = launch("runs", "--json")
    assert (code, err) == (0, "")
    assert [run["run"] for run in json.loads(out)] == ["brave-otter"]


def test_a_run_is_explained(launch: Launch, store: RunStore) -> None:
    store.save(a_record())
    code, out, err = launch("explain", "brave-otter")
    assert (code, err) == (0, "")
    assert "Not two: " in out


def test_a_run_is_explained_as_json(launch: Launch, store: RunStore) -> None:
    store.save(a_record())
    assert json.loads(launch("explain", "brave-otter", "--json")[1]) == json.loads(
        dump_record(a_record())
    )


def test_a_run_in_another_storage_is_found_by_its_name(
    launch: Launch, store: RunStore, tmp_path: Path
) -> None:
    elsewhere = RunStore(Storage.open(str(tmp_path / "else")), store.index)
    elsewhere.save(a_record())
    store.index.remember("brave-otter", elsewhere.storage.uri)
    assert launch("explain", "brave-otter")[0] == 0


def test_storage_that_cannot_be_listed_is_one_clear_line(launch: Launch) -> None:
    refused(launch("runs", "--storage", "foo://bar"), "Storage foo://bar cannot be opened", 4)
