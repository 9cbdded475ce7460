"""Hop: weights travel along a graph, with bounded staleness and backup workers.

After Luo et al. (ASPLOS 2019). At step k a worker sends its weights to its neighbours, averages
its own with the newest weights that it has of each neighbour, and applies its gradient. It waits
until all neighbours but `n_backup` have sent weights of step k − `staleness` or newer, and none is
more than `max_gap` steps behind (its token queues). A worker that is far behind skips steps: it
goes on at the step of its neighbours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.message import Kind, Message, Outgoing
from launcher.worker.exchange.decentralized.roster import Roster
from launcher.worker.exchange.decentralized.rule import Replica, Step
from launcher.worker.exchange.decentralized.sparse import Span, Vector


@dataclass(frozen=True, slots=True)
class HopOptions:
    """How far workers may part.

    Attributes:
        staleness: steps that a neighbour's newest weights may be behind.
        n_backup: neighbours that need not have sent.
        max_gap: steps that a neighbour may be behind, as far as this worker has heard.
        max_skip: steps that a worker may pass over when its neighbours are ahead; 0 for none.
    """

    staleness: int = 5
    n_backup: int = 1
    max_gap: int = 20
    max_skip: int = 10


class Hop:
    """One worker's side.

    Args:
        rank: of this worker.
        peers: ranks of its neighbours in the graph.
        layout: of the model's variables.
        options: how far workers may part.
    """

    def __init__(
        self, rank: int, peers: Sequence[int], layout: Layout, options: HopOptions | None = None
    ) -> None:
        del layout
        self._options = options or HopOptions()
        self.roster = Roster(rank, peers)
        self._neighbours = frozenset(peers)
        self._newest: dict[int, Vector] = {}

    def begin(self, replica: Replica) -> bool:
        """Whether enough neighbours have sent weights that are new enough."""
        del replica
        oldest = self.roster.own.step - self._options.staleness
        steps = [standing.step for standing in self.roster.by_peer.values()]
        gap = self.roster.own.step - min(steps, default=self.roster.own.step)
        n_behind = sum(step < oldest for step in steps)
        return n_behind <= self._options.n_backup and gap <= self._options.max_gap

    def take(self, source: int, message: Message) -> None:
        """A neighbour's weights have arrived; older ones of it are forgotten."""
        if source not in self.roster.by_peer or message.kind is not Kind.WEIGHTS:
            return
        self.roster.heard(source, message.standing)
        self._newest[source] = message.part.values

    def step(
        self, replica: Replica, step: Step, capacity_bytes: Mapping[int, int]
    ) -> list[Outgoing]:
        """Sends the weights; averages them with those that are new enough, applies the gradient."""
        del capacity_bytes
        oldest = self.roster.own.step - self._options.staleness
        weights = replica.read()
        fresh = [w for p, w in self._newest.items() if self.roster.by_peer[p].step >= oldest]
        replica.write(np.asarray(np.mean([weights, *fresh], axis=0), np.float32))
        replica.apply(step.gradient)
        self.roster.stepped(step)
        self._skip()
        return [
            Outgoing(peer, Message(Kind.WEIGHTS, self.roster.told(peer), Span(0, weights)))
            for peer in self.roster.by_peer
        ]

    def _skip(self) -> None:
        """Goes on at the step of the slowest neighbour, when that one is far ahead."""
        slowest = min((s.step for s in self.roster.by_peer.values()), default=0)
        behind = slowest - self.roster.own.step
        if self._options.max_skip and behind > self._options.staleness:
            self.roster.skip(min(behind, self._options.max_skip))

    def lost(self, rank: int) -> None:
        """A neighbour is gone."""
        self.roster.lost(rank)
        self._newest.pop(rank, None)

    def joined(self, rank: int) -> None:
        """A worker is there; others than neighbours are none of our business."""
        self.lost(rank)
        if rank in self._neighbours:
            self.roster.joined(rank)


def ring_neighbours(rank: int, n_workers: int) -> tuple[int, ...]:
    """The two neighbours in a ring, Hop's plainest graph; fewer where there are fewer workers."""
    return tuple(sorted({(rank - 1) % n_workers, (rank + 1) % n_workers} - {rank}))
