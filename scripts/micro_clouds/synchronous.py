"""Exact training: every step waits for everybody."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from launcher.worker.exchange.decentralized.message import Kind, Message, Outgoing, Standing
from launcher.worker.exchange.decentralized.rule import Replica, Step
from launcher.worker.exchange.decentralized.sparse import Span


class Synchronous:
    """One worker's side of a step over all workers' examples, as `allreduce` and `direct` do it.

    Args:
        peers: ranks of the others.
    """

    def __init__(self, peers: Sequence[int]) -> None:
        self._peers, self._n_steps = tuple(peers), 0
        self._arrived: dict[int, dict[int, Message]] = defaultdict(dict)
        self._own: Step | None = None

    def begin(self, replica: Replica) -> bool:
        """Applies the mean of the last step, as soon as all have sent theirs."""
        if self._own is None:
            return True
        arrived = self._arrived[self._n_steps]
        if len(arrived) < len(self._peers):
            return False
        total = self._own.gradient * self._own.n_examples
        n_examples = self._own.n_examples
        for message in arrived.values():
            total += message.part.values * message.standing.n_examples
            n_examples += message.standing.n_examples
        replica.apply(total / np.float32(n_examples))
        del self._arrived[self._n_steps]
        self._own = None
        return True

    def take(self, source: int, message: Message) -> None:
        """A peer's gradient of a step has arrived."""
        self._arrived[message.standing.step][source] = message

    def step(
        self, replica: Replica, step: Step, capacity_bytes: Mapping[int, int]
    ) -> list[Outgoing]:
        """Sends the whole gradient to all."""
        del replica, capacity_bytes
        self._own, self._n_steps = step, self._n_steps + 1
        standing = Standing(self._n_steps, 0, step.n_examples, step.examples_per_s, step.loss)
        message = Message(Kind.GRADIENT, standing, Span(0, step.gradient))
        return [Outgoing(peer, message) for peer in self._peers]

    def lost(self, rank: int) -> None:
        """Exact training does not go on without a worker."""
        raise ValueError(f"worker {rank} is lost")

    def joined(self, rank: int) -> None:
        """Nor with one more."""
        raise ValueError(f"worker {rank} is new")
