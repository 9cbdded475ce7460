import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from launcher.cli import app
from launcher.command import execute
from launcher.record import RunRecord, dump_record
from tests.pasts import a_trained

Launch = Callable[..., tuple[int, str, str]]
TRAINED = (
    a_trained("brave-otter", 3, day=0),
    a_trained("calm-hare", 1, day=1),
    a_trained("tidy-fox", 4, day=2, asked=4),
)


@pytest.fixture
def launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Launch:
    """Runs `launch policy` in an empty home; gives exit code, stdout and stderr."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LAUNCH_STORAGE", raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        code = execute(typer.main.get_command(app), ["policy", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def keep(tmp_path: Path) -> Callable[..., None]:
    """Puts records into the default storage."""

    def put(*records: RunRecord | tuple[str, str]) -> None:
        for each in records:
            name, text = each if isinstance(each, tuple) else (each.run, dump_record(each))
            folder = tmp_path / "launch/runs" / name
            folder.mkdir(parents=True)
            (folder / "run.json").write_text(text)

    return put


def line(out: str, start: str) -> str:
    return next(x for x in out.splitlines() if x.startswith(start))


def test_a_replay_tells_of_each_run_and_of_all(launch: Launch, keep: Callable[..., None]) -> None:
    keep(*TRAINED)
    code, out, err = launch("replay", "--policy", "one worker")
    assert (code, err) == (0, "")
    assert "Never distribute" in out
    assert "3 runs in" in line(out, "runs")
    assert line(out, "calm-hare").rstrip().endswith("same")
    assert "min lost" in line(out, "brave-otter")
    assert "saved" in line(out, "tidy-fox")
    assert line(out, "tidy-fox").rstrip().endswith("measured")
    told = " ".join(out.split())
    assert "Over 3 runs" in told
    assert "1 the same, 2 measured in other runs, 0 predicted" in told
    assert "--workers had fixed n in tidy-fox (4 workers)" in told


def test_what_was_never_measured_is_marked_so(launch: Launch, keep: Callable[..., None]) -> None:
    keep(TRAINED[1])
    _, out, _ = launch("replay", "--policy", "all-nodes")
    assert line(out, "calm-hare").rstrip().endswith("predicted")


def test_only_the_last_runs_are_replayed(launch: Launch, keep: Callable[..., None]) -> None:
    keep(*TRAINED)
    _, out, _ = launch("replay", "--policy", "all-nodes", "--last", "1")
    assert "the last 1 of 3 runs" in out
    assert "all of them: --last 3" in out
    assert "brave-otter" not in out


def test_without_a_policy_all_are_compared(launch: Launch, keep: Callable[..., None]) -> None:
    keep(*TRAINED[:2])
    code, out, _ = launch("replay")
    assert code == 0
    for name in ("launch", "cold", "prior", "one-worker", "adaptdl", "nearest-neighbour"):
        assert "min" in line(out, f"{name} ")


def test_a_replay_for_machines_has_every_number_with_its_basis(
    launch: Launch, keep: Callable[..., None]
) -> None:
    keep(*TRAINED, ("broken", "{"))
    code, out, _ = launch("replay", "--policy", "one-worker", "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == 0
    assert found["policy"] == "one-worker"
    assert [x["run"] for x in found["runs"]] == ["tidy-fox", "calm-hare", "brave-otter"]
    fox = found["runs"][0]
    assert (fox["basis"], fox["measured_in"], fox["asked"]) == ("measured", ["calm-hare"], 4)
    assert fox["plan"]["n_workers"] == 1
    assert fox["lost_s"]["low"] < fox["lost_s"]["mean"] < fox["lost_s"]["high"] < 0
    assert found["total"]["n_runs"] == 3
    assert "run.json is damaged" in found["damaged"][0]


def test_runs_that_cannot_be_replayed_are_named_with_the_reason(
    launch: Launch, keep: Callable[..., None]
) -> None:
    older = json.loads(dump_record(a_trained("old-owl", 2)))
    for key in ("term", "detached", "node_starts", "events", "checkpoints"):
        del older[key]
    for entry in older["decisions"]:
        del entry["work"], entry["rival"], entry["notes"]
    keep(
        replace(a_trained("busy-bee", 2), status="running", outcome=None),
        replace(a_trained("dry-newt", 2), segments=()),
        ("old-owl", json.dumps(older)),
        ("broken", "[]"),
        ("future", json.dumps({**older, "schema": 99})),
    )
    code, out, err = launch("replay", "--policy", "launch")
    assert (code, err) == (0, "")
    assert "has not ended" in line(out, "  busy-bee")
    assert "it was not trained" in line(out, "  dry-newt")
    assert line(out, "old-owl")
    told = " ".join(out.split())
    assert "is damaged: it is not a run record" in told
    assert "schema version 99" in told


def test_a_run_that_would_have_been_refused_says_so(
    launch: Launch, keep: Callable[..., None]
) -> None:
    record = a_trained("brave-otter", 3)
    keep(replace(record, request=replace(record.request, budget_usd=0.01)))
    _, out, _ = launch("replay", "--policy", "launch")
    assert "launch would have refused it: " in out


def test_a_policy_that_is_not_known_lists_those_that_are(launch: Launch) -> None:
    code, out, err = launch("replay", "--policy", "ernst")
    assert (code, out) == (2, "")
    assert "--policy 'ernst' is not known. Did you mean ernest?" in err
    assert "nearest-neighbour" in err
    assert err.count("\n") == 1


def test_a_senseless_number_of_runs_is_refused(launch: Launch) -> None:
    code, _, err = launch("replay", "--last", "0")
    assert (code, err) == (2, "launch: --last '0' must be a whole number from 1 on.\n")


def test_without_a_run_both_say_so(launch: Launch) -> None:
    assert launch("replay")[:2] == (0, "No runs yet. Start one: launch train.py --budget 5\n")
    code, out, _ = launch("show")
    assert (code, out.startswith("No runs yet")) == (0, True)
    assert launch("show", "--json")[1] == "null\n"
    assert json.loads(launch("replay", "--policy", "launch", "--json")[1])["runs"] == []


def test_beliefs_are_shown_with_what_they_rest_on(
    launch: Launch, keep: Callable[..., None]
) -> None:
    keep(*TRAINED)
    code, out, err = launch("show")
    assert (code, err) == (0, "")
    assert out.startswith("as of tidy-fox · train.py")
    assert "3 stretches of training in 3 runs · 3 of this script" in line(out, "rests on")
    assert "measured" in line(out, "a–c to d")
    assert "in brave-otter" in out
    assert "efficiency" in out


def test_beliefs_for_machines_are_one_object(launch: Launch, keep: Callable[..., None]) -> None:
    keep(*TRAINED)
    found: dict[str, Any] = json.loads(launch("show", "brave-otter", "--json")[1])
    assert found["run"] == "brave-otter"
    assert found["plans"][0]["plan"]["n_workers"] == 1
    assert found["plans"][0]["measured"]["runs"] == ["calm-hare"]
    assert found["evidence"]["n_own_runs"] == 3


def test_a_run_that_tells_of_no_cluster_is_passed_over_unless_asked_for(
    launch: Launch, keep: Callable[..., None]
) -> None:
    keep(TRAINED[0], replace(a_trained("lazy-cat", 2, day=5), cluster=None))
    assert launch("show")[1].startswith("as of brave-otter")
    code, _, err = launch("show", "lazy-cat")
    assert (code, "lazy-cat ended before its cluster and script were known" in err) == (2, True)
    assert launch("show", "no-one")[0] == 2


def test_the_group_alone_prints_its_help(launch: Launch) -> None:
    code, out, _ = launch()
    assert code == 0
    assert "replay" in out
    assert "show" in out


def test_arguments_for_a_script_are_refused(launch: Launch) -> None:
    assert "takes no arguments after --" in launch("show", "--", "x")[2]
