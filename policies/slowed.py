"""Nodes that compute slower than others of their kind are a kind of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from policies.schema import KindSpeed, Node, Workload

SLOWER: Final = 1.4  # than it was, against what became of the others, to count


def slow_factors(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """By what factor some nodes have slowed down against all of them.

    Args:
        before: how much each node computed in a moment of training, in any unit.
        now: the same, measured anew.

    Returns:
        Only nodes that are slower by `SLOWER` or more.
    """
    ratios = {node: now[node] / before[node] for node in now if before.get(node, 0.0) > 0.0}
    if not ratios:
        return {}
    usual = max(
        1e-9, median([*ratios.values(), 1.0]) if len(ratios) < 3 else median(ratios.values())
    )
    factors = {node: usual / max(ratio, 1e-3) for node, ratio in ratios.items()}
    return {node: factor for node, factor in factors.items() if factor >= SLOWER}


def slowed(
    nodes: Sequence[Node], workload: Workload, factor_by_node: Mapping[str, float]
) -> tuple[tuple[Node, ...], Workload]:
    """Nodes and workload with the slow ones as kinds of their own."""
    speeds = {speed.kind: speed for speed in workload.node_kinds}
    changed: list[Node] = []
    added: dict[str, KindSpeed] = {}
    for node in nodes:
        factor = factor_by_node.get(node.id)
        speed = speeds.get(node.kind)
        if factor is None or speed is None:
            changed.append(node)
            continue
        kind = f"{node.kind}, {factor:.1f} × slower"
        changed.append(replace(node, kind=kind))
        added[kind] = replace(speed, kind=kind, c0_s=factor * speed.c0_s, c1_s=factor * speed.c1_s)
    kinds = (*workload.node_kinds, *(s for k, s in added.items() if k not in speeds))
    return tuple(changed), replace(workload, node_kinds=kinds)
