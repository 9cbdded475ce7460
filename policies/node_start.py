"""Nodes that have to be started first: how long they take, as assumed and as seen."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from policies.constants import CONSTANTS, S_PER_H
from policies.robust import Correction, before_any_row, robust_fit, standard
from policies.schema import Experience, Node, Plan

# How far the assumed time may be off, and one start from the next, as standard deviations of
# their logarithms.
ASSUMED: Final = 0.45
NOISE: Final = 0.2
OTHER_TYPE_WEIGHT: Final = 0.5


def not_up(plan: Plan, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of a plan that have to be started first."""
    held = set(plan.nodes)
    return tuple(node for node in nodes if node.id in held and not node.is_up)


def learn_node_starts(
    nodes: Sequence[Node], experience: Sequence[Experience]
) -> dict[str, Correction]:
    """What experience says of the time until nodes of a type have joined, by node type.

    As a factor on `CONSTANTS.node_start_s`, of the types that can be started. Starts of other
    types count less.
    """
    starts = dict.fromkeys((e.run, start) for e in experience for start in e.node_starts)
    seen = [start for _, start in starts if start.took_s > 0.0]
    types = {node.node_type or "" for node in nodes if not node.is_up}
    return {
        name: _correction(
            [start.took_s for start in seen],
            [1.0 if start.node_type == name else OTHER_TYPE_WEIGHT for start in seen],
        )
        for name in sorted(types)
    }


def _correction(took_s: Sequence[float], weights: Sequence[float]) -> Correction:
    x = np.array([ASSUMED])
    posterior = before_any_row(standard(1), NOISE)
    if took_s:
        y = np.log(np.array(took_s) / CONSTANTS.node_start_s)
        posterior = robust_fit(np.tile(x, (len(y), 1)), y, np.array(weights), NOISE)
    return Correction(posterior.mean(x), math.sqrt(posterior.variance(x)))


def node_start(
    plan: Plan, nodes: Sequence[Node], learned: Mapping[str, Correction]
) -> Correction | None:
    """How long a plan waits for the slowest type of its nodes; None where all are up."""
    found = [learned[node.node_type or ""] for node in not_up(plan, nodes)]
    return max(found, key=lambda each: each.mean, default=None)


def lingering_usd(plan: Plan, nodes: Sequence[Node]) -> float:
    """What a plan's nodes that are to be started cost between their release and their end."""
    return math.fsum(n.price_usd_per_h * n.lingers_s / S_PER_H for n in not_up(plan, nodes))
