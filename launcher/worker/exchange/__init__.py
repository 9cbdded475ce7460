"""Ways to exchange gradients and other arrays between workers.

`alone.Alone` is for one worker, `collective.CollectiveExchange` is TensorFlow's own all-reduce.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from launcher.worker.exchange.path_use import PathUse
from launcher.worker.exchange.waits import Waits


class Exchange(Protocol):
    """Sums over all ranks; every rank must make the same calls in the same order."""

    rank: int
    world_size: int

    @property
    def waits(self) -> Waits | None:
        """How long this rank has waited for others, if that can be told."""
        ...

    def sum_tensors(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """Sums TensorFlow tensors over ranks, inside or outside of a graph.

        Args:
            tensors: float or 32/64-bit integer tensors of static shape, equal on all ranks.
            purpose: what is summed; calls that must not be mixed up have different purposes.
        """
        ...

    def gather_rows(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """All ranks' rows of some TensorFlow tensors, in rank order, inside or outside of a graph.

        Args:
            tensors: with equally many rows each; ranks may have different numbers of rows.
            purpose: as in `sum_tensors`.
        """
        ...

    def sum_arrays(self, arrays: Sequence[np.ndarray], purpose: str) -> list[np.ndarray]:
        """Sums NumPy arrays over ranks, keeping their dtypes; blocks until all ranks take part."""
        ...

    def path_uses(self) -> list[PathUse]:
        """What went over each network, where there are several; blocks like `sum_arrays`."""
        ...

    def close(self) -> None:
        """Parts from the peers in an orderly way, when the script has ended."""
        ...
