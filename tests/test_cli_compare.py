"""`launch compare`, as far as nothing is measured."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Launch, command_line


@pytest.fixture
def launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Launch]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with command_line(capsys) as call:
        yield call


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing option '--on'"),
        (("--on", ","), "--on names no place"),
        (("--on", "local,no.yaml"), "no.yaml cannot be read: No such file or directory"),
        (("--on", "local"), "There is no script"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    launch: Launch, words: tuple[str, ...], said: str
) -> None:
    code, out, err = launch("compare", "train.py", *words)
    assert (code, out) == (2, "")
    assert said in err
