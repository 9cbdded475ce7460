import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.sentries import LocalPosts, Sentries
from launcher.worker import sentry as module
from launcher.worker.activity import ActivityFile, Attended, Phase, WorkerFile, watch_folder
from launcher.worker.sentry import Sentry
from policies.schema import Node

NODE = "3f7a9c" * 8
STALL_S = 60.0  # for which a busy machine may hold everything up


@pytest.fixture
def watch() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    shutil.rmtree(watch_folder(name, NODE).parent, ignore_errors=True)


@pytest.fixture
def activity(watch: str, tmp_path: Path) -> Iterator[ActivityFile]:
    made = ActivityFile.of_rank(watch, NODE, 2, tmp_path / "private")
    yield made
    made.close()


class Worker:
    """A process with an activity file that waits for its standard input to end."""

    def __init__(self, watch: str, folder: Path) -> None:
        source = (
            "import sys, pathlib, threading\n"
            "from launcher.worker.activity import ActivityFile, Phase\n"
            f"file = ActivityFile.of_rank({watch!r}, {NODE!r}, 1, pathlib.Path({str(folder)!r}))\n"
            "file.enter(Phase.STEP)\n"
            "for _ in range(40):  # are told before the main one\n"
            "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
            "def wait_for_the_end():\n"
            "    print('ready', flush=True)\n"
            "    sys.stdin.read()\n"
            "wait_for_the_end()\n"
            "file.close()\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def worker(watch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(module, "DUMP_S", STALL_S)  # it ends as soon as all is written
    (tmp_path / "private").mkdir()
    made = Worker(watch, tmp_path / "private")
    yield made
    made.end()


def test_a_sentry_sees_what_a_worker_does(watch: str, activity: ActivityFile) -> None:
    sentry = Sentry(NODE)
    (seen,) = sentry.look(watch)
    assert (seen.rank, seen.phase, seen.is_alive, seen.is_stopped) == (
        2,
        Phase.STARTING,
        True,
        False,
    )
    with activity.during(Phase.STEP):
        (later,) = sentry.look(watch)
        assert later.phase == Phase.STEP
        assert later.ticks > seen.ticks
    assert sentry.look(watch)[0].phase == Phase.STARTING


def test_an_orderly_end_leaves_nothing(watch: str, tmp_path: Path) -> None:
    ActivityFile.of_rank(watch, NODE, 0, tmp_path).close()
    assert Sentry(NODE).look(watch) == ()
    assert not watch_folder(watch, NODE).parent.exists()


def test_only_the_workers_of_that_node_and_segment_are_seen(
    watch: str, activity: ActivityFile
) -> None:
    assert Sentry("another" * 8).look(watch) == ()
    assert Sentry(NODE).look("another-segment") == ()


def test_writing_counts_as_saving_and_other_calls_do_not(
    watch: str, activity: ActivityFile
) -> None:
    class Target:
        limit = 3

        def write_all(self) -> Phase:
            return Sentry(NODE).look(watch)[0].phase

        def look(self) -> Phase:
            return Sentry(NODE).look(watch)[0].phase

    attended = Attended(Target(), activity)
    assert attended.write_all() == Phase.SAVING
    assert attended.look() == Phase.STARTING
    assert attended.limit == 3


def test_a_file_that_is_gone_is_no_worker(tmp_path: Path) -> None:
    assert WorkerFile.read(tmp_path / "0") is None


def test_a_worker_that_was_killed_is_seen_as_dead(watch: str, worker: Worker) -> None:
    sentry = Sentry(NODE)
    assert sentry.look(watch)[0].is_alive
    worker.end()
    assert not sentry.look(watch)[0].is_alive


def test_a_worker_that_was_stopped_is_seen_as_stopped(watch: str, worker: Worker) -> None:
    sentry = Sentry(NODE)
    os.kill(worker.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert sentry.look(watch)[0].is_stopped
    os.kill(worker.process.pid, signal.SIGCONT)


def test_stacks_show_where_a_worker_hangs(watch: str, worker: Worker) -> None:
    sentry = Sentry(NODE)
    sentry.look(watch)
    assert "wait_for_the_end" in sentry.stacks()[1]
    assert sentry.stacks()[1].count("wait_for_the_end") == 1


def test_ending_the_workers_kills_them_and_removes_their_folders(
    watch: str, worker: Worker, tmp_path: Path
) -> None:
    sentry = Sentry(NODE)
    sentry.look(watch)
    sentry.end_workers()
    assert worker.process.wait(timeout=STALL_S) == -signal.SIGKILL
    assert not (tmp_path / "private").exists()
    assert not watch_folder(watch, NODE).exists()


def test_a_process_that_took_over_a_number_is_not_the_worker(
    watch: str, activity: ActivityFile
) -> None:
    file = WorkerFile.read(watch_folder(watch, NODE) / "2")
    assert file is not None
    assert file.is_alive
    assert not WorkerFile(file.path, file.pid, file.started - 1, file.phase, 0, 0.0, "").is_alive


def test_idle_time_is_that_of_the_systems_clock(watch: str, activity: ActivityFile) -> None:
    file = WorkerFile.read(watch_folder(watch, NODE) / "2")
    assert file is not None
    assert file.activity(time.monotonic() + 5.0).idle_s >= 5.0


def test_the_driver_of_an_embedded_ray_is_its_own_sentry(watch: str, worker: Worker) -> None:
    posts = LocalPosts()
    assert posts.ask(NODE, watch) == ()
    posts.station(Node(NODE, "127.0.0.1", 2, 0, None, 0.0, "own machine", "2 cpu"))
    sentries = Sentries(posts)
    (seen,) = posts.answer(posts.ask(NODE, watch)) or ()
    assert (seen.rank, seen.phase, seen.is_alive) == (1, Phase.STEP, True)
    assert "wait_for_the_end" in posts.stacks([NODE])[1]
    assert posts.speeds([NODE])[NODE] > 0
    sentries.dismiss()
    assert worker.process.wait(timeout=STALL_S) == -signal.SIGKILL
    assert posts.stacks([NODE]) == {}
