"""An exchange without a network, for measuring what one worker of several computes."""

from collections.abc import Callable, Sequence
from typing import Any

from launcher.worker.exchange.waits import GRADIENTS


class Echo:
    """An exchange that stands for `world_size` workers and returns what it is given.

    With it the engine computes exactly what one rank of `world_size` would, without a network.

    Attributes:
        on_gradients: takes the gradients that are to be summed, and returns the sums.
        has_other_sums: whether anything has been summed that gradients depend on.
    """

    rank = 0
    world_size = 1
    waits = None

    def __init__(self) -> None:
        self.on_gradients: Callable[[list[Any]], list[Any]] = lambda gradients: gradients
        self.has_other_sums = False

    def sum_tensors(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """The tensors as they are."""
        if purpose == GRADIENTS:
            return self.on_gradients(list(tensors))
        self.has_other_sums |= purpose.startswith(("denominator", "moments"))
        return list(tensors)

    def sum_arrays(self, arrays: Sequence[Any], purpose: str) -> list[Any]:  # noqa: ARG002
        """The arrays as they are."""
        return list(arrays)

    def path_uses(self) -> list[Any]:
        """Nothing went anywhere."""
        return []

    def close(self) -> None:
        """Nobody to part from."""
