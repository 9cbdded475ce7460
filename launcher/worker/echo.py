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
        self._spared_bytes: dict[Any, list[float]] = {}  # by the graph that was traced

    def sum_tensors(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """The tensors as they are."""
        if purpose == GRADIENTS:
            return self.on_gradients(list(tensors))
        self.has_other_sums |= purpose.startswith(("denominator", "moments"))
        return list(tensors)

    def gather_rows(self, tensors: Sequence[Any], purpose: str) -> list[Any]:  # noqa: ARG002
        """The rows of as many ranks, all of them this one's."""
        import tensorflow as tf

        return [tf.concat([tensor] * self.world_size, 0) for tensor in tensors]

    def note_slices(self, slices: Any) -> None:
        """Has each run of the step that is being traced note what its slices spare the network.

        A sum takes all of a gradient to all ranks and back, gathered rows go one way: a row counts
        half, with its index.

        Args:
            slices: an embedding's gradient, of this rank's rows.
        """
        import tensorflow as tf

        if tf.executing_eagerly():
            return
        spared = self._spared_bytes.setdefault(tf.compat.v1.get_default_graph(), [])
        place, n_ranks = len(spared), self.world_size
        spared.append(0.0)
        item_bytes, index_bytes = slices.values.dtype.size, slices.indices.dtype.size

        def note(n_values: Any, n_indices: Any, shape: Any) -> None:
            gathered_bytes = n_ranks * (int(n_values) * item_bytes + int(n_indices) * index_bytes)
            spared[place] = float(shape.prod()) * item_bytes - gathered_bytes / 2

        sizes = [tf.size(slices.values), tf.size(slices.indices), slices.dense_shape]
        tf.numpy_function(note, sizes, [])

    @property
    def spared_bytes(self) -> float:
        """Of all gradients' bytes, those that slices spare the network in a step."""
        return max((sum(each) for each in self._spared_bytes.values()), default=0.0)

    @property
    def n_slices(self) -> int:
        """How many gradients of a step are slices."""
        return max(map(len, self._spared_bytes.values()), default=0)

    def sum_arrays(self, arrays: Sequence[Any], purpose: str) -> list[Any]:  # noqa: ARG002
        """The arrays as they are."""
        return list(arrays)

    def path_uses(self) -> list[Any]:
        """Nothing went anywhere."""
        return []

    def close(self) -> None:
        """Nobody to part from."""
