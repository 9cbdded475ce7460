"""`launch tune` on the command line, up to where trials would start."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launcher.ownership import this_driver
from launcher.storage import Storage
from launcher.tune_record import Trial, TuneRecord, TuneStore, new_tune_record
from tests.command_line import Launch, command_line
from tests.fakes import NOW, a_request

SCRIPT = "import keras\nmodel = keras.Sequential()\nmodel.fit([1], [2])\n"


@pytest.fixture
def launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Launch]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "space.yaml").write_text("rate: {float: [0, 1]}\n")
    (tmp_path / "wrong.yaml").write_text("rate:\n  float: [1, 0]\n")
    with command_line(capsys) as call:
        yield call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py"], "Give a script and its search space: launch tune train.py --space FILE"),
        (["--space", "space.yaml"], "Give a script and its search space"),
        (["train.py", "--space", "nix.yaml"], "No such file or directory. Check its path"),
        (["train.py", "--space", "wrong.yaml"], "wrong.yaml:2: rate: 1 is not below 0."),
        (["nix.py", "--space", "space.yaml"], "There is no script"),
        (["train.py", "--space", "space.yaml", "--trials", "0"], "--trials '0' must be a whole"),
        (["train.py", "--space", "space.yaml", "--mode", "up"], "--mode 'up' is not known"),
        (["train.py", "--space", "space.yaml", "--searcher", "x"], "--searcher 'x' is not known"),
        (["train.py", "--space", "space.yaml", "--address", "http://a:1"], "cannot send trials to"),
        (["train.py", "--space", "space.yaml", "--budget", "0"], "--budget is 0"),
        (["--resume", "otter"], "There is no search named 'otter'"),
        (["train.py", "--resume", "otter"], "leave SCRIPT and --space out"),
        (["--resume", "otter", "--full", "--metric", "loss"], "began: leave --full, --metric out."),
        (["--resume", "otter", "--", "--rate", "1"], "takes no arguments after --"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    launch: Launch, words: list[str], message: str, tmp_path: Path
) -> None:
    code, out, err = launch("tune", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "home" / "launch" / "tunes").exists()


def test_detaching_a_search_is_refused(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCH_DETACH", "1")
    code, _, err = launch("tune", "train.py", "--space", "space.yaml")
    assert code == 2
    assert "launch tune has no --detach" in err


def a_done_search(folder: Path, script: Path) -> None:
    """A search in storage that has tried all it was to try."""
    record: TuneRecord = new_tune_record(
        NOW,
        name="otter",
        request=replace(a_request(), script=script),
        script=str(script),
        passes_variable=False,
        space_file="space.yaml",
        space="rate: {float: [0, 1]}\n",
        metric="loss",
        mode="min",
        searcher="tpe",
        n_trials=3,
        trials=tuple(Trial(i, f"otter-00{i}", {"rate": 0.5}, "done") for i in range(3)),
    )
    store = TuneStore(Storage.open(str(folder)))
    store.claim("otter", this_driver(), np.random.default_rng(0))
    store.save(replace(record, status="done"))


@pytest.mark.parametrize(
    ("script", "more", "message"),
    [
        ("train.py", [], "otter is done: there is nothing to resume. For more trials than its 3"),
        ("train.py", ["--trials", "3"], "otter is done"),
        ("gone.py", ["--trials", "4"], "gone.py cannot be read: No such file or directory. Put"),
    ],
)
def test_a_search_that_is_done_goes_on_for_more_trials_only(
    launch: Launch, tmp_path: Path, script: str, more: list[str], message: str
) -> None:
    a_done_search(tmp_path / "kept", tmp_path / script)
    code, _, err = launch("tune", "--resume", "otter", "--storage", str(tmp_path / "kept"), *more)
    assert code == 2
    assert message in err
