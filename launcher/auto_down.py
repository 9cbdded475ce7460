"""Takes a cluster down from its own head, once nobody uses it: `launch up --idle-down 10m`.

It runs on the head, so that it works though the machine that called `launch up` is long gone, and
outside of Ray, so that it works though Ray has ended: machines cost money as long as they are up.
"""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from launcher.bring_up import take_down
from launcher.cluster_file import ClusterFile, read_cluster_file
from launcher.errors import ClusterError, LauncherError
from launcher.head import LOOK, answers_in, complaint, parse_look
from launcher.machines import RAY, Machines, make_machines
from launcher.small_file import read_object, replace_file
from launcher.worker.environment import environment

logger = logging.getLogger(__name__)

MODULE = "launcher.auto_down"
STARTED = "launch-auto-down-" + "started"
FILE = "ray_bootstrap_config.yaml"  # where `ray up` leaves the cluster file on the head, in ~
NOTES, LOG = ".launch/auto-down.json", ".launch/auto-down.log"
INDEX = ".launch/runs"  # which storage each run of this machine went to, see `launcher.runs`
ASK_S = 60.0  # a look starts a Python with Ray: a second or two of one CPU
DONE_S = 60.0  # after the last run's end, so that another one may begin
AGAIN_S, N_TRIES = 60.0, 30
SHORTEST_S = 10.0
LOOK_S = 300.0


@dataclass(frozen=True, slots=True)
class Rule:
    """When a cluster goes down: unused for `idle_s`, or `DONE_S` after its first run's end."""

    idle_s: float
    when_done: bool = False

    def __str__(self) -> str:
        done = "after its first run" if self.when_done else ""
        unused = f"when nobody has used it for {self.idle_s / 60:g} min"
        return " or ".join(filter(None, (done, unused if math.isfinite(self.idle_s) else "")))


@dataclass(frozen=True, slots=True)
class Use:
    """What has been seen of a cluster's use; times are seconds since the epoch.

    Attributes:
        last_at: when it was last used, or this began.
        has_worked: whether a driver has been connected since.
    """

    last_at: float
    has_worked: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: whether someone uses the cluster, and when the last driver ended, if any did."""

    is_used: bool
    used_at: float | None = None


def updated(use: Use, seen: Seen, begun_at: float, now: float) -> Use:
    """What is known after a look."""
    if seen.is_used:
        return Use(now, has_worked=True)
    if seen.used_at is not None and seen.used_at > begun_at:
        return Use(max(use.last_at, seen.used_at), has_worked=True)
    return use


def is_due(use: Use, rule: Rule, now: float) -> bool:
    """Whether the cluster is to go down now."""
    unused_s = now - use.last_at
    return unused_s >= rule.idle_s or (rule.when_done and use.has_worked and unused_s >= DONE_S)


class Cluster(Protocol):
    """The cluster as its head sees it."""

    def look(self) -> Seen:
        """Who uses it."""
        ...

    def take_down(self) -> None:
        """Take it down.

        Raises:
            LauncherError: something is left.
        """
        ...


def watch_over(
    cluster: Cluster,
    rule: Rule,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the cluster is to go down, and take it down; tries again where that fails.

    Raises:
        LauncherError: it failed each time.
    """
    begun_at = clock()
    use = Use(begun_at)
    while not is_due(use, rule, clock()):
        sleep(min(ASK_S, rule.idle_s / 4))
        use = updated(use, cluster.look(), begun_at, clock())
    for n_left in reversed(range(N_TRIES)):
        try:
            return cluster.take_down()
        except (LauncherError, OSError):
            logger.exception("the cluster is not down")
            if n_left == 0:
                raise
        sleep(AGAIN_S)


@dataclass(frozen=True, slots=True)
class HeadCluster:
    """The cluster of this head.

    Args:
        home: the user's home folder.
        file: as `ray up` has left it on the head.
        begun_at: when this began, in seconds since the epoch.
    """

    home: Path
    file: ClusterFile
    machines: Machines
    begun_at: float

    def look(self) -> Seen:
        """Who uses it; nobody can where Ray does not answer."""
        try:
            return self._seen()
        except (OSError, ValueError, subprocess.TimeoutExpired):
            logger.exception("nothing is to be seen of the cluster")
            return Seen(is_used=False)

    def _seen(self) -> Seen:
        done = subprocess.run(
            [sys.executable, "-P", "-c", LOOK],
            check=False,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LOOK_S,
        )
        found = [parse_look(answer) for answer in answers_in(done.stdout.splitlines())]
        return Seen(found[-1].is_used, found[-1].used_at) if found else Seen(is_used=False)

    def take_down(self) -> None:
        """Take it down; a rented head stays where results lie on no other disk.

        The workers go first: once the head is given back, nobody could end them.

        Raises:
            LauncherError: something is left.
        """
        if self.file.is_local:
            take_down(self.file, self.machines, logger.info)
            return
        self.machines.here(RAY, ["stop"], logger.info)  # its autoscaler would rent others
        words = ["down", "-y", "--workers-only", str(self.file.path)]
        ended = self.machines.here(RAY, words, logger.info)
        if ended.code != 0:
            raise ClusterError(f"`ray down --workers-only` failed: {complaint(ended)}")
        if runs := unsaved_runs(self.home, self.begun_at):
            kept = f"the results of {', '.join(runs)} lie on its disk alone"
            write_notes(self.home, {**read_notes(self.home), "kept": kept})
            logger.warning("the head stays up: %s", kept)
            return
        take_down(self.file, self.machines, logger.info)


def unsaved_runs(home: Path, since: float) -> tuple[str, ...]:
    """Runs whose record on this machine has changed since then, in whatever folder it is kept."""
    index = (read_object(path) for path in (home / INDEX).glob("*.json"))
    noted = {str(note.get("storage") or "") for note in index}
    storages = {str(home / "launch"), *(each for each in noted if each.startswith("/"))}
    found = (path for each in storages for path in Path(each).glob("runs/*/run.json"))
    return tuple(sorted(path.parent.name for path in found if path.stat().st_mtime > since))


def read_notes(home: Path) -> dict[str, Any]:
    """What was noted on this head; nothing if there was no rule."""
    return read_object(home / NOTES)


def write_notes(home: Path, notes: dict[str, Any]) -> None:
    """Note what a look from afar is told."""
    replace_file(home / NOTES, json.dumps(notes))


def start(home: Path, rule: Rule) -> None:
    """Watch over the cluster in a process of its own, in place of one that does so already."""
    notes = read_notes(home)
    if _is_ours(notes.get("pid")):
        os.kill(int(notes["pid"]), signal.SIGTERM)
    (home / LOG).parent.mkdir(parents=True, exist_ok=True)
    with (home / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, "watch", *_words(rule)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=home,
        )
    write_notes(home, {"pid": process.pid, "idle_s": rule.idle_s, "when_done": rule.when_done})
    sys.stdout.write(f"{STARTED}\n")


def _words(rule: Rule) -> tuple[str, str]:
    return f"{rule.idle_s:g}", json.dumps(rule.when_done)


def _is_ours(pid: object) -> bool:
    try:
        return MODULE in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return False


def _main() -> None:
    what, idle_s, when_done = sys.argv[1:]
    rule = Rule(float(idle_s), json.loads(when_done))
    home = Path.home()
    if what == "start":
        read_cluster_file(home / FILE)  # or who asks for it would not hear why it ends at once
        start(home, rule)
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logger.info("takes the cluster down %s", rule)
    file = read_cluster_file(home / FILE)
    watch_over(HeadCluster(home, file, make_machines(file, home / ".launch"), time.time()), rule)


if __name__ == "__main__":
    _main()
