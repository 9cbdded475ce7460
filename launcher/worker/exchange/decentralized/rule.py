"""What all rules of exchange have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.message import Message, Outgoing
from launcher.worker.exchange.decentralized.sparse import Vector

if TYPE_CHECKING:
    from launcher.worker.exchange.decentralized.roster import Roster


class Replica(Protocol):
    """A worker's own copy of the model."""

    def apply(self, gradient: Vector) -> None:
        """Lets the optimizer take a step, shape `(d,)`."""
        ...

    def read(self) -> Vector:
        """A copy of the weights, shape `(d,)`."""
        ...

    def write(self, weights: Vector) -> None:
        """Sets the weights, shape `(d,)`."""
        ...


class Deferred:
    """A replica whose optimizer applies later what is noted here.

    Args:
        replica: the model.
        size: of its vector.
    """

    def __init__(self, replica: Replica, size: int) -> None:
        self._replica = replica
        self.gradient = np.zeros(size, np.float32)

    def apply(self, gradient: Vector) -> None:
        """Notes what is to be applied."""
        self.gradient = gradient

    def read(self) -> Vector:
        """A copy of the weights, shape `(d,)`."""
        return self._replica.read()

    def write(self, weights: Vector) -> None:
        """Sets the weights, shape `(d,)`."""
        self._replica.write(weights)


@dataclass(frozen=True, slots=True)
class Step:
    """What a worker has computed.

    Attributes:
        gradient: mean over its examples, shape `(d,)`.
        n_examples: of its local batch.
        loss: mean over its examples; None if not known.
        examples_per_s: its mean speed; None if not known yet.
    """

    gradient: Vector
    n_examples: int
    loss: float | None
    examples_per_s: float | None = None


class Rule(Protocol):
    """One worker's side of a way to exchange; called from one thread at a time.

    A worker calls `begin` until it says yes, computes its gradient, and calls `step`; what
    arrives meanwhile is handed to `take`, in the order in which each peer has sent it.
    """

    @property
    def roster(self) -> "Roster":
        """How far this worker and its peers are."""
        ...

    def begin(self, replica: Replica) -> bool:
        """Whether the next step may begin, or must wait for messages."""
        ...

    def step(
        self, replica: Replica, step: Step, capacity_bytes: Mapping[int, int]
    ) -> list[Outgoing]:
        """Applies what was computed and what has arrived.

        Weights are read and written first; what is applied is applied last, in one go. So the
        optimizer may be part of a graph that goes on when this returns.

        Args:
            replica: the model.
            step: what was computed at its weights.
            capacity_bytes: what the link to each peer carries before the next step.

        Returns:
            What to send, to each peer in this order.
        """
        ...

    def take(self, source: int, message: Message) -> None:
        """A message has arrived."""
        ...

    def lost(self, rank: int) -> None:
        """A peer is gone: nothing is sent to it, nothing is expected of it."""
        ...

    def joined(self, rank: int) -> None:
        """A peer is there, or there again; it starts from another worker's weights."""
        ...


class NewRule(Protocol):
    """Makes the rule of one worker."""

    def __call__(self, rank: int, peers: Sequence[int], layout: Layout, *, is_new: bool) -> Rule:
        """Makes it.

        Args:
            rank: of the worker.
            peers: ranks of the others that are there.
            layout: of the model's variables.
            is_new: whether it joins workers that are training already.
        """
        ...
