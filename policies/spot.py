"""Nodes that their provider may take back: how often that is expected, and what it takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from policies.constants import CONSTANTS, S_PER_H
from policies.schema import Node, Plan


@dataclass(frozen=True, slots=True)
class Losses:
    """What the losses of a plan's nodes are expected to add, in seconds and seconds squared."""

    n: float = 0.0
    mean_s: float = 0.0
    variance: float = 0.0


def losses_per_h(plan: Plan, nodes: Sequence[Node]) -> float:
    """How many nodes of a plan its provider takes back in an hour, in expectation."""
    held = set(plan.nodes)
    return math.fsum(node.losses_per_h for node in nodes if node.id in held)


def part_lost(node: Node) -> float:
    """What losses of a node add to a job's time, as a part of it; before start-up is predicted."""
    each_s = CONSTANTS.train_s + CONSTANTS.process_s + CONSTANTS.checkpoint_every_s / 2.0
    return node.losses_per_h * each_s / S_PER_H


def losses(plan: Plan, nodes: Sequence[Node], time_s: float, startup_s: float) -> Losses:
    """What losses add to a job of `time_s`.

    Losses are independent (a Poisson process). Each costs one more start-up, and the steps since
    the last checkpoint: half of what lies between two. That training goes on with fewer nodes
    afterwards is left to the decision that is made then.
    """
    n = losses_per_h(plan, nodes) * time_s / S_PER_H
    each_s = startup_s + CONSTANTS.checkpoint_every_s / 2.0
    return Losses(n, n * each_s, n * each_s**2)
