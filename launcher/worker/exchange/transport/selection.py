"""Which of a pair's paths are used, and which of them takes the next chunk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

SETTLING_BYTES = 1 << 20  # what a path of unknown rate is trusted with at a time


@dataclass(frozen=True, slots=True)
class PathLoad:
    """How a path stands.

    Args:
        path: its index.
        rtt_s: round-trip time in seconds, without queues.
        rate_bytes_per_s: what it carried while it was busy; None before that was measured.
        unsettled_bytes: given to it and not acknowledged yet.
    """

    path: int
    rtt_s: float
    rate_bytes_per_s: float | None
    unsettled_bytes: int

    def finish_s(self, n_bytes: int) -> float:
        """Seconds until this path has delivered what it has and `n_bytes` more.

        Zero while its rate is unknown: nothing speaks against it then.
        """
        if not self.rate_bytes_per_s:
            return 0.0
        return self.rtt_s / 2 + (self.unsettled_bytes + n_bytes) / self.rate_bytes_per_s


class PathSelector(Protocol):
    """Says which paths of a pair carry chunks."""

    def select(self, loads: Sequence[PathLoad]) -> Sequence[PathLoad]:
        """The paths to use, at least one of the given ones."""
        ...


class Balancer(Protocol):
    """Gives out chunks: asked whenever a path could take one."""

    def takes(
        self, own: PathLoad, others: Sequence[PathLoad], chunk_bytes: int, waiting_bytes: int
    ) -> bool:
        """Whether the path should take the next chunk, or leave it to the others.

        Of any set of paths at least one has to say yes.

        Args:
            own: the path that could take it.
            others: the other paths in use.
            chunk_bytes: of the chunk.
            waiting_bytes: of all chunks that wait, this one included.
        """
        ...


class AllPaths:
    """Uses every path there is."""

    def select(self, loads: Sequence[PathLoad]) -> Sequence[PathLoad]:
        """All of them."""
        return loads


class BestPath:
    """Uses the fastest path alone; the others are spare."""

    def select(self, loads: Sequence[PathLoad]) -> Sequence[PathLoad]:
        """The one of the highest rate, or of the least round-trip time before rates are known."""
        if all(load.rate_bytes_per_s for load in loads):
            return [max(loads, key=lambda load: (load.rate_bytes_per_s or 0.0, -load.path))]
        return [min(loads, key=lambda load: (load.rtt_s, load.path))]


class ByRate:
    """A path takes a chunk unless another one would have delivered all that waits before it."""

    def takes(
        self, own: PathLoad, others: Sequence[PathLoad], chunk_bytes: int, waiting_bytes: int
    ) -> bool:
        """Compares expected times of delivery, from measured rates."""
        if not own.rate_bytes_per_s:
            return own.unsettled_bytes < SETTLING_BYTES
        known = [other for other in others if other.rate_bytes_per_s]
        alone_s = min((other.finish_s(waiting_bytes) for other in known), default=float("inf"))
        return own.finish_s(chunk_bytes) <= alone_s


class ShortestQueue:
    """The path with the fewest bytes under way takes the next chunk; needs no rates."""

    def takes(
        self, own: PathLoad, others: Sequence[PathLoad], chunk_bytes: int, waiting_bytes: int
    ) -> bool:
        """Compares bytes under way."""
        del chunk_bytes, waiting_bytes
        return all(own.unsettled_bytes <= other.unsettled_bytes for other in others)
