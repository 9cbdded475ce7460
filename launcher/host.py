"""A detached driver's host: an actor on the head that starts it and shows it to others."""

import logging
import os
import pickle
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from launcher import ray_session
from launcher.cluster_join import Target, check
from launcher.errors import ClusterError
from launcher.journal import JournalReader, read_bytes, write_answer
from launcher.run_actor import NAMESPACE
from launcher.spawned import Orders, Spawned, spawn
from launcher.worker.environment import environment

logger = logging.getLogger(__name__)

NAME = "detached-"
LINGER_S = 60.0  # after the driver's end and the last question
START_S = 120.0  # an actor's process, the launcher's package and the driver's imports
FIND_S = 20.0
# What Ray sets for its own workers only.
OF_WORKERS = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_JOB_CONFIG_JSON_ENV_VAR", "OMP_NUM_THREADS")


class Host:
    """Runs as a detached, threaded Ray actor; ends itself some time after the driver has ended."""

    def __init__(self) -> None:
        self._spawned: Spawned | None = None
        self._asked_at_s = time.monotonic()
        self._run: str | None = None
        self._is_abandoned = False

    def start(self, orders: bytes) -> str | None:
        """Start the driver; the reason if that fails."""
        try:
            self._spawned, child = spawn(orders, environment_outside_of_ray(environment()))
        except ClusterError as error:
            return str(error)
        threading.Thread(target=self._wait, args=(child,), daemon=True).start()
        if self._is_abandoned:
            self.abandon()
        return None

    def abandon(self) -> None:
        """End the driver, or what is to become one: nobody knows of it."""
        self._is_abandoned = True
        if self._spawned is not None:
            self._spawned.process.signal(SIGKILL)

    def run(self) -> str | None:
        """The name of the run that it drives; None as long as it has none."""
        if self._run is None and self._spawned is not None:
            reader = JournalReader(self.read)
            begun = (entry for entry in reader.entries() if entry.kind == "begun")
            self._run = next((str(entry.detail["run"]) for entry in begun), None)
        return self._run

    def read(self, offset: int) -> bytes:
        """The next part of the journal."""
        self._asked_at_s = time.monotonic()
        return read_bytes(self._own.journal, offset)

    def is_alive(self) -> bool:
        """Whether the driver lives."""
        return self._own.process.is_alive

    def stop(self) -> None:
        """Ask the driver to stop at a checkpoint."""
        self._own.process.signal(SIGTERM)

    def answer(self, index: int, text: str) -> None:
        """Pass the answer to a question on."""
        write_answer(self._own.journal, index, text)

    @property
    def _own(self) -> Spawned:
        assert self._spawned is not None, "start was not called, or failed"
        return self._spawned

    def _wait(self, child: Any) -> None:
        """End this actor when nobody has asked for a while after the driver's end."""
        import ray

        child.wait()
        self._asked_at_s = time.monotonic()
        while (left_s := self._asked_at_s + LINGER_S - time.monotonic()) > 0:
            time.sleep(left_s)
        ray.kill(ray.get_runtime_context().current_actor)


def join(target: Target, log_dir: Path) -> str:
    """Connect to a cluster so that hosts can be made and found; its address by Ray's books.

    Raises:
        ClusterError: the cluster cannot be joined.
    """
    import policies

    token = check(target, log_dir / ray_session.RAY_LOG)
    folder = Path(policies.__file__).parent
    return ray_session.join(target.address, token=token, log_dir=log_dir, modules=(folder,))


def start_on_head(orders: Orders) -> Any:
    """Start a driver on the head of the cluster that is joined; its host.

    Raises:
        ClusterError: it did not start there.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(head_id(), soft=False)
    name = f"{NAME}{os.urandom(8).hex()}"
    host = (
        ray.remote(Host)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_concurrency=8,
            scheduling_strategy=there,
        )
        .remote()
    )
    try:
        failure = ray.get(host.start.remote(pickle.dumps(orders)), timeout=START_S)
    except ray.exceptions.RayError as error:
        failure = f"The cluster's head did not start the driver: {type(error).__name__}."
    except BaseException:  # such as Ctrl-C
        host.abandon.remote()
        raise
    if failure is not None:
        ray.kill(host)
        raise ClusterError(f"{failure} Is the launcher installed on the head?")
    return host


def find_host(run: str) -> Any | None:
    """The host of the detached driver of a run in the cluster that is joined, if there is one."""
    import ray
    from ray.util import list_named_actors

    for actor in list_named_actors(all_namespaces=True):
        if actor["namespace"] != NAMESPACE or not actor["name"].startswith(NAME):
            continue
        try:
            host = ray.get_actor(actor["name"], NAMESPACE)
            if ray.get(host.run.remote(), timeout=FIND_S) == run:
                return host
        except (ValueError, ray.exceptions.RayError) as error:
            logger.info("%s does not answer: %s", actor["name"], error)
    return None


def head_id() -> str:
    """The id of the cluster's head.

    Raises:
        ClusterError: the cluster does not tell.
    """
    import ray
    from ray._common.constants import HEAD_NODE_RESOURCE_NAME

    for node in ray.nodes():
        if node["Alive"] and HEAD_NODE_RESOURCE_NAME in node["Resources"]:
            return str(node["NodeID"])
    raise ClusterError("The Ray cluster does not tell which node is its head. Leave --detach out.")


def is_head_here() -> bool:
    """Whether this process is on the head."""
    import ray

    return bool(ray.get_runtime_context().get_node_id() == head_id())


def environment_outside_of_ray(here: Mapping[str, str]) -> dict[str, str]:
    """The variables of an actor's process for a program that is no part of Ray.

    It shall find the launcher's packages where this process did.
    """
    import launcher
    import policies

    folders = {str(Path(str(each.__file__)).parent.parent): None for each in (launcher, policies)}
    kept = {name: value for name, value in here.items() if name not in OF_WORKERS}
    return kept | {"PYTHONPATH": os.pathsep.join(folders)}
