"""What goes wrong in the world, done to a run on the lab's hosts."""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from textwrap import dedent

import numpy as np

from tests.lab.disturbed import DRIVER, DisturbedRun, training_pids
from tests.lab.lab import Lab

NOTICE_S = 30.0  # between a spot node's notice and its end
AWAY_S = 20.0  # how long what comes back stays away
FLAP_S, FLAPS = 20.0, 3
RELEASE_S = 60.0
STORAGE = "/tmp/home/launch"  # of the driver's host
STORAGE_BYTES = 96 << 20
SPARE = "h4"  # a host that is no part of the cluster yet

DRAIN = """
    import sys, time, ray
    from ray._raylet import GcsClient
    ray.init(address="auto", log_to_driver=False)
    address, limit_s = sys.argv[1], float(sys.argv[2])
    alive = [node for node in ray.nodes() if node["Alive"]]
    (node,) = [each["NodeID"] for each in alive if each["NodeManagerAddress"] == address]
    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    reason = 2  # preemption
    deadline_ms = int(1000 * (time.time() + limit_s))
    print(client.drain_node(node, reason, "the spot market", deadline_ms))
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a fault happens to."""

    lab: Lab
    run: DisturbedRun
    rng: np.random.Generator

    def victim(self) -> str:
        """A host that trains and is not the driver's, if there is one."""
        used = [name for name in self.run.hosts_in_use() if name != DRIVER]
        others = [name for name in self.lab.names if name not in {DRIVER, SPARE}]
        return str(self.rng.choice(used or others))


Strike = Callable[[Scene], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    Attributes:
        strike: does it on entering, and heals on leaving what would heal by itself.
        ends_driver: the run needs `launch resume` afterwards.
    """

    kind: str
    strike: Strike
    ends_driver: bool = False


@contextmanager
def worker_killed(scene: Scene) -> Iterator[None]:
    """One training process ends as if out of memory."""
    _signal_worker(scene, "KILL")
    yield


@contextmanager
def worker_frozen(scene: Scene) -> Iterator[None]:
    """One training process stands still for good."""
    _signal_worker(scene, "STOP")
    yield


def _signal_worker(scene: Scene, name: str) -> None:
    host = str(scene.rng.choice(scene.run.hosts_in_use()))
    for pid in training_pids(scene.lab, host)[:1]:
        scene.lab.run(host, ["kill", f"-{name}", str(pid)], timeout_s=20)


@contextmanager
def node_crashed(scene: Scene) -> Iterator[None]:
    """A machine loses its power."""
    scene.lab.crash(scene.victim())
    yield


@contextmanager
def node_cut_off(scene: Scene) -> Iterator[None]:
    """A machine cannot be reached for a while, and then is there again."""
    host = scene.victim()
    scene.lab.cut_host(host)
    with _undone_after(AWAY_S, lambda: scene.lab.mend_host(host)):
        yield


@contextmanager
def node_slowed(scene: Scene) -> Iterator[None]:
    """A machine computes at a quarter of its speed from now on."""
    scene.lab.set_cpu(scene.victim(), 0.1)
    yield


@contextmanager
def link_degraded(scene: Scene) -> Iterator[None]:
    """A machine's links become long from now on."""
    scene.lab.set(f"{scene.victim()}-*", rtt_s=0.08)
    yield


@contextmanager
def link_flaps(scene: Scene) -> Iterator[None]:
    """A machine's links change between short and long every few seconds."""
    host, stopped = scene.victim(), threading.Event()

    def flap() -> None:
        for turn in range(2 * FLAPS):
            scene.lab.set(f"{host}-*", rtt_s=0.0005 if turn % 2 else 0.08)
            if stopped.wait(FLAP_S):
                return

    with _beside(flap, stopped):
        yield


@contextmanager
def node_joined(scene: Scene) -> Iterator[None]:
    """Another machine joins the cluster."""
    if SPARE in scene.lab.names:
        scene.lab.join_ray(SPARE)
    yield


@contextmanager
def node_preempted(scene: Scene) -> Iterator[None]:
    """A spot machine gets its notice, and is gone when that is over."""
    host = scene.victim()
    words = ["python", "-c", dedent(DRAIN), scene.lab.ip(host), str(NOTICE_S)]
    done = scene.lab.run(DRIVER, words, timeout_s=60)
    assert done.returncode == 0, done.stderr
    with _undone_after(NOTICE_S, lambda: scene.lab.crash(host)):
        yield


@contextmanager
def driver_killed(scene: Scene) -> Iterator[None]:
    """The launcher's own process is killed."""
    scene.run.kill_driver()
    yield


@contextmanager
def terminal_lost(scene: Scene) -> Iterator[None]:
    """The terminal that the launcher was started from is gone."""
    assert scene.run.process is not None
    scene.run.process.send_signal(signal.SIGHUP)
    with contextlib.suppress(subprocess.TimeoutExpired):
        scene.run.process.wait(RELEASE_S)
    scene.run.kill_driver()
    yield


@contextmanager
def storage_full(scene: Scene) -> Iterator[None]:
    """No byte more can be stored, for a while."""
    filler = f"{STORAGE}/.filler"
    scene.lab.run(DRIVER, ["dd", "if=/dev/zero", f"of={filler}", "bs=64K"], timeout_s=30)
    with _undone_after(AWAY_S, lambda: _in_driver(scene, "rm", "-f", filler)):
        yield


@contextmanager
def storage_read_only(scene: Scene) -> Iterator[None]:
    """The storage can only be read, for a while."""
    _in_driver(scene, "mount", "-o", "remount,ro", STORAGE)
    with _undone_after(AWAY_S, lambda: _in_driver(scene, "mount", "-o", "remount,rw", STORAGE)):
        yield


@contextmanager
def storage_gone(scene: Scene) -> Iterator[None]:
    """What was stored is not there, and nothing can be put there, for a while."""
    _in_driver(scene, "mount", "-t", "tmpfs", "-o", "ro,size=4k", "gone", STORAGE)
    with _undone_after(AWAY_S, lambda: _in_driver(scene, "umount", "-l", STORAGE)):
        yield


def prepare_storage(lab: Lab) -> None:
    """Gives the driver's host a storage of its own that can fill up and go away."""
    for command in (
        ["mkdir", "-p", STORAGE],
        ["mount", "-t", "tmpfs", "-o", f"size={STORAGE_BYTES}", "storage", STORAGE],
    ):
        done = lab.run(DRIVER, command, timeout_s=30)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")


def _in_driver(scene: Scene, *command: str) -> None:
    done = scene.lab.run(DRIVER, list(command), timeout_s=30)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")


@contextmanager
def _undone_after(delay_s: float, undo: Callable[[], None]) -> Iterator[None]:
    """Undo something after a while, or when the `with` ends if that is sooner."""
    stopped = threading.Event()

    def wait() -> None:
        stopped.wait(delay_s)
        undo()

    with _beside(wait, stopped):
        yield


@contextmanager
def _beside(work: Callable[[], None], stopped: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


FAULTS = {
    fault.kind: fault
    for fault in (
        Fault("worker killed", worker_killed),
        Fault("worker frozen", worker_frozen),
        Fault("node crashed", node_crashed),
        Fault("node cut off", node_cut_off),
        Fault("node slowed", node_slowed),
        Fault("link degraded", link_degraded),
        Fault("link flaps", link_flaps),
        Fault("node joined", node_joined),
        Fault("node preempted", node_preempted),
        Fault("driver killed", driver_killed, ends_driver=True),
        Fault("terminal lost", terminal_lost, ends_driver=True),
        Fault("storage full", storage_full),
        Fault("storage read-only", storage_read_only),
        Fault("storage gone", storage_gone),
    )
}
