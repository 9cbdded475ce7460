"""Who has not been heard for too long, told apart from a listener that did not listen."""

from dataclasses import dataclass

OWN_STALL_S = 1.0


@dataclass(frozen=True, slots=True)
class SilentPeer:
    """A peer that is heard over no path any more."""

    rank: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class SilentPath:
    """A path over which a peer is not heard, while it is heard over another one."""

    rank: int
    path: int


class Silence:
    """Judges silence from what was heard when; without a clock of its own.

    Args:
        peer_limit_s: silence on all paths that is too long, in seconds.
        path_limit_s: silence on one path that is too long, in seconds.
    """

    def __init__(self, peer_limit_s: float, path_limit_s: float) -> None:
        self._peer_limit_s, self._path_limit_s = peer_limit_s, path_limit_s
        self._heard_s: dict[int, float] = {}
        self._path_heard_s: dict[tuple[int, int], float] = {}
        self._last_tick_s: float | None = None

    def heard(self, rank: int, path: int, now_s: float) -> None:
        """A sign of life came."""
        self._heard_s[rank] = now_s
        self._path_heard_s[rank, path] = max(now_s, self._path_heard_s.get((rank, path), now_s))

    def allow(self, rank: int, path: int, until_s: float) -> None:
        """Expect nothing over a path before this time."""
        self._path_heard_s[rank, path] = until_s

    def forget(self, rank: int) -> None:
        """Expect nothing from a peer any more."""
        self._heard_s.pop(rank, None)
        for key in [key for key in self._path_heard_s if key[0] == rank]:
            del self._path_heard_s[key]

    def judge(self, now_s: float) -> list[SilentPeer | SilentPath]:
        """Who is silent; to be called often, each time after all that has come was read."""
        self._excuse_own_stall(now_s)
        verdicts: list[SilentPeer | SilentPath] = []
        for rank, heard_s in list(self._heard_s.items()):
            if now_s - heard_s > self._peer_limit_s:
                self.forget(rank)
                verdicts.append(SilentPeer(rank, now_s - heard_s))
        for (rank, path), heard_s in list(self._path_heard_s.items()):
            elsewhere_s = self._heard_s.get(rank, heard_s)
            is_late = now_s - heard_s > self._path_limit_s
            if is_late and elsewhere_s - heard_s > self._path_limit_s / 2:
                del self._path_heard_s[rank, path]
                verdicts.append(SilentPath(rank, path))
        return verdicts

    def _excuse_own_stall(self, now_s: float) -> None:
        """Time in which we did not listen does not count against those we did not hear."""
        if self._last_tick_s is not None and (gap_s := now_s - self._last_tick_s) > OWN_STALL_S:
            for rank, heard_s in self._heard_s.items():
                self._heard_s[rank] = min(now_s, heard_s + gap_s)
            for key, heard_s in self._path_heard_s.items():
                self._path_heard_s[key] = max(heard_s, min(now_s, heard_s + gap_s))
        self._last_tick_s = now_s
