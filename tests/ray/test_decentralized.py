"""Training without a master on real Ray: a worker dies and is replaced, the run stops, resumes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.worker.activity import WorkerFile
from tests.ray.test_main_job import LIMIT_S, OBJECT_STORE_BYTES, User, wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

ASKED = ("--strategy", "decentralized", "--max-staleness", "32", "--workers", "2")
STEPS = 4 * 8  # of the script


@pytest.fixture(scope="module")
def node(short_dir: Path) -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", str(short_dir))
    patch.setenv("TMPDIR", str(short_dir))
    patch.setenv("HOME", str(short_dir / "home"))
    from ray.cluster_utils import Cluster as Nodes

    sizes = {"num_cpus": 2, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    nodes = Nodes(initialize_head=True, head_node_args=sizes)
    yield nodes
    nodes.shutdown()
    patch.undo()


@pytest.fixture(scope="module")
def user(node: Any, short_dir: Path) -> User:
    return User(short_dir / "home", node.address)


def test_a_dead_worker_stops_nobody_and_is_replaced_and_the_run_goes_on_later(
    user: User, short_dir: Path
) -> None:
    def second() -> int:
        (path,) = short_dir.glob("launch-watch-*/*/*/1")
        found = WorkerFile.read(path)
        return 0 if found is None else found.pid

    def kill_one_then_stop(process: Any) -> None:
        wait_until(lambda: user.has_checkpoint("loose"), "the first checkpoint", LIMIT_S)
        dead = second()
        user.set_pace(4.0)  # the first worker alone is not to make all steps meanwhile
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: second() not in (0, dead), "another process in its place", LIMIT_S)
        wait_until(lambda: "died: the others" in "".join(user.said), "a word about it", LIMIT_S)
        process.send_signal(signal.SIGINT)
        user.set_pace(1.0)

    where = ["--address", user.address, "--cpus-per-worker", "1", "--seed", "5", "--yes", "--json"]
    words = [*where, *ASKED, "--name", "loose", "--checkpoint-every", "1s", "train.py", "--"]
    stopped = user.launch(*words, str(user.pace), pace=1.0, during=kill_one_then_stop)
    assert stopped.code == 130, stopped.err
    assert "died: the others go on without it" in stopped.err
    assert "Given up: 2 workers" in stopped.err
    (segment,) = stopped.record["segments"]
    assert segment["plan"]["strategy"] == "decentralized"
    assert segment["plan"]["options"]["asynchrony"]["max_staleness"] == 32
    position = stopped.record["checkpoints"][-1]["position"]
    assert len(position["steps_by_rank"]) == 2
    assert 0 < position["total_steps"] < STEPS

    done = user.launch("resume", "loose", "--yes", "--json", pace=0.0)
    assert done.code == 0, done.err
    outcome = done.record["outcome"]
    assert outcome["steps"] == STEPS
    assert set(outcome["metrics"]) >= {"mae", "val_mae"}
    assert Path(outcome["model"]).is_file()
    assert len(json.loads((done.folder / "artifacts" / "history.json").read_text())["loss"]) == 4
    assert done.record["segments"][-1]["drift"]["oldest"] <= 32
