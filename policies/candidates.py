"""Which plans there are: how many workers, on nodes with how much room."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from policies.cost_model import whole_cpus
from policies.direct import MAX_WORKERS as MAX_DIRECT
from policies.schema import (
    DEFAULT_PATH,
    Limits,
    Node,
    PlanOptions,
    Situation,
    Strategy,
    Workload,
)

# Up to so many every n is looked at; of more, the first few, then each next n is about 1.4 times as
# large, and what lies around the best is looked at afterwards.
DENSE_UP_TO: Final = 12
FIRST: Final = 4
GROWTH: Final = 1.4


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes that can form one plan, and how many workers each has room for.

    Ray gives all workers of a plan the same resources, so nodes with GPUs and nodes without
    make two pools. `cpus_per_worker` is None where a worker takes its share of the node.
    `path` is the network over which its workers talk.
    """

    nodes: tuple[Node, ...]
    room: tuple[int, ...]
    cpus_per_worker: float | None
    gpus_per_worker: float
    path: str = DEFAULT_PATH

    @property
    def n_max(self) -> int:
        """The most workers that the pool has room for."""
        return sum(self.room)

    def options(self, n_by_node: Mapping[str, int]) -> PlanOptions:
        """Resources of each worker: what was asked for, else the common minimum.

        Args:
            n_by_node: workers on each node that has any, by node id.
        """
        places = {i: n_by_node[x.id] for i, x in enumerate(self.nodes) if x.id in n_by_node}
        return self.options_at(places)

    def options_at(self, n_by_place: Mapping[int, int]) -> PlanOptions:
        """The same, by a node's place in `nodes`."""
        cpus = self.cpus_per_worker
        if cpus is None:
            cpus = whole_cpus(min(self.nodes[i].cpus / k for i, k in n_by_place.items()))
        return PlanOptions(cpus, self.gpus_per_worker, self.path)

    def on_path(self, path: str, nodes: Iterable[Node]) -> "Pool":
        """The same pool as far as its nodes have an address on a path."""
        reached = {node.id for node in nodes}
        kept = [i for i, node in enumerate(self.nodes) if node.id in reached]
        return replace(
            self,
            nodes=tuple(self.nodes[i] for i in kept),
            room=tuple(self.room[i] for i in kept),
            path=path,
        )


def pools(nodes: Sequence[Node], limits: Limits) -> tuple[Pool, ...]:
    """Pools of nodes alike in what a worker gets there, nodes in the order of their ids."""
    ordered = sorted(nodes, key=lambda node: node.id)
    gpus = limits.gpus_per_worker
    with_gpus = [node for node in ordered if node.gpus > 0 and (gpus is None or gpus > 0)]
    without = [node for node in ordered if node.gpus <= 0 or gpus == 0]
    found = [_pool(with_gpus, limits, 1.0 if gpus is None else gpus)]
    if not gpus:
        lone = sum(node.cpus > 0 for node in ordered) == 1
        found.append(_cpu_pool(without, limits, lone=lone))
    return tuple(pool for pool in found if pool.nodes)


def obtainable(nodes: Sequence[Node], limits: Limits) -> list[tuple[Pool, ...]]:
    """Pools of nodes that can all be had at once: those that are up, alone and beside others.

    What is up needs no time to start, so its plans are looked at by themselves too. Beside it
    may be the nodes to start of one type, or of all types where so many may be started.
    """
    up = [node for node in nodes if node.is_up]
    new = [node for node in nodes if not node.is_up]
    most = len(new) if limits.max_started is None else limits.max_started
    sets = [up]
    for name in sorted({node.node_type or "" for node in new}):
        sets.append([*up, *[node for node in new if (node.node_type or "") == name][:most]])
    if len(sets) > 2 and len(new) <= most:
        sets.append([*up, *new])
    return [pools(each, limits) for each in sets if each]


def _cpu_pool(nodes: Sequence[Node], limits: Limits, *, lone: bool) -> Pool:
    """One worker per node; several on a lone machine, or where a fixed n needs it."""
    pool = _pool(nodes, limits, 0.0)
    crowded = limits.workers is not None and limits.workers > pool.n_max
    if pool.cpus_per_worker is None and (lone or crowded):
        room = tuple(max(1, math.floor(node.cpus + 1e-9)) for node in pool.nodes)
        return replace(pool, room=room)
    return pool


def _pool(nodes: Sequence[Node], limits: Limits, gpus_per_worker: float) -> Pool:
    room_by_node = {node: _room(node, limits.cpus_per_worker, gpus_per_worker) for node in nodes}
    fit = tuple(node for node in nodes if room_by_node[node] > 0)
    room = tuple(room_by_node[node] for node in fit)
    return Pool(fit, room, limits.cpus_per_worker, gpus_per_worker)


def _room(node: Node, cpus_per_worker: float | None, gpus_per_worker: float) -> int:
    by_cpus = math.inf if cpus_per_worker is None else node.cpus / cpus_per_worker
    by_gpus = math.inf if gpus_per_worker <= 0 else node.gpus / gpus_per_worker
    if node.cpus <= 0:
        return 0
    if math.isinf(by_cpus) and math.isinf(by_gpus):
        return 1
    return math.floor(min(by_cpus, by_gpus) + 1e-9)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The largest n, and in words what keeps it from being larger."""

    n_workers: int
    reason: str


def ceiling(situation: Situation, found: Iterable[Pool]) -> Ceiling:
    """The largest n that nodes, data, batch and request allow."""
    workload, limits = situation.workload, situation.limits
    n_room = max((pool.n_max for pool in found), default=0)
    where = _where(situation.nodes, limits.max_started)
    caps = [Ceiling(n_room, f"{where} room for {n_room}")]
    batch = situation.work.global_batch
    caps.append(
        Ceiling(
            batch, f"a batch of {batch} row{'' if batch == 1 else 's'} cannot be shared among more"
        )
    )
    if workload.max_workers is not None:
        why = workload.max_workers_reason or f"the data can feed {workload.max_workers}"
        caps.append(Ceiling(workload.max_workers, why))
    if limits.strategy is not None and limits.strategy != "allreduce":
        caps.append(_connected_cap(workload, limits.strategy))
    if limits.max_workers is not None and limits.workers is None:
        caps.append(Ceiling(limits.max_workers, f"--max-workers is {limits.max_workers}"))
    return min(caps, key=lambda cap: cap.n_workers)


def _where(nodes: Sequence[Node], max_started: int | None) -> str:
    """The nodes as the subject of a sentence that goes on with "room"."""
    n_up = sum(node.is_up for node in nodes)
    up = "this machine" if n_up == 1 else f"the cluster's {n_up} nodes"
    n_new = len(nodes) - n_up
    n_more = n_new if max_started is None else min(n_new, max_started)
    if not n_more:
        return f"{up} has" if n_up == 1 else f"{up} have"
    return f"{up} and {n_more} more that can be started have"


def _connected_cap(workload: Workload, strategy: Strategy) -> Ceiling:
    """Where every worker has a connection to every other."""
    if workload.own_loop:
        return Ceiling(1, "a script's own train_loop_per_worker cannot exchange directly")
    if strategy == "decentralized" and not workload.uses_fit:
        return Ceiling(
            1, "decentralized training needs model.fit, and the script's loop is its own"
        )
    why = f"{strategy} connects every worker with every other, up to {MAX_DIRECT} of them"
    return Ceiling(MAX_DIRECT, why)


def strategies(situation: Situation, n_workers: int) -> tuple[Strategy, ...]:
    """The ways to exchange gradients that are open to n workers; one worker exchanges nothing."""
    asked = situation.limits.strategy
    if n_workers == 1 or asked == "allreduce":
        return ("allreduce",)
    if asked is not None:
        return (asked,)
    workload = situation.workload
    if workload.own_loop or n_workers > MAX_DIRECT:
        return ("allreduce",)
    if situation.limits.allow_approximate and workload.uses_fit:
        return ("allreduce", "direct", "decentralized")
    return ("allreduce", "direct")


def worker_counts(n_max: int) -> tuple[int, ...]:
    """The n to look at first: all up to a dozen, else ever wider apart, and the largest."""
    counts = list(range(1, min(n_max, DENSE_UP_TO if n_max <= DENSE_UP_TO else FIRST) + 1))
    while counts and counts[-1] < n_max:
        counts.append(min(n_max, max(counts[-1] + 1, round(counts[-1] * GROWTH))))
    return tuple(counts)
