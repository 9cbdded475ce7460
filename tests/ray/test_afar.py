"""Runs that are sent to a cluster by its dashboard, from a machine that is no part of it."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ray.dashboard_head import EXTRAS, dashboard_head, with_extras
from tests.ray.test_main_job import User

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.skipif(not EXTRAS.is_dir(), reason=f"there is no {EXTRAS}: run scripts/test"),
]

FAILING = "import keras\nmodel = keras.Sequential()\nraise ValueError('größer')\nmodel.fit([1])\n"


@pytest.fixture(scope="module")
def laptop(short_dir: Path) -> Iterator[User]:
    head_home = short_dir / "head"
    head_home.mkdir()
    with dashboard_head(short_dir, head_home) as address:
        user = User(short_dir / "laptop", address)
        user.environment = with_extras(user.environment)
        yield user


def test_ctrl_c_stops_a_run_at_a_checkpoint_that_comes_home(laptop: User) -> None:
    def interrupt(process: Any) -> None:
        assert any("los geht's: größer" in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)

    where = ["--address", laptop.address, "--workers", "1", "--yes", "--name", "far"]
    words = ("train.py", "--", str(laptop.pace))
    stopped = laptop.launch(*where, *words, pace=2.0, during=interrupt)
    assert stopped.code == 130, stopped.err
    assert "Ctrl-C stops the run at a checkpoint" in stopped.err
    assert "\ninterrupted in " in stopped.out
    home = laptop.home / "launch" / "runs" / "far"
    assert json.loads((home / "run.json").read_text())["checkpoints"]
    assert any((home / "checkpoints").iterdir())
    assert re.search(r"far +interrupted", laptop.launch("runs").out)


def test_a_script_that_fails_there_shows_its_own_traceback(laptop: User) -> None:
    (laptop.work / "fails.py").write_text(FAILING)
    ended = laptop.launch("fails.py", "--address", laptop.address, "--yes")
    assert ended.code == 1, ended.err
    shown = ended.err[ended.err.index("Traceback") :]
    assert shown.splitlines()[1:] == [
        f'  File "{laptop.work / "fails.py"}", line 3, in <module>',
        "    raise ValueError('größer')",
        "ValueError: größer",
    ]
