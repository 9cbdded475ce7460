"""Which running cluster to join, and whether it can be joined from here."""

import json
import logging
import math
import platform
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launcher.errors import ClusterError
from launcher.worker.environment import environment

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0  # a cluster answers in under 1 s; a stranger may never
IMPORT_TIMEOUT_S = 60.0  # Ray's import takes 0.5 s on a core, ten times as long on a tenth of one
_TURN_S = 0.1
_DEFAULT_PORT = 6379
_START_OWN = "Leave --address out, or give --address local, to start one here."
_START_OWN_IN_SPITE = "Run `unset RAY_ADDRESS`, or give --address local, to start one here."


@dataclass(frozen=True, slots=True)
class Target:
    """A running cluster's `host:port`, and how it was found, for the user."""

    host: str
    port: int
    how: str

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def find_target(
    address: str | None, ray_address: str | None, temp_dir: Path | None
) -> Target | None:
    """The cluster to join by `--address`, `RAY_ADDRESS` or the file of a running one.

    None means that none is to be joined. Waits at most `CONNECT_TIMEOUT_S` for a connection.

    Raises:
        ClusterError: a given address has no sense or nobody listens there.
    """
    given, source = (address, "--address") if address else (ray_address, "RAY_ADDRESS")
    if given == "local":
        return None
    if given and given != "auto":
        target = parse_address(given, source)
        _require_listener(target, source)
        return target
    running = _running_here(temp_dir)
    if running is None and given == "auto":
        raise ClusterError(f"No Ray cluster is running on this machine. {_START_OWN}")
    return running


def parse_address(text: str, source: str) -> Target:
    """`host:port` (port 6379 if left out) as a target; `source` is `--address` or the like.

    Raises:
        ClusterError: another kind of address, or not an address.
    """
    if text.startswith("ray://"):
        raise ClusterError(
            f"{source} {text}: Ray Client addresses (ray://) do not suit training. Run launch on "
            "a node of the cluster with --address HOST:6379, or submit it there: "
            "ray job submit -- launch …"
        )
    host, _, port = text.rpartition(":") if _has_port(text) else (text, "", str(_DEFAULT_PORT))
    host = host.strip("[]")
    if "://" in text or "/" in text or not host or not port.isdigit() or int(port) > 65535:
        raise ClusterError(f"{source} {text} is not an address. Give HOST:PORT of the Ray head.")
    return Target(host, int(port), f"joined {source} {text}")


def check(target: Target, log_file: Path) -> bool:
    """Make sure that this process can join; whether it needs the user's token for it.

    Blocks for about 0.5 s, at most `ANSWER_TIMEOUT_S` after Ray's import.

    Raises:
        ClusterError: no Ray answers, its versions differ, or it has no node on this machine.
    """
    facts = _answer(target, log_file)
    require_fit(target, facts)
    return bool(facts["token"])


def require_fit(target: Target, facts: Mapping[str, Any]) -> None:
    """Raise ClusterError unless a cluster's facts (`cluster_check.answer`) let us join it."""
    if "error" in facts:
        raise ClusterError(
            f"The Ray cluster at {target.address} cannot be joined: {facts['error']}. {_START_OWN}"
        )
    mine = own()
    if any(facts[name] != mine[name] for name in mine):
        raise ClusterError(
            f"The cluster at {target.address} runs Ray {facts['ray']} on Python {facts['python']}, "
            f"this launcher Ray {mine['ray']} on Python {mine['python']}. "
            f"Install the same versions in both. {_START_OWN}"
        )
    if not facts["here"]:
        raise ClusterError(
            f"This machine is no node of the Ray cluster at {target.address}. Run launch on one "
            "of its nodes (ray attach cluster.yaml), or make this one a node: "
            f"ray start --address={target.address}"
        )


def own() -> dict[str, str]:
    """The versions that a cluster must share with this process."""
    return {"ray": version("ray"), "python": platform.python_version()}


def _answer(target: Target, log_file: Path) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "launcher.cluster_check", target.address]
    with log_file.open("a", encoding="utf-8") as log_stream:
        child = subprocess.Popen(
            command,
            bufsize=0,  # or a line that came early would hide from `select`
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_stream,
            # A copy: another thread imports modules, which set variables, and a child that reads
            # the environment while it moves does not start (EFAULT).
            env=environment(),
        )
    try:
        _line(child, IMPORT_TIMEOUT_S)
        facts: dict[str, Any] = json.loads(_line(child, ANSWER_TIMEOUT_S))
    except TimeoutError:
        return {"error": f"nothing that speaks Ray's protocol answered in {ANSWER_TIMEOUT_S:g} s"}
    except ValueError:
        return {"error": f"the question failed (see {log_file})"}
    finally:
        child.kill()
        child.communicate()
    return facts


def _line(child: "subprocess.Popen[bytes]", timeout_s: float) -> bytes:
    """The child's next line; empty where it has ended.

    Waits in many short turns: while this machine stalls, and the child with it, just one passes.
    """
    assert child.stdout is not None
    for _ in range(math.ceil(timeout_s / _TURN_S)):
        if select.select([child.stdout], [], [], _TURN_S)[0]:
            return child.stdout.readline()
    raise TimeoutError


def _require_listener(target: Target, source: str) -> None:
    reason = _refusal(target)
    if reason is not None:
        start_own = _START_OWN if source == "--address" else _START_OWN_IN_SPITE
        raise ClusterError(
            f"No Ray cluster answers at {target.address} ({source}): {reason}. "
            f"Start it with: ray start --head. {start_own}"
        )


def _refusal(target: Target) -> str | None:
    """Why no TCP connection can be made, or None if it can."""
    try:
        socket.create_connection((target.host, target.port), CONNECT_TIMEOUT_S).close()
    except TimeoutError:
        return f"no connection in {CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None


def _running_here(temp_dir: Path | None) -> Target | None:
    """The cluster that the last `ray start` on this machine left running, if it still runs."""
    from ray._private.utils import read_ray_address

    text = read_ray_address(str(temp_dir) if temp_dir else None)
    if not text:
        return None
    found = parse_address(text, "the address left by ray start,")
    reason = _refusal(found)
    if reason is not None:
        log.info("a Ray cluster ran at %s, but is gone: %s", text, reason)
        return None
    return Target(found.host, found.port, f"joined the cluster running at {text}")


def _has_port(text: str) -> bool:
    return text.rfind(":") > text.rfind("]") and (text.count(":") == 1 or "]" in text)
