"""What a cloud says is rented for a cluster, asked through Ray's own node provider.

As a program (`python -m launcher.rented FILE`) it prints that as JSON: providers' libraries print
and exit as they like, so they are kept out of the command's process.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from launcher.cluster_file import ClusterFile
from launcher.errors import ClusterError
from launcher.machines import Machines

MODULE = "launcher.rented"
MARK = "launch-rented:"


@dataclass(frozen=True, slots=True)
class RentedNode:
    """A machine that a cloud bills; `since` is when it was rented, in seconds since the epoch.

    `address` is the one inside the cloud's network; `node_type` its name in the cluster file.
    """

    name: str
    address: str | None
    node_type: str | None
    is_head: bool
    since: float | None


def list_rented(file: ClusterFile, machines: Machines) -> tuple[RentedNode, ...]:
    """The machines that are rented for a cluster, the head first; none for own machines.

    Raises:
        ClusterError: the cloud does not tell.
    """
    if file.is_local:
        return ()
    ended = machines.here(MODULE, [str(file.path)], lambda _: None)
    told = [line.partition(MARK)[2] for line in ended.said if MARK in line]
    if ended.code != 0 or not told:
        raise ClusterError(
            f"The provider {file.provider} does not tell what is rented for {file.path}: "
            f"{ended.reason}. Look into its console, or try again."
        )
    return tuple(RentedNode(**node) for node in json.loads(told[-1]))


def ask_provider(words: Mapping[str, Any]) -> Iterator[RentedNode]:
    """Ask the provider that a cluster file names."""
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.tags import (
        NODE_KIND_HEAD,
        NODE_KIND_WORKER,
        TAG_RAY_NODE_KIND,
        TAG_RAY_USER_NODE_TYPE,
    )

    provider = _get_node_provider(dict(words["provider"]), words.get("cluster_name", "default"))
    for kind in (NODE_KIND_HEAD, NODE_KIND_WORKER):
        for name in provider.non_terminated_nodes({TAG_RAY_NODE_KIND: kind}):
            machine = getattr(provider, "cached_nodes", {}).get(name)
            yield RentedNode(
                name=str(name),
                address=provider.internal_ip(name),
                node_type=provider.node_tags(name).get(TAG_RAY_USER_NODE_TYPE),
                is_head=kind == NODE_KIND_HEAD,
                since=rented_since(machine),
            )


def rented_since(machine: Any) -> float | None:
    """When AWS or Google Cloud say that a machine was started, in seconds since the epoch."""
    at = getattr(machine, "launch_time", None)
    if isinstance(machine, Mapping):
        at = machine.get("creationTimestamp")
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    return at.timestamp() if isinstance(at, datetime) else None


def _main() -> None:
    from dataclasses import asdict

    words = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        found = [asdict(node) for node in ask_provider(words)]
    except Exception as error:  # noqa: BLE001 - each cloud's library has a tree of its own
        text = " ".join(str(error).split()) or type(error).__name__
        sys.exit(f"{type(error).__name__}: {text}")
    sys.stdout.write(MARK + json.dumps(found) + "\n")


if __name__ == "__main__":
    _main()
