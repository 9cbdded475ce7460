"""Drivers that detach, die, freeze or lose their terminal, on a real Ray cluster of one node."""

import os
import pty
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.cluster import connect
from launcher.errors import TakenOverError
from launcher.ownership import Driver, Ownership
from launcher.process import Process
from launcher.record import RunRecord
from launcher.run_actor import NAMESPACE, end_earlier_keepers, keeper_name
from launcher.storage import Storage
from tests.fakes import a_record
from tests.ray.test_main_job import (
    COMMAND,
    LIMIT_S,
    OBJECT_STORE_BYTES,
    Finished,
    User,
    command_line,
    wait_until,
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

RELEASED_S = 60.0  # a cluster is free again within a minute of its driver's silence
SLOW_S = 3.0  # of a step, of which the script has 32: it does not end while a person looks at it
EVE = Driver(Process("eve", "far", 7, "another machine"))


@pytest.fixture(scope="module")
def node(short_dir: Path) -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", str(short_dir))
    patch.setenv("TMPDIR", str(short_dir))  # a killed worker leaves its copy of the script
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


def detach(user: User, *options: str, pace: float) -> Finished:
    where = ["--address", user.address, "--cpus-per-worker", "2", "--workers", "1"]
    words = [*where, "--yes", "--seed", "5", "--detach", *options, "train.py"]
    return user.launch(*words, "--", str(user.pace), pace=pace)


def training(node: Any) -> list[psutil.Process]:
    """The processes that train, among the children of the cluster's node."""
    (info,) = node.list_all_nodes()[0].all_processes["raylet"]
    children = psutil.Process(info.process.pid).children()
    return [child for child in children if "RayTrainWorker" in command_line(child)]


def record_file(user: User, run: str) -> Path:
    return user.home / "launch" / "runs" / run / "run.json"


def test_a_new_driver_ends_what_the_one_before_holds_in_the_cluster(
    node: Any, tmp_path: Path
) -> None:
    import ray

    def keeper(record: RunRecord) -> Any:
        made = ray.remote(Kept).options(name=keeper_name(record), namespace=NAMESPACE, num_cpus=0)
        return made.remote()

    record = replace(a_record(), term=2)
    connect(node.address, None, price_usd_per_h=None, temp_dir=None, log_dir=tmp_path)
    try:
        others = [keeper(replace(record, run="brave-otters")), keeper(replace(record, term=1))]
        assert ray.get([each.ready.remote() for each in others]) == [True, True]
        end_earlier_keepers(record)
        wait_until(lambda: is_dead(others[1]), "the end of the earlier keeper")
        assert ray.get(others[0].ready.remote())  # of a run of another name
        own = keeper(record)
        assert ray.get(own.ready.remote())
        with pytest.raises(TakenOverError, match="brave-otter has been taken over"):
            end_earlier_keepers(replace(record, term=1))
        assert ray.get(own.ready.remote())
    finally:
        ray.shutdown()


class Kept:
    def ready(self) -> bool:
        return True


def is_dead(actor: Any) -> bool:
    import ray

    try:
        ray.get(actor.ready.remote())
    except ray.exceptions.RayActorError:
        return True
    return False


def test_a_detached_run_is_followed_and_stopped_from_any_terminal(user: User) -> None:
    began = detach(user, "--name", "free", pace=SLOW_S)
    assert began.code == 0, began.err
    assert "free goes on without this terminal. Follow it: launch attach free" in began.err
    assert "1 worker" in began.out  # the decision was shown here
    assert re.search(r"free +detached", user.launch("runs", pace=SLOW_S).out)
    again = user.launch("resume", "free", pace=SLOW_S)
    assert again.code == 2
    assert "free is still running" in again.err

    def leave(process: Any) -> None:
        assert any("los geht's" in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)

    left = user.launch("attach", "free", pace=SLOW_S, during=leave)
    assert left.code == 130
    assert "free goes on. Follow it again: launch attach free" in left.err

    stopped = user.launch("stop", "free", pace=SLOW_S)
    assert stopped.code == 0, stopped.err
    assert stopped.out.startswith("interrupted")
    seen = user.launch("attach", "free", "--json")
    assert (seen.code, seen.record["status"], seen.record["detached"]) == (130, "interrupted", True)
    assert seen.record["checkpoints"]


def test_a_killed_drivers_run_is_lost_and_goes_on_detached(user: User, node: Any) -> None:
    def kill(process: Any) -> None:
        wait_until(lambda: user.has_checkpoint("killed"), "the first checkpoint")
        process.kill()
        wait_until(lambda: not training(node), "the end of its workers", RELEASED_S)

    killed = user.train("--workers", "1", "--name", "killed", pace=0.5, during=kill)
    assert killed.code == -signal.SIGKILL
    assert re.search(r"killed +lost", user.launch("runs").out)
    resumed = user.launch("resume", "killed", "--detach", "--yes")
    assert resumed.code == 0, resumed.err
    ended = user.launch("attach", "killed", "--json")
    assert ended.code == 0, ended.err
    assert (ended.record["status"], ended.record["term"]) == ("done", 2)
    assert ended.record["outcome"]["steps"] == 32


def test_a_lost_terminal_is_like_ctrl_c_and_the_run_goes_on_without_one(user: User) -> None:
    user.set_pace(0.5)
    words = [str(COMMAND), "--address", "local", "--workers", "1", "--yes", "--name", "lost"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(user.work)
        os.execve(words[0], [*words, "train.py", "--", str(user.pace)], user.environment)
    said = b""
    ends_at_s = time.monotonic() + LIMIT_S
    while not user.has_checkpoint("lost"):
        assert time.monotonic() < ends_at_s, said.decode()
        try:
            said += os.read(terminal, 10_000)
        except OSError:  # the end of a terminal
            pytest.fail(f"it ended by itself: {said.decode()}")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert '"status": "interrupted"' in record_file(user, "lost").read_text()

    resumed = user.launch("resume", "lost", "--address", "local", "--detach", "--yes")
    assert resumed.code == 0, resumed.err
    ended = user.launch("attach", "lost", "--json")
    assert ended.code == 0, ended.err
    assert (ended.record["status"], ended.record["outcome"]["steps"]) == ("done", 32)


def test_a_frozen_driver_holds_no_node_and_writes_nothing_once_another_has_its_run(
    user: User, node: Any
) -> None:
    written: list[str] = []

    def freeze(process: Any) -> None:
        wait_until(lambda: user.has_checkpoint("frozen"), "the first checkpoint")
        process.send_signal(signal.SIGSTOP)
        user.set_pace(2.0)
        wait_until(lambda: not training(node), "the end of its workers", RELEASED_S)
        process.send_signal(signal.SIGCONT)  # it goes on from the checkpoint by itself
        wait_until(lambda: bool(training(node)), "the start of new workers")

        freeze_between_writes(process, record_file(user, "frozen").parent)
        folder = Storage.open(str(user.home / "launch")).folder("runs/frozen")
        assert Ownership(folder, "frozen").take(2, EVE)
        written.append(record_file(user, "frozen").read_text())
        process.send_signal(signal.SIGCONT)

    woken = user.train("--workers", "1", "--name", "frozen", pace=0.5, during=freeze)
    assert woken.code == 2
    assert "frozen has been taken over by eve@far:7" in woken.err
    assert record_file(user, "frozen").read_text() == written[0]
    wait_until(lambda: not training(node), "the end of its workers", RELEASED_S)


def freeze_between_writes(process: Any, folder: Path) -> None:
    """Stop a driver; not in the midst of a write, before which it has looked already."""

    def is_writing() -> bool:
        return any(folder.glob(".run.json-*.part"))

    while True:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_frozen(process.pid), "the stop of all its threads")
        if not is_writing():
            return
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not is_writing(), "the end of a write")


def is_frozen(pid: int) -> bool:
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # a thread has ended just now
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}
