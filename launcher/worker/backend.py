"""Ray Train's back end: give every worker its rank in the plan's order, and `TF_CONFIG`.

Unlike Ray's own TensorFlow back end it imports no TensorFlow, so the controller starts at once,
and it does not switch the process to legacy Keras behind the user's back.
"""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from launcher.worker.ring_order import task_by_rank


@dataclass
class LaunchBackendConfig(BackendConfig):
    """Which node holds which rank.

    Attributes:
        node_ids: Ray node id of each rank, in the plan's (and ring's) order.
        ip_by_node: the address that workers of a node are reached at, where it is not Ray's own.
    """

    node_ids: tuple[str, ...] = ()
    ip_by_node: dict[str, str] = field(default_factory=dict)

    @property
    def backend_cls(self) -> type:
        """What Ray Train starts on the workers."""
        return LaunchBackend


class LaunchBackend(Backend):
    """Writes `LAUNCH_RANK` and, for more than one worker, `TF_CONFIG`."""

    def on_start(self, worker_group: Any, backend_config: LaunchBackendConfig) -> None:
        """Set every worker's environment before the training function runs."""
        places = worker_group.execute(_place, backend_config.ip_by_node)
        ranks = ranks_in_plan_order([place["node_id"] for place in places], backend_config.node_ids)
        addresses = [""] * len(places)
        for place, rank in zip(places, ranks, strict=True):
            addresses[rank] = place["address"]
        ray.get(
            [
                worker_group.execute_single_async(index, _set_environment, addresses, rank)
                for index, rank in enumerate(ranks)
            ]
        )


def ranks_in_plan_order(found: Sequence[str], planned: Sequence[str]) -> list[int]:
    """The rank of each worker, given its node, so that rank i sits on node `planned[i]`.

    Workers on a node that the plan does not name get the ranks that are left.
    """
    free = list(range(len(found)))
    ranks: list[int | None] = [None] * len(found)
    for index, node_id in enumerate(found):
        rank = next((r for r in free if r < len(planned) and planned[r] == node_id), None)
        if rank is not None:
            free.remove(rank)
            ranks[index] = rank
    return [free.pop(0) if rank is None else rank for rank in ranks]


def _place(ip_by_node: dict[str, str]) -> dict[str, str]:
    """Where this worker is, with a port that is free at this moment."""
    node_id = ray.get_runtime_context().get_node_id()
    ip = ip_by_node.get(node_id) or ray.util.get_node_ip_address()
    with socket.socket() as probe:
        probe.bind((ip, 0))
        port = probe.getsockname()[1]
    return {"node_id": node_id, "address": f"{ip}:{port}"}


def _set_environment(addresses: list[str], rank: int) -> None:
    os.environ["LAUNCH_RANK"] = str(rank)
    os.environ["LAUNCH_WORLD_SIZE"] = str(len(addresses))
    if len(addresses) > 1:
        tasks = task_by_rank(len(addresses))
        address_by_task = dict(zip(tasks, addresses, strict=True))
        workers = [address_by_task[task] for task in range(len(addresses))]
        task = {"type": "worker", "index": tasks[rank]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    else:
        os.environ.pop("TF_CONFIG", None)
