"""Where each variable of a model lies in its flat vector."""

from collections.abc import Iterator, Sequence

import numpy as np

from launcher.worker.exchange.decentralized.sparse import Vector


class Layout:
    """Variables one after another in a flat vector.

    Args:
        sizes: of the variables, in entries, in the order of the model.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        ends = [int(end) for end in np.cumsum(self.sizes)]
        self.spans = [slice(end - n, end) for end, n in zip(ends, self.sizes, strict=True) if n]
        self.size = ends[-1] if ends else 0

    def variables(self, vector: Vector) -> Iterator[Vector]:
        """Views of the variables' parts that are not empty."""
        return (vector[span] for span in self.spans)

    def split(self, vector: Vector) -> list[Vector]:
        """The part of every variable, also of empty ones."""
        return np.split(vector, np.cumsum(self.sizes)[:-1]) if self.sizes else []
