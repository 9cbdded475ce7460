"""What people read of a search."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from launcher.errors import RecordError, UsageError
from launcher.ownership import this_driver
from launcher.record import CODEC
from launcher.storage import Storage
from launcher.trials import arguments, value_text
from launcher.tune_metric import mode_of
from launcher.tune_record import EpochValue, Trial, TuneRecord, TuneStore, new_tune_record
from launcher.tune_report import (
    TuneScreen,
    again_text,
    pointers,
    print_tune,
    summary_line,
    tune_json,
)
from tests.fakes import NOW, FakeClock, a_request

SPACE = "learning_rate: {float: [0.001, 1], log: true}\nkind: [a b, c]\nepochs: 3\n"
SOURCE = 'parser.add_argument("--learning-rate")\nparser.add_argument("--kind")'


def a_tune(**changes: object) -> TuneRecord:
    trials = (
        Trial(
            0,
            "tune-otter-000",
            {"learning_rate": 0.012345678, "kind": "a b"},
            "done",
            epochs=3,
            n_workers=2,
            values=(EpochValue(1, 0.7), EpochValue(3, 0.91)),
            cost_usd=0.21,
            model="/launch/runs/tune-otter-000/model.keras",
        ),
        Trial(1, "tune-otter-001", {"learning_rate": 0.5, "kind": "c"}, "stopped", epochs=3),
    )
    record = new_tune_record(
        NOW,
        name="tune-otter",
        request=a_request(args=("--data", "digits")),
        script="train.py",
        passes_variable=False,
        space_file="space.yaml",
        space=SPACE,
        metric="val_accuracy",
        mode="max",
        searcher="tpe",
        n_trials=2,
        trials=trials,
        spent_s=75.0,
    )
    return replace(record, **{"status": "done", **changes})  # type: ignore[arg-type]


def printed(record: TuneRecord) -> str:
    console = Console(file=io.StringIO(), width=120, highlight=False, emoji=False, markup=False)
    print_tune(console, record, SOURCE)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_outcome_tells_the_best_trial_its_model_and_how_to_train_it_again() -> None:
    text = printed(a_tune())
    assert "✔  0      0.01235        a b   2  3/3" in text
    assert "done after 1 min 15 s for $0.21 · 2 trials, 1 stopped early" in text
    assert "/launch/runs/tune-otter-000/model.keras" in text
    assert (
        "launch train.py --seed 7 -- --data digits --epochs 3 --learning-rate 0.012345678 "
        "--kind 'a b'"
    ) in " ".join(text.split())
    assert "go on" not in text


def test_parameters_in_a_variable_stand_before_the_command() -> None:
    record = a_tune(passes_variable=True)
    text = again_text(record, record.trials[1], SOURCE)
    before, after = text.split(" launch ")
    assert after == "train.py --seed 7 -- --data digits"
    assert json.loads(before.removeprefix("LAUNCH_PARAMS=").strip("'")) == {
        "epochs": 3,
        "learning_rate": 0.5,
        "kind": "c",
    }


def test_a_search_that_was_stopped_tells_how_to_go_on() -> None:
    shown = dict(pointers(a_tune(status="budget"), SOURCE))
    assert shown["go on"] == "launch tune --resume tune-otter --budget 5"
    best = replace(a_tune().trials[0], model=None, status="interrupted")
    record = replace(a_tune(), status="interrupted", trials=(best,))
    assert dict(pointers(record, SOURCE))["train on"] == "launch resume tune-otter-000"


def test_plain_lines_tell_each_change_once() -> None:
    out, clock = io.StringIO(), FakeClock()
    console = Console(file=out, width=120, highlight=False, emoji=False, markup=False)
    screen = TuneScreen(console, is_live=False, clock=clock)
    for _ in range(3):
        screen.changed(a_tune(), {})
    clock.sleep(31)
    screen.changed(a_tune(), {})
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert "trial 0 done: learning_rate=0.01235 kind='a b' · val_accuracy 0.91 (3/3" in lines[0]
    assert lines[2] == "launch: 2 of 2 trials ended, 0 running · $0.21 of $5 · best 0.91"
    assert summary_line(a_tune()) in lines[2]


def test_a_live_table_shows_what_each_trial_is_at() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, no_color=True)
    screen = TuneScreen(console, is_live=True)
    screen.begin()
    running = replace(a_tune().trials[1], status="running", nodes=("a", "b"))
    screen.changed(a_tune().with_trial(running), {1: "profiling"})
    screen.close()
    assert "profiling" in out.getvalue()
    assert "≤2" in out.getvalue()


def test_machines_get_the_record_with_the_best_trial() -> None:
    document = json.loads(json.dumps(tune_json(a_tune(), SOURCE)))
    assert document["best"]["number"] == 0
    assert document["again"].startswith("launch train.py")
    known = {key: value for key, value in document.items() if key not in {"best", "again"}}
    assert CODEC.decode(TuneRecord, known) == a_tune()


def test_arguments_are_named_as_the_script_names_them() -> None:
    assert arguments({"learning_rate": 1e-5, "a-b": True}, "--learning-rate --a_b") == (
        "--learning-rate",
        "1e-05",
        "--a_b",
        "true",
    )
    assert arguments({"my_name": "x"}, "") == ("--my_name", "x")
    assert arguments({"shift": -1e-5}, "") == ("--shift=-1e-05",)
    assert value_text(0.1 + 0.2) == "0.30000000000000004"


@pytest.mark.parametrize(
    ("metric", "mode"), [(None, "min"), ("val_accuracy", "max"), ("val_mae", "min"), ("AUC", "max")]
)
def test_the_name_of_a_metric_tells_its_direction(metric: str | None, mode: str) -> None:
    assert mode_of(metric) == mode


def test_a_search_is_kept_and_has_one_driver_at_a_time(tmp_path: Path) -> None:
    import numpy as np

    store = TuneStore(Storage.open(str(tmp_path)))
    rng = np.random.default_rng(0)
    assert store.claim("tune-otter", this_driver(), rng) == "tune-otter"
    with pytest.raises(UsageError, match=r"already a search named tune-otter .* --resume"):
        store.claim("tune-otter", this_driver(), rng)
    record = a_tune(status="interrupted")
    store.save(record)
    assert store.load("tune-otter") == record
    taken = store.take_over(record, this_driver())
    with pytest.raises(RecordError, match="has been taken over"):
        store.save(record)
    store.save(replace(taken, status="running"))
    with pytest.raises(UsageError, match="tune-otter is driven by"):
        store.take_over(store.load("tune-otter"), this_driver())
    assert store.claim(None, this_driver(), rng).startswith("tune-")


def test_a_search_that_is_not_there_or_damaged_is_told(tmp_path: Path) -> None:
    store = TuneStore(Storage.open(str(tmp_path)))
    with pytest.raises(RecordError, match="There is no search named 'otter'"):
        store.load("otter")
    store.folder("otter").write("tune.json", b'{"schema": 1}')
    with pytest.raises(RecordError, match="is damaged"):
        store.load("otter")
