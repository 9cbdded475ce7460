"""Ako: partial gradients, round robin (Watcharapichat et al., SoCC 2016; the DLion group's code).

The gradient is cut into P partitions. At step t partition t mod P of the sum of the last P
gradients goes to all, so that each gradient reaches everybody, spread over P steps. Receivers add
what has arrived to their own gradient: a sum, not a mean.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.message import Kind, Message, Outgoing
from launcher.worker.exchange.decentralized.roster import Roster
from launcher.worker.exchange.decentralized.rule import Replica, Step
from launcher.worker.exchange.decentralized.sparse import Span


class Ako:
    """One worker's side; never waits.

    Args:
        rank: of this worker.
        peers: ranks of the others.
        layout: of the model's variables.
        n_partitions: P, 1 or more.
    """

    def __init__(
        self, rank: int, peers: Sequence[int], layout: Layout, n_partitions: int = 4
    ) -> None:
        self.roster = Roster(rank, peers)
        ends = np.linspace(0, layout.size, n_partitions + 1).astype(int)
        self._partitions = [slice(*pair) for pair in itertools.pairwise(ends)]
        self._unsent = np.zeros(layout.size, np.float32)
        self._arrived = np.zeros(layout.size, np.float32)

    def begin(self, replica: Replica) -> bool:
        """Always."""
        del replica
        return True

    def take(self, source: int, message: Message) -> None:
        """A partition of a peer's gradients has arrived."""
        if source not in self.roster.by_peer:
            return
        self.roster.heard(source, message.standing)
        if message.kind is Kind.GRADIENT:
            message.part.add_to(self._arrived)

    def step(
        self, replica: Replica, step: Step, capacity_bytes: Mapping[int, int]
    ) -> list[Outgoing]:
        """Applies the sum of the own gradient and what has arrived; one partition goes to all.

        A partition is sent every P steps, so what waits in it is the sum of the last P gradients.
        """
        del capacity_bytes
        span = self._partitions[self.roster.own.step % len(self._partitions)]
        self._unsent += step.gradient
        self._arrived += step.gradient
        replica.apply(self._arrived)
        self._arrived = np.zeros_like(self._arrived)
        self.roster.stepped(step)
        part = Span(span.start, self._unsent[span].copy())
        self._unsent[span] = 0
        return [
            Outgoing(peer, Message(Kind.GRADIENT, self.roster.told(peer), part))
            for peer in self.roster.by_peer
        ]

    def lost(self, rank: int) -> None:
        """A peer is gone."""
        self.roster.lost(rank)

    def joined(self, rank: int) -> None:
        """A peer is there."""
        self.roster.joined(rank)


def n_partitions_for(size: int, n_peers: int, capacity_bytes: int) -> int:
    """P so that what a worker sends per step fits what it can send, whatever their number.

    Args:
        size: of the model's vector, in entries.
        n_peers: that each partition is sent to.
        capacity_bytes: that a worker can send per step, to all peers together.
    """
    whole_bytes = 4 * size * n_peers
    return max(1, min(size, -(-whole_bytes // max(1, capacity_bytes))))
