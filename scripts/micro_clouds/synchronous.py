"""Exact training: every step waits for everybody."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from launcher.worker.exchange.decentralized.message import Kind, Message, Outgoing
from launcher.worker.exchange.decentralized.roster import Roster
from launcher.worker.exchange.decentralized.rule import Replica, Step
from launcher.worker.exchange.decentralized.sparse import Span


class Synchronous:
    """One worker's side of a step over all workers' examples, as `allreduce` and `direct` do it.

    Args:
        rank: of this worker.
        peers: ranks of the others.
    """

    def __init__(self, rank: int, peers: Sequence[int]) -> None:
        self.roster = Roster(rank, peers)
        self._arrived: dict[int, dict[int, Message]] = defaultdict(dict)
        self._own: Step | None = None

    def begin(self, replica: Replica) -> bool:
        """Applies the mean of the last step, as soon as all have sent theirs."""
        if self._own is None:
            return True
        arrived = self._arrived[self.roster.own.step]
        if len(arrived) < len(self.roster.by_peer):
            return False
        total = self._own.gradient * self._own.n_examples
        n_examples = self._own.n_examples
        for message in arrived.values():
            total += message.part.values * message.standing.n_examples
            n_examples += message.standing.n_examples
        replica.apply(total / np.float32(n_examples))
        del self._arrived[self.roster.own.step]
        self._own = None
        return True

    def take(self, source: int, message: Message) -> None:
        """A peer's gradient of a step has arrived."""
        self.roster.heard(source, message.standing)
        self._arrived[message.standing.step][source] = message

    def step(
        self, replica: Replica, step: Step, capacity_bytes: Mapping[int, int]
    ) -> list[Outgoing]:
        """Sends the whole gradient to all."""
        del replica, capacity_bytes
        self._own = step
        self.roster.stepped(step)
        part = Span(0, step.gradient)
        return [
            Outgoing(peer, Message(Kind.GRADIENT, self.roster.told(peer), part))
            for peer in self.roster.by_peer
        ]

    def lost(self, rank: int) -> None:
        """Exact training does not go on without a worker."""
        raise ValueError(f"worker {rank} is lost")

    def joined(self, rank: int) -> None:
        """Nor with one more."""
        raise ValueError(f"worker {rank} is new")
