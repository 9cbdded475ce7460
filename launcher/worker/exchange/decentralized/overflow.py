"""Gradients that overflow since an optimizer has scaled them against underflow."""

from launcher.worker.exchange.decentralized.sparse import Vector, is_finite

MOST_IN_A_ROW = 40  # halvings of a scale, from the 2 ** 15 at which Keras begins to next to nothing


class Overflows:
    """Tells steps that are the optimizer's own affair: it lowers its scale and applies nothing.

    So many in a row that no scale is low enough are none: training has diverged.
    """

    def __init__(self) -> None:
        self._n_in_a_row = 0

    def note(self, gradient: Vector) -> bool:
        """Whether a step's scaled gradient is to be left to the optimizer."""
        self._n_in_a_row = 0 if is_finite(gradient) else self._n_in_a_row + 1
        return 0 < self._n_in_a_row <= MOST_IN_A_ROW
