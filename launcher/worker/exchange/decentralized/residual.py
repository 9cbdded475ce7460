"""What a peer has not been sent yet."""

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.max_n import choose
from launcher.worker.exchange.decentralized.sparse import (
    Entries,
    Part,
    Span,
    Vector,
    n_entries_in,
)


class Residual:
    """Gradients that wait to be sent over one link; nothing that is added is lost.

    Args:
        vector: zeros, shape `(d,)`; this object's own from now on.
        layout: of the variables.
    """

    def __init__(self, vector: Vector, layout: Layout) -> None:
        self.vector, self._layout = vector, layout
        self.n_percent = 100.0
        """N of what went last, see `max_n.Chosen`."""

    def add(self, gradient: Vector) -> None:
        """One more gradient, shape `(d,)`."""
        self.vector += gradient

    def take(self, capacity_bytes: int) -> Part | None:
        """The most significant entries that fit, which wait no more; None if nothing fits.

        Args:
            capacity_bytes: for the entries on the wire.
        """
        n_entries = n_entries_in(capacity_bytes, self._layout.size)
        chosen = choose(self.vector, self._layout, n_entries)
        self.n_percent = chosen.n_percent
        if chosen.indices is None:
            part: Part = Span(0, self.vector.copy())
            self.vector[:] = 0
            return part
        if not len(chosen.indices):
            return None
        part = Entries(chosen.indices, self.vector[chosen.indices])
        self.vector[chosen.indices] = 0
        return part

    def scale(self, factor: float) -> None:
        """Leaves so much of what waits; the peer has got the rest by other means."""
        self.vector *= factor
