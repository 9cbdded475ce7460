"""Reads a cluster's nodes from Ray's books: what they have and cost, and which are busy."""

import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.pricing import Machine, losses_per_h, price_of, table_usd_per_h
from policies.schema import Node

SITE_LABEL = "launch/site"  # where a node stands, as its owner says
NODE_GROUP = "ray.io/node-group"  # Ray's label for the type of a node that it has started
_ROUNDING = 1e-3  # Ray counts CPUs and GPUs in steps of 1e-4
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class BusyNode:
    """A node of which someone else holds a part; `node` counts all of its CPUs and GPUs."""

    node: Node
    held_cpus: float
    held_gpus: float


@dataclass(frozen=True, slots=True)
class Listing:
    """A cluster's living nodes.

    Attributes:
        nodes: those with CPUs, all of them free.
        busy: those of which something is held.
        idle: those without CPUs, such as a head that only manages.
    """

    nodes: tuple[Node, ...]
    busy: tuple[BusyNode, ...]
    idle: tuple[Node, ...]

    @property
    def living(self) -> tuple[Node, ...]:
        """All of them."""
        return (*self.nodes, *(each.node for each in self.busy), *self.idle)

    def among(self, wanted: Collection[str]) -> "Listing":
        """Only the nodes with these addresses or ids; all if none is given."""
        if not wanted:
            return self

        def kept(node: Node) -> bool:
            return node.id in wanted or node.ip in wanted

        return Listing(
            tuple(node for node in self.nodes if kept(node)),
            tuple(each for each in self.busy if kept(each.node)),
            tuple(node for node in self.idle if kept(node)),
        )


def list_nodes(
    raw_nodes: Iterable[Mapping[str, Any]],
    free_by_id: Mapping[str, Mapping[str, float]],
    *,
    price_usd_per_h: float | None,
    own: bool,
) -> Listing:
    """Sort the living nodes into free, busy and without CPUs, each by address.

    Args:
        raw_nodes: as `ray.nodes()` gives them.
        free_by_id: what nothing holds, by node id; a node that is missing counts as free.
        price_usd_per_h: the price for every node, if one was given.
        own: whether the nodes are this machine, started for this run.

    Raises:
        ClusterError: a node carries a price label that is no price.
    """
    free: list[Node] = []
    busy: list[BusyNode] = []
    idle: list[Node] = []
    for raw in raw_nodes:
        if not raw["Alive"]:
            continue
        node = _node(raw, price_usd_per_h, own=own)
        left = free_by_id.get(node.id)
        held_cpus = 0.0 if left is None else node.cpus - float(left.get("CPU", 0.0))
        held_gpus = 0.0 if left is None else node.gpus - float(left.get("GPU", 0.0))
        if max(held_cpus, held_gpus) > _ROUNDING:
            busy.append(BusyNode(node, held_cpus, held_gpus))
        elif node.cpus > 0:
            free.append(node)
        else:
            idle.append(node)
    return Listing(
        tuple(sorted(free, key=_order)),
        tuple(sorted(busy, key=lambda each: _order(each.node))),
        tuple(sorted(idle, key=_order)),
    )


def busy_text(busy: Sequence[BusyNode]) -> str:
    """Which nodes are busy and how much of them is held, in a line."""
    ips = [each.node.ip for each in busy]
    more = len(ips) - _MAX_NAMED
    names = ", ".join(ips[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    cpus = sum(each.held_cpus for each in busy), sum(each.node.cpus for each in busy)
    gpus = sum(each.held_gpus for each in busy), sum(each.node.gpus for each in busy)
    parts = [
        f"{held:g} of {total:g} {name}"
        for name, (held, total) in (("CPUs", cpus), ("GPUs", gpus))
        if held > _ROUNDING
    ]
    who = "another job holds" if len(busy) == 1 else "other jobs hold"
    return f"{names} {'is' if len(busy) == 1 else 'are'} busy: {who} {' and '.join(parts)}"


def _node(raw: Mapping[str, Any], price_usd_per_h: float | None, *, own: bool) -> Node:
    total: Mapping[str, float] = raw["Resources"]
    labels: Mapping[str, str] = raw.get("Labels") or {}
    instance_type = instance_type_of(labels)
    ip = str(raw["NodeManagerAddress"])
    cpus, gpus = float(total.get("CPU", 0.0)), float(total.get("GPU", 0.0))
    machine = Machine(ip, cpus, gpus, labels, instance_type, own=own)
    price = price_of(machine, price_usd_per_h)
    return Node(
        id=str(raw["NodeID"]),
        ip=ip,
        cpus=cpus,
        gpus=gpus,
        instance_type=instance_type,
        price_usd_per_h=price.usd_per_h,
        price_source=price.source,
        kind=instance_type or kind_of(cpus, gpus, labels.get("ray.io/accelerator-type")),
        node_type=labels.get(NODE_GROUP),
        losses_per_h=losses_per_h(machine),
        site=labels.get(SITE_LABEL) or None,
    )


def instance_type_of(labels: Mapping[str, str]) -> str | None:
    """The provider's name of the machine type, if a label tells it.

    Any label `…/instance-type` counts (`launch/instance-type`, Kubernetes' own), then
    `node_type`; the autoscaler's node group only where it's named like a known type.
    """
    named = {key.rsplit("/", 1)[-1].replace("_", "-"): value for key, value in labels.items()}
    for key in ("instance-type", "node-type"):
        if named.get(key):
            return named[key]
    group = labels.get(NODE_GROUP, "")
    return group if group.lower() in table_usd_per_h() else None


def kind_of(cpus: float, gpus: float, accelerator: str | None = None) -> str:
    """The name for machines that compute alike, such as `8 cpu + 1 gpu (T4)`."""
    if gpus <= 0:
        return f"{cpus:g} cpu"
    return f"{cpus:g} cpu + {gpus:g} gpu" + (f" ({accelerator})" if accelerator else "")


def _order(node: Node) -> tuple[int, bytes | str, str]:
    try:
        return (0, socket.inet_aton(node.ip), node.id)
    except OSError:
        return (1, node.ip, node.id)
