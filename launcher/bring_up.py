"""Bring a cluster up from its file and see that every node joins; take it down, all of it.

`ray up` and `ray down` do the work. With the provider `local`, `ray up` may leave workers out
(ray#59905, ray#46204), and `ray down` leaves Ray running on the workers; both are put right here.
"""

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import dropwhile, takewhile
from pathlib import Path

from launcher.cluster_file import ClusterFile, check_mounts, ray_command
from launcher.errors import ClusterError
from launcher.head import Joined, UpNode, complaint, on_head, watch
from launcher.machines import RAY, Ended, Machines
from launcher.planned_types import planned_text
from launcher.rented import RentedNode, list_rented

# How long Ray's autoscaler may take to start the other nodes: seen in the lab, 18 s for machines
# that need no set-up. Installing packages, or renting a machine, takes minutes; it is waited for
# while the autoscaler tells that it sets one up.
PLAIN_JOIN_S, SETUP_JOIN_S = 40.0, 900.0
START_S, STARTED_JOIN_S, STOP_S, LOGIN_S = 120.0, 30.0, 60.0, 30.0
# How long machines that are given back may still be listed.
GONE_S, ASK_GONE_S = 180.0, 5.0
# What `ray up` says of the head, such as `[2/7] Processing file mounts`.
_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.+)$")
_TOLD = ("Acquiring an up-to-date head node", "Launched a new head node")
# Fails if a node of Ray runs on a machine.
CHECK = (
    'for it in /proc/[0-9]*; do case "$(readlink $it/exe)" in */raylet/raylet) '
    'echo "a raylet is left: process ${it#/proc/}"; exit 1;; esac; done'
)


def bring_up(
    file: ClusterFile,
    machines: Machines,
    say: Callable[[str], None],
    path: Path | None = None,
) -> tuple[UpNode, ...]:
    """Bring the cluster up; returns its nodes when all have joined.

    Args:
        path: what `ray up` gets instead of the file itself.

    Raises:
        UsageError: what is to be copied to the nodes is not here.
        ClusterError: `ray up` failed, or nodes are missing that could not be started.
    """
    check_mounts(file)
    if file.types:
        say(f"renting {planned_text(file.types)}")
    _require_login(file, machines)
    say(f"ray up {file.path}")
    words = ["up", "-y", "--no-config-cache", str(path or file.path)]
    ended = machines.here(RAY, words, lambda line: _tell(line, say))
    if ended.code != 0:
        raise ClusterError(
            f"`ray up {file.path}` failed: {complaint(ended)}{_costs_on(file, machines)}. Put it "
            f"right and run launch up {file.path} again."
        )
    own = file.is_local and not file.has_docker
    wait_s = PLAIN_JOIN_S if own or not file.has_setup else SETUP_JOIN_S
    joined = watch(file, machines, wait_s, max(wait_s, SETUP_JOIN_S), say)
    if len(joined.nodes) >= file.n_nodes:
        return joined.nodes
    if own:
        return _start_missing(file, machines, joined, say)
    raise ClusterError(
        f"{len(joined.nodes)} of {file.n_nodes} nodes have joined"
        f"{_missing(file, machines, joined.nodes)}. Run launch up {file.path} again; launch down "
        "gives all of them back."
    )


def _require_login(file: ClusterFile, machines: Machines) -> None:
    """See that a machine of one's own can be logged in to: `ray up` would try for 15 minutes.

    Raises:
        ClusterError: it cannot.
    """
    if file.head is None:
        return
    ended = machines.on(file.head, "true", LOGIN_S)
    if ended.code != 0:
        raise ClusterError(
            f"The head of {file.path}, {file.head}, cannot be logged in to over ssh: "
            f"{ended.reason.rstrip('. ')}. Is the machine up, are its address and `auth` (user and "
            "key) in the file right, and is the key in ~/.ssh/authorized_keys there?"
        )


def take_down(
    file: ClusterFile,
    machines: Machines,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take the cluster down, and see that no node of it is left.

    Raises:
        ClusterError: `ray down` failed, or Ray still runs on machines that the file names, or
            machines are still rented.
    """
    say(f"ray down {file.path}")
    ended = machines.here(RAY, ["down", "-y", str(file.path)], _unheard)
    failed = f"`ray down {file.path}` failed: {complaint(ended)}" if ended.code != 0 else None
    if file.is_local and not file.has_docker:
        _end_ray(file, machines, say)
        return
    if failed:
        raise ClusterError(
            f"{failed}{_costs_on(file, machines)}. Run launch down {file.path} again, or look into "
            "the provider's console."
        )
    until = clock() + GONE_S
    while left := list_rented(file, machines):
        if clock() > until:
            raise ClusterError(
                f"{_names(left)} {'is' if len(left) == 1 else 'are'} still rented {GONE_S:g} s "
                f"after `ray down`. Run launch down {file.path} again, or end what is named in the "
                "provider's console: it costs money."
            )
        say(f"{len(left)} {'machine is' if len(left) == 1 else 'machines are'} still there")
        sleep(ASK_GONE_S)


def still_running(file: ClusterFile, machines: Machines) -> tuple[str, ...]:
    """The machines that the file names on which Ray runs, or which do not tell."""
    ended = everywhere(file.addresses, lambda address: machines.on(address, CHECK, STOP_S))
    return tuple(address for address, answer in ended.items() if answer.code != 0)


def _end_ray(file: ClusterFile, machines: Machines, say: Callable[[str], None]) -> None:
    """End Ray on the machines that the file names."""
    say(f"ending Ray on {len(file.addresses)} machines")
    commands = {
        address: f"{ray_command(_start_commands(file, address))} stop; {CHECK}"
        for address in file.addresses
    }
    ended = everywhere(file.addresses, lambda a: machines.on(a, commands[a], STOP_S))
    left = {address: answer for address, answer in ended.items() if answer.code != 0}
    if left:
        raise ClusterError(f"Ray may still run on {_list(left)}. End it there: ray stop")


def _start_missing(
    file: ClusterFile, machines: Machines, joined: Joined, say: Callable[[str], None]
) -> tuple[UpNode, ...]:
    """Start Ray over ssh on the nodes that the file names and that have not joined."""
    say(f"{', '.join(joined.lacking)} not there: starting over ssh")
    ended = everywhere(joined.lacking, lambda address: _start(file, machines, address))
    failed = {address: answer for address, answer in ended.items() if answer.code != 0}
    wait_s = STARTED_JOIN_S if len(failed) < len(ended) else 0.0
    found = watch(file, machines, wait_s, wait_s, say)
    if len(found.nodes) >= file.n_nodes:
        return found.nodes
    reasons = {a: failed.get(a, Ended(0, ("started, but it did not join",))) for a in found.lacking}
    raise ClusterError(
        f"{len(found.nodes)} of {file.n_nodes} nodes are up; could not start {_list(reasons)}. "
        f"Put it right and run launch up {file.path} again, or take them out of the file."
    )


def _start(file: ClusterFile, machines: Machines, address: str) -> Ended:
    """Prepare a worker as the file says, and start Ray there; how the last step ended."""
    steps = file.preparation
    ended = Ended(0, ())
    if steps.first:
        ended = machines.on(address, in_steps(steps.first, file), SETUP_JOIN_S)
    for place, source in steps.mounts:
        if ended.code == 0:
            ended = machines.copy(address, source, place, SETUP_JOIN_S)
    if ended.code == 0 and steps.then:
        ended = machines.on(address, in_steps(steps.then, file), SETUP_JOIN_S)
    if ended.code != 0:
        return ended
    return machines.on(address, in_steps(file.worker_start_commands, file), START_S)


def in_steps(commands: Sequence[str], file: ClusterFile) -> str:
    """Commands of the file as one, with what they say kept till the end.

    Ray's daemons keep the output that they are given, so ssh would never end: it is a file.
    """
    # A line's end, and no semicolon: a command may end with `&` or a comment.
    steps = " && ".join(f"{{ {command.rstrip().rstrip(';')}\n}}" for command in commands)
    return (
        f"export RAY_HEAD_IP={shlex.quote(str(file.head))}; log=$(mktemp); "
        f"{{ {steps}; }} >$log 2>&1 </dev/null; code=$?; tail -n 20 $log; rm -f $log; exit $code"
    )


def _missing(file: ClusterFile, machines: Machines, nodes: Sequence[UpNode]) -> str:
    """Which machines of a cloud are rented and have not joined, and why others are not rented."""
    there = {node.address for node in nodes}
    silent = [each for each in list_rented(file, machines) if each.address not in there]
    ended = on_head(file, machines, f"{ray_command(file.head_start_commands)} status", _unheard)
    reasons = _failures(ended.said)
    parts = [f"; {_names(silent)} rented, but not joined" if silent else ""]
    parts += [f"; the autoscaler says: {'; '.join(reasons[:3])}" if reasons else ""]
    return "".join(parts)


def _failures(said: Sequence[str]) -> list[str]:
    """What `ray status` tells of machines that could not be had."""
    after = list(dropwhile(lambda line: not line.startswith("Recent failures"), said))[1:]
    found = takewhile(lambda line: not line.startswith(("Resources", "---")), after)
    return [line for line in found if line != "(no failures)"]


def _costs_on(file: ClusterFile, machines: Machines) -> str:
    """What is rented although something failed, as a further sentence."""
    try:
        left = () if file.is_local else list_rented(file, machines)
    except ClusterError:
        return ""
    if not left:
        return ""
    return f". {_names(left)} up and costing money: launch down {file.path} ends that"


def _names(nodes: Sequence[RentedNode]) -> str:
    return ", ".join(f"{each.name} ({each.node_type or 'unknown type'})" for each in nodes)


def _start_commands(file: ClusterFile, address: str) -> Sequence[str]:
    return file.head_start_commands if address == file.head else file.worker_start_commands


def everywhere(addresses: Sequence[str], act: Callable[[str], Ended]) -> dict[str, Ended]:
    """Do something on each machine, all at the same time."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        calls = {address: pool.submit(act, address) for address in addresses}
        return {address: call.result() for address, call in calls.items()}


def _list(ended_by_address: Mapping[str, Ended]) -> str:
    return ", ".join(f"{address} ({ended.reason})" for address, ended in ended_by_address.items())


def _tell(line: str, say: Callable[[str], None]) -> None:
    """Show what `ray up` is at; the rest is for the log file."""
    if (step := _STEP.match(line)) is not None:
        say(f"head, step {step[1]} of {step[2]}: {step[3]}")
    elif line in _TOLD:
        say(line[0].lower() + line[1:])


def _unheard(line: str) -> None:
    """Takes a line that the log file keeps."""
