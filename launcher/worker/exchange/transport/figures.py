"""What went over a path, as counted by its streams."""

from dataclasses import dataclass

REMEMBERED_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class PathFigures:
    """Figures of one path to one peer since the mesh was opened.

    Args:
        rank: the peer.
        path: index of the path.
        up: whether it can be used now.
        sent_bytes: payload given to it.
        received_bytes: payload that came over it.
        rate_bytes_per_s: what it carried lately while it was sending; None if it never did.
        busy_s: how long it was sending.
        rtt_s: round-trip time in seconds, without queues.
        n_down: how often it broke.
        n_reconnects: how often it came back.
    """

    rank: int
    path: int
    up: bool
    sent_bytes: int
    received_bytes: int
    rate_bytes_per_s: float | None
    busy_s: float
    rtt_s: float
    n_down: int
    n_reconnects: int


class RateMeter:
    """Bytes per second over the last few megabytes, counting busy time alone.

    Attributes:
        total_busy_s: busy time since it was made.
    """

    def __init__(self) -> None:
        self.total_busy_s = 0.0
        self._n_bytes = 0.0
        self._busy_s = 0.0

    def add(self, n_bytes: int, busy_s: float) -> None:
        """Count bytes that took so many seconds."""
        keep = max(0.0, 1.0 - n_bytes / REMEMBERED_BYTES)
        self._n_bytes = self._n_bytes * keep + n_bytes
        self._busy_s = self._busy_s * keep + busy_s
        self.total_busy_s += busy_s

    @property
    def bytes_per_s(self) -> float | None:
        """The rate, or None if nothing was counted."""
        return self._n_bytes / self._busy_s if self._busy_s > 0.0 else None
