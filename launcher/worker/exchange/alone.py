"""The exchange of a single worker: nothing to exchange, and no TensorFlow needed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from launcher.worker.exchange.path_use import PathUse


class Alone:
    """World size 1: every sum is its own input."""

    rank = 0
    world_size = 1
    waits = None

    def sum_tensors(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """The tensors themselves."""
        del purpose
        return list(tensors)

    def gather_rows(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """The tensors themselves."""
        del purpose
        return list(tensors)

    def sum_arrays(self, arrays: Sequence[np.ndarray], purpose: str) -> list[np.ndarray]:
        """Copies of the arrays."""
        del purpose
        return [np.array(array) for array in arrays]

    def path_uses(self) -> list[PathUse]:
        """None."""
        return []

    def close(self) -> None:
        """Nobody to part from."""
