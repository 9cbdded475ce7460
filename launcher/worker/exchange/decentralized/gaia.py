"""Gaia: only significant changes of weights travel (Hsieh et al., NSDI 2017, and its code).

Each worker applies its own gradient at once and accumulates the change u of every weight w since
it was last sent, as far as it is its own doing. Where |u| / |w| exceeds a threshold, u is sent to
all and set to zero. A worker whose clock is more than `max_gap` steps ahead of the slowest peer's
waits (the mirror clock).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.message import Kind, Message, Outgoing
from launcher.worker.exchange.decentralized.roster import Roster
from launcher.worker.exchange.decentralized.rule import Replica, Step
from launcher.worker.exchange.decentralized.sparse import Entries, Vector, size_bytes

ADJUSTMENT = 0.005  # of the threshold, per step
ABOVE, BELOW = 1.1, 0.9  # of what the link carries


@dataclass(frozen=True, slots=True)
class GaiaOptions:
    """How the filter works.

    Attributes:
        threshold: least |u| / |w| that is significant.
        adjusted: whether the threshold follows what the thinnest link carries.
        max_gap: steps that a worker may be ahead of what it has heard of the slowest peer.
    """

    threshold: float = 0.01
    adjusted: bool = False
    max_gap: int = 10


class Gaia:
    """One worker's side.

    Args:
        rank: of this worker.
        peers: ranks of the others.
        layout: of the model's variables.
        options: how it works.
    """

    def __init__(
        self, rank: int, peers: Sequence[int], layout: Layout, options: GaiaOptions | None = None
    ) -> None:
        self._options, self._size = options or GaiaOptions(), layout.size
        self.threshold = self._options.threshold
        self.roster = Roster(rank, peers)
        self._update = np.zeros(layout.size, np.float32)
        self._arrived = np.zeros(layout.size, np.float32)
        self._before: Vector | None = None  # weights before the last gradient was applied

    def begin(self, replica: Replica) -> bool:
        """Whether no peer is too far behind, as far as this worker has heard."""
        del replica
        slowest = min((s.step for s in self.roster.by_peer.values()), default=None)
        return slowest is None or self.roster.own.step - slowest <= self._options.max_gap

    def take(self, source: int, message: Message) -> None:
        """A peer's significant changes have arrived."""
        if source not in self.roster.by_peer:
            return
        self.roster.heard(source, message.standing)
        if message.kind is Kind.UPDATE:
            message.part.add_to(self._arrived)

    def step(
        self, replica: Replica, step: Step, capacity_bytes: Mapping[int, int]
    ) -> list[Outgoing]:
        """Sends the significant changes up to now to all; applies what arrived and the gradient."""
        weights = replica.read()
        if self._before is not None:
            self._update += weights - self._before
        weights += self._arrived
        self._arrived[:] = 0
        replica.write(weights)
        self._before = weights
        self.roster.stepped(step)
        significant = np.flatnonzero(np.abs(self._update) > self.threshold * np.abs(weights))
        part = Entries(significant, self._update[significant])
        self._update[significant] = 0
        self._adjust(size_bytes(len(significant), self._size), capacity_bytes)
        replica.apply(step.gradient)
        return [
            Outgoing(peer, Message(Kind.UPDATE, self.roster.told(peer), part))
            for peer in self.roster.by_peer
        ]

    def _adjust(self, sent_bytes: int, capacity_bytes: Mapping[int, int]) -> None:
        limit = min(capacity_bytes.values(), default=0)
        if not self._options.adjusted:
            return
        if sent_bytes > ABOVE * limit:
            self.threshold += ADJUSTMENT
        elif sent_bytes < BELOW * limit:
            self.threshold = max(0.0, self.threshold - ADJUSTMENT)

    def lost(self, rank: int) -> None:
        """A peer is gone."""
        self.roster.lost(rank)

    def joined(self, rank: int) -> None:
        """A peer is there."""
        self.roster.joined(rank)
