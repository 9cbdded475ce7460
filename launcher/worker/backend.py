"""Ray Train's back end: give every worker its rank in the plan's order, and all addresses.

Unlike Ray's own TensorFlow back end it imports no TensorFlow, so the controller starts at once,
and it does not switch the process to legacy Keras behind the user's back.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from launcher.worker import nccl
from launcher.worker.environment import environment
from launcher.worker.interfaces import addresses, network_of
from launcher.worker.nccl import Wires
from launcher.worker.ports import hold_again, hold_port
from launcher.worker.ring_order import task_by_rank


@dataclass
class LaunchBackendConfig(BackendConfig):
    """Which node holds which rank.

    Attributes:
        node_ids: Ray node id of each rank, in the plan's (and ring's) order.
        ips_by_node: a node's address on each network that the workers use, "" where it has none;
            nodes that are not named use the address that Ray uses.
        for_tensorflow: whether TensorFlow's own runtime connects the workers.
        with_nccl: whether NCCL exchanges gradients between GPUs.
    """

    node_ids: tuple[str, ...] = ()
    ips_by_node: dict[str, tuple[str, ...]] = field(default_factory=dict)
    for_tensorflow: bool = True
    with_nccl: bool = False

    @property
    def backend_cls(self) -> type:
        """What Ray Train starts on the workers."""
        return LaunchBackend


class LaunchBackend(Backend):
    """Writes `LAUNCH_RANK` and, for more than one worker, `LAUNCH_ADDRESSES` or `TF_CONFIG`.

    Ray Train makes one per controller.
    """

    def __init__(self) -> None:
        self._ranks: list[int] = []
        self._addresses: list[tuple[str, ...]] = []

    def on_start(self, worker_group: Any, backend_config: LaunchBackendConfig) -> None:
        """Set every worker's environment before the training function runs."""
        if len(worker_group) < len(self._ranks):
            self._start_again(worker_group)
            return
        places = worker_group.execute(_place, backend_config.ips_by_node)
        ranks = ranks_in_plan_order([place.node_id for place in places], backend_config.node_ids)
        by_rank: list[tuple[str, ...]] = [()] * len(places)
        for place, rank in zip(places, ranks, strict=True):
            by_rank[rank] = place.addresses
        self._ranks, self._addresses = ranks, by_rank
        set_environment = _set_tf_config if backend_config.for_tensorflow else _set_addresses
        ray.get(
            [
                worker_group.execute_single_async(index, set_environment, by_rank, rank)
                for index, rank in enumerate(ranks)
            ]
        )
        if backend_config.with_nccl:
            _set_up_nccl(worker_group, backend_config.ips_by_node)

    def rank_at(self, index: int) -> int | None:
        """The rank in the plan of Ray Train's worker of this world rank; None before the start."""
        return self._ranks[index] if index < len(self._ranks) else None

    def _start_again(self, workers: Any) -> None:
        """Give processes in place of others' their ranks and addresses."""
        for index, worker in enumerate(workers.get_workers()):
            rank = self._ranks[worker.distributed_context.world_rank]
            set_here = (_set_addresses_again, self._addresses, rank)
            ray.get(workers.execute_single_async(index, *set_here))


def _set_up_nccl(worker_group: Any, ips_by_node: dict[str, tuple[str, ...]]) -> None:
    """Give every worker NCCL's variables, before anything loads NCCL."""
    environments = nccl.nccl_environments(worker_group.execute(_wires, ips_by_node))
    ray.get(
        [
            worker_group.execute_single_async(index, _set_nccl, environment)
            for index, environment in enumerate(environments)
        ]
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker is: its node, and `ip:port` on each network ("" where it has none)."""

    node_id: str
    addresses: tuple[str, ...]


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


def _place(ips_by_node: dict[str, tuple[str, ...]]) -> Place:
    """Where this worker is, with ports that are kept free for it."""
    node_id, ips = _here(ips_by_node)
    return Place(node_id, tuple(hold_port(ip) if ip else "" for ip in ips))


def _wires(ips_by_node: dict[str, tuple[str, ...]]) -> Wires:
    """What this worker's node has for NCCL."""
    node_id, ips = _here(ips_by_node)
    found = addresses()
    interfaces = [at.interface if (at := network_of(ip, found)) else "" for ip in ips]
    bytes_per_s = nccl.interface_bytes_per_s(interfaces[0]) if interfaces[0] else None
    said = nccl.said_variables(environment())
    return Wires(node_id, tuple(interfaces), bytes_per_s, nccl.rdma_ports(), said)


def _here(ips_by_node: dict[str, tuple[str, ...]]) -> tuple[str, tuple[str, ...]]:
    """This worker's node, and its addresses ("" on networks that it lacks)."""
    node_id = ray.get_runtime_context().get_node_id()
    return node_id, ips_by_node.get(node_id) or (ray.util.get_node_ip_address(),)


def _set_addresses(addresses: list[tuple[str, ...]], rank: int) -> None:
    """For the launcher's own exchange."""
    os.environ["LAUNCH_RANK"] = str(rank)
    os.environ["LAUNCH_WORLD_SIZE"] = str(len(addresses))
    os.environ["LAUNCH_ADDRESSES"] = json.dumps(addresses)
    os.environ.pop("TF_CONFIG", None)


def _set_addresses_again(addresses: list[tuple[str, ...]], rank: int) -> None:
    """In a process that takes the place of another one."""
    for address in addresses[rank]:
        hold_again(address)
    _set_addresses(addresses, rank)


def _set_tf_config(addresses: list[tuple[str, ...]], rank: int) -> None:
    """For TensorFlow's runtime, which knows one address of each worker."""
    _set_addresses(addresses, rank)
    if len(addresses) == 1:
        return
    tasks = task_by_rank(len(addresses))
    address_by_task = dict(zip(tasks, [first for first, *_ in addresses], strict=True))
    workers = [address_by_task[task] for task in range(len(addresses))]
    task = {"type": "worker", "index": tasks[rank]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})


def _set_nccl(environment: dict[str, str]) -> None:
    """NCCL's variables, and what the run's record says of them."""
    os.environ.update(environment)
    os.environ["LAUNCH_NCCL"] = nccl.told(environment)
