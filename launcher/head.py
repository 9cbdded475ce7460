"""Ask a cluster's head, from afar: who has joined, what has been up and for how long, who works."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.cluster_file import ClusterFile, ray_command
from launcher.cluster_nodes import instance_type_of
from launcher.errors import ClusterError
from launcher.machines import RAY, Ended, Machines
from launcher.pricing import Machine, Price, price_of

MARK = "launch-nodes:"
# Both run on the head, by the Python of its Ray. Ray shows the command that it runs, so the mark
# must not stand in it as it is. The namespace tells their jobs from others'.
_BEGIN = """
import json, os, socket, sys, time
import ray

def say(answer):
    print("launch-" + "nodes:" + json.dumps(answer), flush=True)

def join():
    ray.init(
        address="auto", namespace="launch-look", log_to_driver=False, logging_level="error",
        configure_logging=False,
    )
"""
# Tells who has joined, until all have or the time is over; names are those of the cluster file.
# The time is longer for nodes that the head's autoscaler is setting up at that moment.
WATCH = (
    _BEGIN
    + """
names, n_nodes = json.loads(sys.argv[1]), int(sys.argv[2])
until, at_most = (time.monotonic() + float(word) for word in sys.argv[3:5])
told = -1
join()

def address(name):
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name

def is_preparing():
    from ray.experimental.internal_kv import _internal_kv_get
    status = json.loads(_internal_kv_get("__autoscaling_status") or "{}")
    pending = (status.get("autoscaler_report") or {}).get("pending_nodes") or []
    return any(each[-1] in ("syncing-files", "setting-up") for each in pending)

while True:
    alive = [node for node in ray.nodes() if node["Alive"]]
    there = {node["NodeManagerAddress"] for node in alive}
    lacking = [name for name in names if address(name) not in there]
    if len(alive) != told:
        told = len(alive)
        say({"joined": told})
    now = time.monotonic()
    if told >= n_nodes and len(lacking) <= len(names) - n_nodes:
        break
    if now > at_most or (now > until and not is_preparing()):
        break
    time.sleep(0.5)
found = [[n["NodeManagerAddress"], n["Resources"], n.get("Labels") or {}] for n in alive]
say({"nodes": found, "lacking": lacking})
"""
)
# Tells all nodes that Ray remembers, who uses the cluster, and who would take it down. Ray may have
# ended here while the machine is still up.
LOOK = (
    _BEGIN
    + """
answer, rule = {"now": time.time()}, {}
try:
    with open(os.path.expanduser("~/.launch/auto-down.json")) as notes:
        rule = json.load(notes)
    with open("/proc/%d/cmdline" % rule["pid"]) as line:
        rule["is_alive"] = "launcher.auto_down" in line.read()
except OSError:
    rule["is_alive"] = False
answer["auto_down"] = rule
try:
    join()
    gcs = ray._private.worker.global_worker.gcs_client
    books = gcs.get_all_node_info().values()
    answer["nodes"] = [
        {
            "address": n.node_manager_address,
            "resources": dict(n.resources_total),
            "labels": dict(n.labels),
            "begun_at": n.start_time_ms / 1e3,
            "ended_at": n.end_time_ms / 1e3 if n.state else None,
        }
        for n in books
    ]
    jobs = [
        job
        for job in gcs.get_all_job_info().values()
        if not job.config.ray_namespace.startswith(("launch-look", "_ray_internal"))
    ]
    free, total = ray.available_resources(), ray.cluster_resources()
    answer["n_drivers"] = sum(not job.is_dead for job in jobs)
    answer["has_held"] = any(total.get(k, 0) - free.get(k, 0) > 1e-3 for k in ("CPU", "GPU"))
    answer["used_at"] = max([job.end_time / 1e3 for job in jobs if job.is_dead], default=None)
except Exception as error:
    answer["error"] = str(error) or type(error).__name__
say(answer)
"""
)

_PROGRAM_LINES = {line.strip() for line in (WATCH + LOOK).splitlines()}


@dataclass(frozen=True, slots=True)
class UpNode:
    """A node that is up."""

    address: str
    cpus: float
    gpus: float
    price: Price


@dataclass(frozen=True, slots=True)
class Joined:
    """Who has joined, and which nodes of the file have not."""

    nodes: tuple[UpNode, ...]
    lacking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node that Ray remembers; times are seconds since the epoch, by the head's clock.

    `ended_at` is None for a node that lives; `node_type` is its name in the cluster file.
    """

    node: UpNode
    node_type: str | None
    begun_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class AutoDown:
    """What takes an unused cluster down by itself, on its head."""

    idle_s: float
    when_done: bool
    is_alive: bool
    kept: str | None  # why it has left the head up, if it has


@dataclass(frozen=True, slots=True)
class Look:
    """What a head tells of its cluster at `now`, in seconds since the epoch.

    Attributes:
        is_used: whether a driver is connected, or someone holds a CPU or GPU.
        used_at: when the last driver ended; None if there has been none.
        error: why Ray on the head does not answer, if it does not.
    """

    now: float
    nodes: tuple[KnownNode, ...] = ()
    is_used: bool = False
    used_at: float | None = None
    auto_down: AutoDown | None = None
    error: str | None = None


def watch(
    file: ClusterFile,
    machines: Machines,
    wait_s: float,
    prepare_s: float,
    say: Callable[[str], None],
) -> Joined:
    """Ask the head who has joined, until all have or the time is over.

    Args:
        wait_s: how long to wait.
        prepare_s: how long at most, while a node is being set up.

    Raises:
        ClusterError: the head does not answer.
    """

    def heard(line: str) -> None:
        for answer in answers_in([line]):
            if "joined" in answer:
                say(f"{answer['joined']} of {file.n_nodes} nodes have joined")

    asked = (json.dumps(file.addresses), str(file.n_nodes), f"{wait_s:g}", f"{prepare_s:g}")
    ended = _ask(file, machines, (WATCH, *asked), heard)
    answers = [found for found in answers_in(ended.said) if "nodes" in found]
    if not answers:
        raise ClusterError(
            f"The head of {file.path} does not tell which nodes have joined: {complaint(ended)}. "
            f"Run launch up {file.path} again, or launch down {file.path}."
        )
    nodes = tuple(up_node(*node) for node in answers[-1]["nodes"])
    return Joined(nodes, tuple(answers[-1]["lacking"]))


def look(file: ClusterFile, machines: Machines) -> Look:
    """Ask the head what has been up and who uses it; takes some seconds.

    Raises:
        ClusterError: the head cannot be reached.
    """
    ended = _ask(file, machines, (LOOK,), lambda _: None)
    answers = list(answers_in(ended.said))
    if not answers:
        raise ClusterError(f"The head of {file.path} does not answer: {complaint(ended)}")
    return parse_look(answers[-1])


def parse_look(answer: Mapping[str, Any]) -> Look:
    """What the head's answer says."""
    return Look(
        now=float(answer["now"]),
        nodes=tuple(_known(node) for node in answer.get("nodes") or ()),
        is_used=bool(answer.get("n_drivers") or answer.get("has_held")),
        used_at=answer.get("used_at"),
        auto_down=_auto_down(answer.get("auto_down") or {}),
        error=answer.get("error"),
    )


def _auto_down(notes: Mapping[str, Any]) -> AutoDown | None:
    if "idle_s" not in notes:
        return None
    return AutoDown(
        float(notes["idle_s"]),
        bool(notes.get("when_done")),
        bool(notes.get("is_alive")),
        notes.get("kept"),
    )


def up_node(address: str, resources: Mapping[str, float], labels: Mapping[str, str]) -> UpNode:
    """A node as Ray describes it, with its price."""
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    machine = Machine(address, cpus, gpus, labels, instance_type_of(labels))
    return UpNode(address, cpus, gpus, price_of(machine))


def python_command(file: ClusterFile) -> str:
    """How a shell of the head calls the Python of its Ray."""
    return f'"$(dirname "$(command -v {ray_command(file.head_start_commands)})")/python"'


def on_head(
    file: ClusterFile, machines: Machines, command: str, heard: Callable[[str], None]
) -> Ended:
    """Run a shell command on the head, through `ray exec`."""
    return machines.here(RAY, ["exec", "--no-config-cache", str(file.path), command], heard)


def answers_in(lines: Iterator[str] | tuple[str, ...] | list[str]) -> Iterator[dict[str, Any]]:
    """What the programs on the head say in these lines."""
    for line in lines:
        _, found, text = line.partition(MARK)
        if found:
            yield json.loads(text)


def complaint(ended: Ended) -> str:
    """The line that tells most: the last with an error in it, else the last.

    Ray shows the command that it runs, so our own programs are left out.
    """
    said = [line for line in ended.said if line not in _PROGRAM_LINES]
    told = [line for line in said if "error" in line.lower() or "failed" in line.lower()]
    return ([*said[-1:], *told][-1] if said else ended.reason).rstrip(". ")


def _ask(
    file: ClusterFile,
    machines: Machines,
    words: tuple[str, ...],
    heard: Callable[[str], None],
) -> Ended:
    command = f"{python_command(file)} -P -c {' '.join(map(shlex.quote, words))}"
    return on_head(file, machines, command, heard)


def _known(node: Mapping[str, Any]) -> KnownNode:
    labels: Mapping[str, str] = node["labels"]
    return KnownNode(
        up_node(node["address"], node["resources"], labels),
        labels.get("ray.io/node-group"),
        float(node["begun_at"]),
        node.get("ended_at"),
    )
