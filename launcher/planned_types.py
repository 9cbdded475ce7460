"""The machines that a cluster file rents: of each type how many from the start, and their price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.cluster_nodes import instance_type_of
from launcher.figures import price_text
from launcher.node_types import configured_instance_type
from launcher.pricing import Machine, Price, price_of


@dataclass(frozen=True, slots=True)
class PlannedType:
    """A node type of a cluster file; `n_from_start` of its machines are to be up at all times."""

    name: str
    cpus: float
    gpus: float
    n_from_start: int
    price: Price
    instance_type: str | None = None
    is_head: bool = False


def planned_types(words: Mapping[str, Any]) -> tuple[PlannedType, ...]:
    """The node types of a cluster file, the head's first; none if it has none.

    Raises:
        ClusterError: a type has a price label that is no price.
    """
    types, head = words.get("available_node_types"), words.get("head_node_type")
    if not isinstance(types, dict):
        return ()
    found = [
        _planned(str(name), about, is_head=name == head)
        for name, about in types.items()
        if isinstance(about, dict)
    ]
    return tuple(sorted(found, key=lambda each: not each.is_head))


def usd_per_h(types: Sequence[PlannedType]) -> float:
    """What the machines that are up from the start cost together, in dollars per hour."""
    return sum(each.n_from_start * each.price.usd_per_h for each in types)


def planned_text(types: Sequence[PlannedType]) -> str:
    """What is rented, in a line: `1 head ($0.10/h), 2 cpu ($0.34/h each): $0.78/h in all`."""
    parts = [
        f"{each.n_from_start} {each.name} ({price_text(each.price.usd_per_h)}"
        f"{' each' if each.n_from_start > 1 else ''}"
        f"{', assumed' if each.price.source == 'assumed' else ''})"
        for each in types
        if each.n_from_start
    ]
    return f"{', '.join(parts)}: {price_text(usd_per_h(types))} in all"


def _planned(name: str, about: Mapping[str, Any], *, is_head: bool) -> PlannedType:
    resources = about.get("resources") or {}
    cpus, gpus = (float(resources.get(key) or 0.0) for key in ("CPU", "GPU"))
    labels = {str(key): str(value) for key, value in (about.get("labels") or {}).items()}
    kind = instance_type_of(labels) or configured_instance_type(about)
    price = price_of(Machine(f"of the type {name}", cpus, gpus, labels, kind))
    n_from_start = 1 if is_head else int(about.get("min_workers") or 0)
    return PlannedType(name, cpus, gpus, n_from_start, price, kind, is_head)
