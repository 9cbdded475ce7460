"""`launch tune` on the command line, up to where trials would start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Launch, command_line

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
        (["train.py", "--space", "nix.yaml"], "nix.yaml cannot be read: No such file"),
        (["train.py", "--space", "wrong.yaml"], "wrong.yaml:2: rate: 1 is not below 0."),
        (["nix.py", "--space", "space.yaml"], "There is no script"),
        (["train.py", "--space", "space.yaml", "--trials", "0"], "--trials '0' must be a whole"),
        (["train.py", "--space", "space.yaml", "--mode", "up"], "--mode 'up' is not known"),
        (["train.py", "--space", "space.yaml", "--searcher", "x"], "--searcher 'x' is not known"),
        (["train.py", "--space", "space.yaml", "--address", "http://a:1"], "cannot send trials to"),
        (["train.py", "--space", "space.yaml", "--budget", "0"], "--budget is 0"),
        (["--resume", "otter"], "There is no search named 'otter'"),
        (["train.py", "--resume", "otter"], "leave SCRIPT and --space out"),
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
