"""Links of nodes that do not exist yet: like those measured between nodes of their types."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from policies.arrays import Bools, Floats, Ints
from policies.schema import Node


def assume_alike(
    nodes: Sequence[Node], src: Ints, dst: Ints, measured: Floats, target: Floats
) -> None:
    """Give the links of nodes that are to be started a value, in place.

    It is the median of what was measured between nodes of the two types, else of all links of
    either type, else of all links; where none was measured, `target` stays as it is.

    Args:
        nodes: all nodes, N of them.
        src: places of the measured links' sources in `nodes`, shape `(L,)`; `dst` likewise.
        measured: of latency or inverse bandwidth, shape `(L,)`, NaN where not known.
        target: the same of every link, shape `(N, N)`.
    """
    new = np.array([not node.is_up for node in nodes])
    known = ~np.isnan(measured)
    if not new.any() or not known.any():
        return
    kind = _type_numbers(nodes)
    apart = known & (src != dst)
    for a, b in product(np.unique(kind), repeat=2):
        found = _typical(measured, apart, kind[src] == a, kind[dst] == b)
        wanted = np.outer(kind == a, kind == b) & (new[:, None] | new[None, :])
        np.fill_diagonal(wanted, val=False)
        if found is not None:
            target[wanted] = found
    if (known & (src == dst)).any():
        target[new, new] = np.median(measured[known & (src == dst)])


def _type_numbers(nodes: Sequence[Node]) -> Ints:
    names = sorted({node.node_type or "" for node in nodes})
    return np.array([names.index(node.node_type or "") for node in nodes], dtype=np.int64)


def _typical(measured: Floats, apart: Bools, from_a: Bools, to_b: Bools) -> float | None:
    """The median of the links that tell most of those from one type to another."""
    for chosen in (apart & from_a & to_b, apart & (from_a | to_b), apart):
        if chosen.any():
            return float(np.median(measured[chosen]))
    return None
