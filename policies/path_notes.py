"""What there is to say of several networks: which one a plan uses, and which one it could use."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from policies.paths import Path, Paths
from policies.schema import DEFAULT_PATH, Node, Plan
from policies.wording import count, times

# A network is worth an address from so many times the bandwidth of Ray's own.
WORTH_IT: Final = 2.0
# Up to so many nodes are named.
NAMED: Final = 3


def path_notes(plan: Plan, paths: Paths) -> tuple[str, ...]:
    """Sentences on the plan's path, and on faster ones that some nodes lack."""
    notes = []
    path = paths.of(plan)
    if path is paths.together and path is not paths.default and plan.n_workers > 1:
        n_networks = f"{count(len(paths.by_name))} networks at once"
        notes.append(f"Workers talk over {n_networks}: {_gain(plan, path, paths.default)}.")
    if path.name != DEFAULT_PATH and plan.n_workers > 1:
        notes.append(f"Workers talk over {path.name}: {_gain(plan, path, paths.default)}.")
    for other in paths.others:
        lacking = [n for n in paths.default.nodes if n.cpus > 0 and n not in other.nodes]
        ratio = _typical_ratio(other, paths.default)
        if lacking and ratio >= WORTH_IT:
            notes.append(_advice(other, lacking, ratio, len(paths.default.nodes)))
    return tuple(notes)


def _gain(plan: Plan, path: Path, default: Path) -> str:
    """What the plan's ring gains over the network that Ray uses, in the median of its edges."""
    wide = np.median(default.s_per_byte(plan.nodes) / path.s_per_byte(plan.nodes))
    if wide > 1.1:
        return f"{times(float(wide))} the bandwidth of Ray's own network"
    far = np.median(default.one_way_s(plan.nodes) / path.one_way_s(plan.nodes))
    return f"messages arrive {times(float(far))} as soon as on Ray's own network"


def _typical_ratio(path: Path, default: Path) -> float:
    """How many times as much bandwidth a path has between its nodes, in the median."""
    mine = path.links.s_per_byte
    theirs = default.links.among([node.id for node in path.nodes]).s_per_byte
    apart = ~np.eye(len(mine), dtype=bool)
    return float(np.median(theirs[apart] / mine[apart]))


def _advice(path: Path, lacking: Sequence[Node], ratio: float, n_nodes: int) -> str:
    fast = f"{path.name}, which is {times(ratio)} as fast as Ray's own network"
    if len(lacking) > NAMED:
        return f"{len(lacking)} of {n_nodes} nodes have no address on {fast}: give them one."
    who = " and ".join(node.ip for node in lacking)
    have, them = ("has", "it") if len(lacking) == 1 else ("have", "them")
    return f"{who} {have} no address on {fast}: give {them} one to use it."
