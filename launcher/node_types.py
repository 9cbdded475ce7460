"""Which nodes a cluster's autoscaler may start: their types, prices and limits."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.cluster_nodes import NODE_GROUP, SITE_LABEL, instance_type_of, kind_of
from launcher.pricing import Machine, losses_per_h, price_of
from policies.schema import Node

HEAD = "node:__internal_head__"  # a resource that only the head has
# Ray's own defaults where a cluster file does not say.
_MAX_WORKERS = 2
_IDLE_MINUTES = 5.0


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of node in a cluster's configuration; at most `max_nodes` of them may be up.

    `instance_type` is the provider's name of it, where the configuration tells.
    """

    name: str
    cpus: float
    gpus: float
    max_nodes: int
    labels: Mapping[str, str] = field(default_factory=dict)
    instance_type: str | None = None


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """What a cluster's autoscaler may do.

    `max_nodes` are of all types together, besides the head; a node that nobody uses ends after
    `idle_s`.
    """

    types: tuple[NodeType, ...]
    max_nodes: int
    idle_s: float

    def labels_of(self, node_type: str | None) -> Mapping[str, str]:
        """The labels by which the autoscaler tells a type from others."""
        return next((each.labels for each in self.types if each.name == node_type), {})


def autoscaling_of(words: Mapping[str, Any]) -> Autoscaling | None:
    """What a Ray cluster file's words allow; None where they name no type that could train."""
    most = _count(words.get("max_workers"), _MAX_WORKERS)
    types = words.get("available_node_types")
    head = words.get("head_node_type")
    found = tuple(
        each
        for name, about in (types if isinstance(types, dict) else {}).items()
        if isinstance(about, dict)
        for each in _node_type(str(name), about, 0 if name == head else most)
    )
    minutes = words.get("idle_timeout_minutes")
    idle_s = 60.0 * (minutes if isinstance(minutes, (int, float)) else _IDLE_MINUTES)
    return Autoscaling(found, most, idle_s) if found else None


def _node_type(name: str, about: Mapping[str, Any], most: int) -> Iterator[NodeType]:
    resources = about.get("resources") or {}
    cpus, gpus = (float(resources.get(key) or 0.0) for key in ("CPU", "GPU"))
    max_nodes = _count(about.get("max_workers"), most)
    if cpus > 0 and max_nodes > 0:
        labels = {str(key): str(value) for key, value in (about.get("labels") or {}).items()}
        yield NodeType(name, cpus, gpus, max_nodes, labels, configured_instance_type(about))


def configured_instance_type(about: Mapping[str, Any]) -> str | None:
    """The provider's name of the machine: AWS, Google Cloud, Azure."""
    config = about.get("node_config") or {}
    azure = config.get("azure_arm_parameters") or {}
    found = config.get("InstanceType") or config.get("machineType") or azure.get("vmSize")
    return str(found).rsplit("/", 1)[-1] if found else None


def _count(value: object, default: int) -> int:
    """A limit; -1 means that there is none, and stands for more than anyone will need."""
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return 1000 if value < 0 else value


def with_node_group(raw: Mapping[str, Any], autoscaling: Autoscaling) -> Mapping[str, Any]:
    """A node as `ray.nodes()` gives it, its type among its labels.

    Not every way to start a node lets Ray set that label. Then the type is the only one of this
    size whose own labels the node carries; a head, and a node without such labels, has none.
    """
    labels: Mapping[str, str] = raw.get("Labels") or {}
    if NODE_GROUP in labels or HEAD in raw["Resources"]:
        return raw
    size = tuple(float(raw["Resources"].get(name, 0.0)) for name in ("CPU", "GPU"))
    fits = [
        each.name
        for each in autoscaling.types
        if each.labels and (each.cpus, each.gpus) == size and each.labels.items() <= labels.items()
    ]
    return {**raw, "Labels": {**labels, NODE_GROUP: fits[0]}} if len(fits) == 1 else raw


def n_may_start(autoscaling: Autoscaling, n_living: int) -> int:
    """How many nodes may be started beside those that live, the head among them."""
    return max(0, autoscaling.max_nodes - max(0, n_living - 1))


def nodes_to_start(
    autoscaling: Autoscaling, living: Sequence[Node], price_usd_per_h: float | None
) -> tuple[Node, ...]:
    """The nodes that could be started beside those that live, as candidates.

    Where a node of a type lives, another is taken to be like it. Of each type there are as many
    as could be started of it alone.

    Args:
        autoscaling: what may be started.
        living: all living nodes, the head among them.
        price_usd_per_h: the price for every node, if one was given.

    Raises:
        ClusterError: a type carries a price label that is no price.
    """
    n_up = Counter(node.node_type for node in living)
    left = n_may_start(autoscaling, len(living))
    found: list[Node] = []
    for each in autoscaling.types:
        n_more = min(each.max_nodes - n_up[each.name], left)
        like = next((node for node in living if node.node_type == each.name), None)
        model = _as_described(each, price_usd_per_h) if like is None else like
        found += [
            replace(
                model,
                id=f"{each.name} {number + 1}",
                ip="",
                is_up=False,
                lingers_s=autoscaling.idle_s,
            )
            for number in range(n_up[each.name], n_up[each.name] + n_more)
        ]
    return tuple(found)


def _as_described(node_type: NodeType, price_usd_per_h: float | None) -> Node:
    labels = {**node_type.labels, NODE_GROUP: node_type.name}
    named = instance_type_of(labels)
    machine = Machine(
        node_type.name,
        node_type.cpus,
        node_type.gpus,
        node_type.labels,
        named or node_type.instance_type,
    )
    price = price_of(machine, price_usd_per_h)
    accelerator = labels.get("ray.io/accelerator-type")
    return Node(
        id=node_type.name,
        ip="",
        cpus=node_type.cpus,
        gpus=node_type.gpus,
        instance_type=named,
        price_usd_per_h=price.usd_per_h,
        price_source=price.source,
        kind=named or kind_of(node_type.cpus, node_type.gpus, accelerator),
        node_type=node_type.name,
        losses_per_h=losses_per_h(machine),
        site=labels.get(SITE_LABEL) or None,
    )
