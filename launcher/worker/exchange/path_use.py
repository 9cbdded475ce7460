"""What each pair of workers sent over each network, gathered from all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from launcher.worker.exchange.transport.figures import PathFigures

_N_FIGURES = 4  # of `PathUse`, without the ends and the path


@dataclass(frozen=True, slots=True)
class PathUse:
    """What one rank sent another over one path, since the exchange began.

    Attributes:
        src: the rank that sent.
        dst: the rank that received.
        path: index of the path.
        sent_bytes: payload.
        busy_s: how long the path was busy with it.
        bytes_per_s: what it carried lately while it was busy; None if it never was.
        n_down: how often it broke.
    """

    src: int
    dst: int
    path: int
    sent_bytes: int
    busy_s: float
    bytes_per_s: float | None
    n_down: int


def figures_of(
    rank: int, world_size: int, n_paths: int, figures: Sequence[PathFigures]
) -> np.ndarray:
    """One rank's own part of what the ranks add up, shape `(world_size, world_size, n_paths, 4)`.

    Paths that a pair does not share have no bytes, no rate, and were never down.
    """
    own = np.zeros((world_size, world_size, n_paths, _N_FIGURES), np.float64)
    for each in figures:
        rate = each.rate_bytes_per_s or 0.0
        own[rank, each.rank, each.path] = (each.sent_bytes, each.busy_s, rate, each.n_down)
    return own


def uses_of(total: np.ndarray) -> list[PathUse]:
    """What was used or broke, from the sum of all ranks' parts."""
    return [
        PathUse(src, dst, path, int(sent), float(busy_s), float(rate) or None, int(n_down))
        for src, row in enumerate(total)
        for dst, paths in enumerate(row)
        for path, (sent, busy_s, rate, n_down) in enumerate(paths)
        if sent or n_down
    ]
