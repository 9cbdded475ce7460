"""Bring a cluster up from its file and see that every node joins; take it down, all of it.

`ray up` and `ray down` do the work. With the provider `local`, `ray up` may leave workers out
(ray#59905, ray#46204), and `ray down` leaves Ray running on the workers; both are put right here.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from launcher.cluster_file import ClusterFile, ray_command
from launcher.cluster_nodes import instance_type_of
from launcher.errors import ClusterError
from launcher.machines import Ended, Machines
from launcher.pricing import Machine, Price, price_of

# How long Ray's autoscaler may take to start the other nodes: seen in the lab, 18 s for machines
# that need no set-up; installing packages, or renting a machine, takes minutes.
PLAIN_JOIN_S, SETUP_JOIN_S = 60.0, 900.0
START_S, STARTED_JOIN_S, STOP_S = 120.0, 30.0, 60.0
MARK = "launch-nodes:"
# Runs on the head: tells who has joined, until all have or the time is over; names are those of the
# cluster file. Ray shows the command that it runs, so the mark must not stand in it as it is.
WATCH = """
import json, socket, sys, time
import ray

names, n_nodes = json.loads(sys.argv[1]), int(sys.argv[2])
until, told = time.monotonic() + float(sys.argv[3]), -1
ray.init(address="auto", log_to_driver=False, logging_level="error", configure_logging=False)


def say(answer):
    print("launch-" + "nodes:" + json.dumps(answer), flush=True)


def address(name):
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


while True:
    alive = [node for node in ray.nodes() if node["Alive"]]
    there = {node["NodeManagerAddress"] for node in alive}
    lacking = [name for name in names if address(name) not in there]
    if len(alive) != told:
        told = len(alive)
        say({"joined": told})
    if (told >= n_nodes and len(lacking) <= len(names) - n_nodes) or time.monotonic() > until:
        break
    time.sleep(0.5)
found = [[n["NodeManagerAddress"], n["Resources"], n.get("Labels") or {}] for n in alive]
say({"nodes": found, "lacking": lacking})
"""
# Ends Ray on a machine; fails if a node of it still runs.
STOP = (
    "{ray} stop; "
    'for it in /proc/[0-9]*; do case "$(readlink $it/exe)" in */raylet/raylet) '
    'echo "a raylet is left: process ${{it#/proc/}}"; exit 1;; esac; done'
)


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


def bring_up(
    file: ClusterFile, machines: Machines, say: Callable[[str], None]
) -> tuple[UpNode, ...]:
    """Bring the cluster up; returns its nodes when all have joined.

    Raises:
        ClusterError: `ray up` failed, or nodes are missing that could not be started.
    """
    say(f"ray up {file.path}")
    ended = machines.ray(["up", "-y", "--no-config-cache", str(file.path)], _unheard)
    if ended.code != 0:
        raise ClusterError(f"`ray up {file.path}` failed: {_complaint(ended)}")
    joined = watch(file, machines, SETUP_JOIN_S if file.has_setup else PLAIN_JOIN_S, say)
    n_missing = file.n_nodes - len(joined.nodes)
    if n_missing <= 0:
        return joined.nodes
    if not file.is_local or file.has_docker:
        raise ClusterError(
            f"{len(joined.nodes)} of {file.n_nodes} nodes have joined. See why with `ray exec "
            f"{file.path} 'tail -n 100 /tmp/ray/session_latest/logs/monitor*'`, or run launch up "
            "again."
        )
    return _start_missing(file, machines, joined, say)


def take_down(file: ClusterFile, machines: Machines, say: Callable[[str], None]) -> None:
    """Take the cluster down, and see that no node of it is left.

    Raises:
        ClusterError: `ray down` failed, or Ray still runs on machines that the file names.
    """
    say(f"ray down {file.path}")
    ended = machines.ray(["down", "-y", str(file.path)], _unheard)
    failed = f"`ray down {file.path}` failed: {_complaint(ended)}" if ended.code != 0 else None
    if not file.is_local or file.has_docker:
        if failed:
            raise ClusterError(failed)
        return
    say(f"ending Ray on {len(file.addresses)} machines")
    commands = {
        address: STOP.format(ray=ray_command(_start_commands(file, address)))
        for address in file.addresses
    }
    left = {a: e for a, e in _everywhere(machines, commands, STOP_S).items() if e.code != 0}
    if left:
        raise ClusterError(f"Ray may still run on {_list(left)}. End it there: ray stop")


def watch(
    file: ClusterFile, machines: Machines, wait_s: float, say: Callable[[str], None]
) -> Joined:
    """Ask the head who has joined, until all have or the time is over.

    Raises:
        ClusterError: the head does not answer.
    """

    def heard(line: str) -> None:
        if (answer := _answer(line)) is not None and "joined" in answer:
            say(f"{answer['joined']} of {file.n_nodes} nodes have joined")

    python = f'"$(dirname "$(command -v {ray_command(file.head_start_commands)})")/python"'
    asked = (WATCH, json.dumps(file.addresses), str(file.n_nodes), f"{wait_s:g}")
    command = f"{python} -c {' '.join(map(shlex.quote, asked))}"
    ended = machines.ray(["exec", "--no-config-cache", str(file.path), command], heard)
    answers = [found for line in ended.said if (found := _answer(line)) and "nodes" in found]
    if not answers:
        raise ClusterError(
            f"The head of {file.path} does not tell which nodes have joined: {_complaint(ended)}"
        )
    nodes = tuple(up_node(*node) for node in answers[-1]["nodes"])
    return Joined(nodes, tuple(answers[-1]["lacking"]))


def up_node(address: str, resources: Mapping[str, float], labels: Mapping[str, str]) -> UpNode:
    """A node as Ray describes it, with its price."""
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    machine = Machine(address, cpus, gpus, labels, instance_type_of(labels))
    return UpNode(address, cpus, gpus, price_of(machine))


def _start_missing(
    file: ClusterFile, machines: Machines, joined: Joined, say: Callable[[str], None]
) -> tuple[UpNode, ...]:
    """Start Ray over ssh on the nodes that the file names and that have not joined."""
    say(f"{', '.join(joined.lacking)} not there: starting over ssh")
    commands = {address: start_command(file) for address in joined.lacking}
    ended = _everywhere(machines, commands, START_S)
    failed = {address: answer for address, answer in ended.items() if answer.code != 0}
    found = watch(file, machines, STARTED_JOIN_S if len(failed) < len(ended) else 0.0, say)
    if len(found.nodes) >= file.n_nodes:
        return found.nodes
    reasons = {a: failed.get(a, Ended(0, ("started, but it did not join",))) for a in found.lacking}
    raise ClusterError(
        f"{len(found.nodes)} of {file.n_nodes} nodes are up; could not start {_list(reasons)}. "
        f"Put it right and run launch up {file.path} again, or take them out of the file."
    )


def start_command(file: ClusterFile) -> str:
    """The file's own commands that start Ray on a worker, with what they say kept till the end.

    Ray's daemons keep the output that they are given, so ssh would never end: it is a file.
    """
    steps = " && ".join(
        f"{{ {command.rstrip().rstrip(';')}; }}" for command in file.worker_start_commands
    )
    return (
        f"export RAY_HEAD_IP={shlex.quote(str(file.head))}; log=$(mktemp); "
        f"{{ {steps}; }} >$log 2>&1 </dev/null; code=$?; tail -n 20 $log; rm -f $log; exit $code"
    )


def _start_commands(file: ClusterFile, address: str) -> Sequence[str]:
    return file.head_start_commands if address == file.head else file.worker_start_commands


def _everywhere(
    machines: Machines, command_by_address: Mapping[str, str], timeout_s: float
) -> dict[str, Ended]:
    """Run a command on each machine, all at the same time."""
    with ThreadPoolExecutor(max(1, len(command_by_address))) as pool:
        calls = {
            address: pool.submit(machines.on, address, command, timeout_s)
            for address, command in command_by_address.items()
        }
        return {address: call.result() for address, call in calls.items()}


def _list(ended_by_address: Mapping[str, Ended]) -> str:
    return ", ".join(f"{address} ({ended.reason})" for address, ended in ended_by_address.items())


def _answer(line: str) -> dict[str, Any] | None:
    """What the watch on the head says in this line, if anything."""
    _, found, text = line.partition(MARK)
    if not found:
        return None
    answer: dict[str, Any] = json.loads(text)
    return answer


def _unheard(line: str) -> None:
    """Takes a line that the log file keeps."""


def _complaint(ended: Ended) -> str:
    """The line that tells most: the last with an error in it, else the last."""
    lines: Iterable[str] = reversed(ended.said)
    told = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return told[0] if told else ended.reason
