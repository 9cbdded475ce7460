"""Training without a master where each site has data of its own: epochs differ in length.

Every worker passes over its own site's data as often as the script says. The first worker, which
keeps the model, waits at the end of a `fit` for those that still train, and takes over the weights
of the best of them: its own are as old as its last step.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from launcher.worker.exchange.decentralized.dlion import Dlion
from launcher.worker.exchange.decentralized.message import Kind, Message, Outgoing, Standing
from launcher.worker.exchange.decentralized.rule import Replica
from launcher.worker.exchange.decentralized.sparse import Vector
from launcher.worker.exchange.decentralized.training import FIRST, SETTLE_S, TICK_S, Training

TELL_EVERY: Final = 10  # steps; so many are trained again at most when a run goes on
SILENT_S: Final = 600.0  # a worker that says nothing for so long is not waited for
STOPPED_S: Final = 3.0  # for the best one's weights when training is to stop


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker is in its site's data."""

    epoch: int
    step: int


class OwnDataTraining(Training):
    """One worker's part, where workers end their epochs at different steps.

    See `Training` for the arguments.
    """

    n_ended = 0
    """How many `fit`s this worker has ended."""
    place = Place(0, 0)
    """Of the next step."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type] # as they are
        self._n_ended_by_peer: dict[int, int] = {}
        self._place_by_peer: dict[int, Place] = {}
        self._heard_at_s: dict[int, float] = {}
        self._late: frozenset[int] = frozenset()

    def go_to(self, epoch: int, step: int) -> None:
        """An epoch begins; in its middle where a run goes on."""
        self.place = Place(epoch, step)
        self._tell_place()

    def places(self) -> dict[int, Place]:
        """Where each worker is, as far as known."""
        with self._changed:
            return {**self._place_by_peer, self.rank: self.place}

    def exchange(
        self, replica: Replica, gradient: Vector, n_examples: int, loss: float | None, busy_s: float
    ) -> Vector:
        """See `Training`."""
        total = super().exchange(replica, gradient, n_examples, loss, busy_s)
        self.place = Place(self.place.epoch, self.place.step + 1)
        if self.place.step % TELL_EVERY == 0:
            self._tell_place()
        return total

    def _tell_place(self) -> None:
        with self._changed:
            network = self._network
        if self.rank != FIRST and network is not None:
            told = Standing(self.place.step, self.place.epoch)
            network.send(Outgoing(FIRST, Message(Kind.PLACE, told)))

    def open(self, sizes: Sequence[int], replica: Replica, model: Hashable = None) -> None:
        """See `Training`."""
        super().open(sizes, replica, model)
        with self._changed:
            now_s = self._clock()
            self._heard_at_s = {peer: self._heard_at_s.get(peer, now_s) for peer in self._peers}

    def settle(self, replica: Replica, timeout_s: float = SETTLE_S) -> None:
        """See `Training`; the first worker waits for all that still train this `fit`."""
        with self._changed:
            self.n_ended += 1
            self._late = frozenset()
            network, rule = self._network, self._rule
            if network is None or not isinstance(rule, Dlion):
                return
            self._resting = replica
            outgoing = rule.answers(replica)
        network.send_to_all(self._ended())
        for each in outgoing:
            network.send(each)
        if self.rank == FIRST:
            self._await_others()
        is_ending = self.is_told_to_stop or self._has_told_to_stop
        super().settle(replica, min(timeout_s, STOPPED_S) if is_ending else timeout_s)

    def _await_others(self) -> None:
        """Until all that live have ended this `fit` too, or training is to stop."""
        with self._changed:
            behind = self._behind()
            while self._behind() and not (self.is_told_to_stop or self._has_told_to_stop):
                self._changed.wait(TICK_S)
                self._give_up_the_gone()
            self._late = frozenset(peer for peer in behind if not self._is_silent(peer))

    def _behind(self) -> set[int]:
        """The peers that still train."""
        return {
            peer
            for peer in set(self._peers) - self._lost
            if self._n_ended_by_peer.get(peer, 0) < self.n_ended and not self._is_silent(peer)
        }

    def _is_silent(self, peer: int) -> bool:
        now_s = self._clock()
        return now_s - self._heard_at_s.get(peer, now_s) >= SILENT_S

    def _asked_best(self, rule: Dlion, capacity_bytes: dict[int, int]) -> list[Outgoing]:
        """Of those that trained on when this worker had ended, if there were any."""
        living = self._late - self._lost
        return rule.ask_best(capacity_bytes, living or None)

    def hear(self, source: int, message: Message) -> None:
        """See `Training`."""
        with self._changed:
            self._heard_at_s[source] = self._clock()
            told = message.standing
            if message.kind is Kind.ENDED:
                self._n_ended_by_peer[source] = told.step
                self._changed.notify_all()
            elif message.kind is Kind.PLACE and self._is_in_this_fit(source):
                self._place_by_peer[source] = Place(told.heard, told.step)
        if message.kind not in (Kind.ENDED, Kind.PLACE):
            super().hear(source, message)

    def _is_in_this_fit(self, peer: int) -> bool:
        return self._n_ended_by_peer.get(peer, 0) <= self.n_ended

    def link_is_up(self, peer: int) -> None:
        """See `Training`; what was told before may not have got there."""
        super().link_is_up(peer)
        with self._changed:
            network = self._network
        if network is not None and self.n_ended:
            network.send(Outgoing(peer, self._ended()))

    def _ended(self) -> Message:
        return Message(Kind.ENDED, Standing(self.n_ended))
