"""Which peers there are, and how far each of them is."""

import math
from collections.abc import Iterable

from launcher.worker.exchange.decentralized.message import Standing
from launcher.worker.exchange.decentralized.rule import Step

LOSS_MEMORY = 0.95  # of the mean loss, per step


class Roster:
    """This worker's own standing, and what it has heard of the others'.

    Args:
        rank: of this worker.
        peers: ranks of the others.
    """

    def __init__(self, rank: int, peers: Iterable[int]) -> None:
        self.rank, self.own = rank, Standing()
        self.by_peer = {peer: Standing() for peer in peers}
        self._known_by_peer: dict[int, int] = {}
        self._known_next: dict[int, int] = {}

    def stepped(self, step: Step) -> None:
        """This worker has taken one more step, at weights that knew what it had heard before."""
        self._known_by_peer, self._known_next = self._known_next, self._steps()
        loss = _mean_loss(self.own.loss, step.loss)
        self.own = Standing(self.own.step + 1, 0, step.n_examples, step.examples_per_s, loss)

    def heard(self, peer: int, standing: Standing) -> None:
        """A peer has told how far it is."""
        if peer in self.by_peer:
            self.by_peer[peer] = standing

    def go_to(self, step: int) -> None:
        """This worker goes on where another one is, whose weights it has taken."""
        own = self.own
        self.own = Standing(step, 0, own.n_examples, own.examples_per_s, None)

    def skip(self, n_steps: int) -> None:
        """This worker passes over steps."""
        own = self.own
        self.own = Standing(own.step + n_steps, 0, own.n_examples, own.examples_per_s, own.loss)

    def told(self, peer: int) -> Standing:
        """What to tell a peer of this worker."""
        own, heard = self.own, self._known_by_peer.get(peer, 0)
        return Standing(own.step, heard, own.n_examples, own.examples_per_s, own.loss)

    def knows(self, peer: int) -> int:
        """Steps that a peer has taken, as far as known; 0 where it is not there."""
        return self.by_peer[peer].step if peer in self.by_peer else 0

    def weight(self, n_own: int) -> float:
        """This worker's part of one update: its examples of all examples.

        Peers that have said nothing yet count as this worker.

        Args:
            n_own: examples of this worker's step.
        """
        others = sum(standing.n_examples or n_own for standing in self.by_peer.values())
        return n_own / (n_own + others)

    def speeds(self) -> dict[int, float | None]:
        """Examples per second of all workers that live."""
        speeds = {peer: standing.examples_per_s for peer, standing in self.by_peer.items()}
        return {self.rank: self.own.examples_per_s, **speeds}

    def _steps(self) -> dict[int, int]:
        return {peer: standing.step for peer, standing in self.by_peer.items()}

    def lost(self, peer: int) -> None:
        """A peer is gone."""
        self.by_peer.pop(peer, None)

    def joined(self, peer: int) -> None:
        """A peer is there."""
        self.by_peer[peer] = Standing()


def _mean_loss(before: float | None, loss: float | None) -> float | None:
    if loss is None:
        return before
    if before is None or not math.isfinite(before):
        return loss
    return LOSS_MEMORY * before + (1 - LOSS_MEMORY) * loss
