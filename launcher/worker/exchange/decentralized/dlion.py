"""The launcher's rule: each link carries what it can, the most significant gradients first.

After DLion (Hong and Chandra, HPDC 2021): Max N per link, weighted dynamic batching, direct
knowledge transfer. Of the paper only the abstract could be had; all else here is a design of its
own, see docs/decentralized.md.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.message import (
    HEADER_BYTES,
    NOTHING,
    Kind,
    Message,
    Outgoing,
)
from launcher.worker.exchange.decentralized.residual import Residual
from launcher.worker.exchange.decentralized.roster import Roster
from launcher.worker.exchange.decentralized.rule import Replica, Step
from launcher.worker.exchange.decentralized.sparse import VALUE_BYTES, Span, Vector, is_finite
from launcher.worker.exchange.decentralized.staleness import Staleness
from launcher.worker.exchange.decentralized.transfer import (
    TransferOptions,
    is_behind,
    source_of,
    source_of_all,
)

MAX_STALENESS = 64


@dataclass(frozen=True, slots=True)
class DlionOptions:
    """How the rule works.

    Attributes:
        max_staleness: of gradients that are applied, in steps of the receiver; None for no bound.
        transfer: when and how weights are pulled.
        weighted: whether updates weigh as their examples; else all workers' weigh alike.
        prioritised: whether links carry what they can; else each carries whole gradients.
    """

    max_staleness: int | None = MAX_STALENESS
    transfer: TransferOptions = field(default_factory=TransferOptions)
    weighted: bool = True
    prioritised: bool = True


class Dlion:
    """One worker's side; never waits.

    Args:
        rank: of this worker.
        peers: ranks of the others.
        layout: of the model's variables.
        options: how it works.
        is_new: whether it joins workers that are training already, and takes their weights first.
    """

    def __init__(
        self,
        rank: int,
        peers: Sequence[int],
        layout: Layout,
        options: DlionOptions | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        self._options, self._layout = options or DlionOptions(), layout
        self.roster = Roster(rank, peers)
        self.staleness = Staleness(self._options.max_staleness)
        self.n_transfers = 0
        self._residuals = {peer: self._new_residual() for peer in peers}
        self._arrived = np.zeros(layout.size, np.float32)
        self._pulled: list[tuple[bool, Message]] = []  # and whether it makes up for losses
        self._to_answer: dict[int, float] = {}  # by peer, what is left of its residual then
        self._is_copy = False
        self.copy: Vector | None = None
        """Weights that were asked for to be kept, shape `(d,)`."""
        self._asked: int | None = None
        self._is_owed = False
        self._owed: int | None = None
        self.is_new = is_new

    def begin(self, replica: Replica) -> bool:
        """Always: nobody stops this worker. A new one takes over the weights that have come."""
        if self.is_new:
            self._take_over(replica)
        return True

    def take(self, source: int, message: Message) -> None:
        """A message has arrived."""
        if source not in self.roster.by_peer:
            return
        self.roster.heard(source, message.standing)
        if message.kind is Kind.GRADIENT:
            if self.staleness.admits(self.roster.own.step, message.standing.heard):
                message.part.add_to(self._arrived)
            else:
                self._owed = source
        elif message.kind is Kind.WEIGHTS:
            self._take_weights(message)
        elif message.kind is Kind.REQUEST:
            wants_all = message.standing.step == 0
            self._to_answer[source] = 0.0 if wants_all else 1.0 - self._options.transfer.merge
        elif message.kind is Kind.COPY:
            self._to_answer.setdefault(source, 1.0)
        elif message.kind is Kind.REFUSAL:
            self._forget_asked(source)

    def _take_weights(self, message: Message) -> None:
        is_copy, self._is_copy, self._asked = self._is_copy, False, None
        if is_copy:
            self.copy = np.array(message.part.values, np.float32)
        else:
            self._pulled.append((self._is_owed, message))

    def step(
        self, replica: Replica, step: Step, capacity_bytes: Mapping[int, int]
    ) -> list[Outgoing]:
        """Applies own and others' gradients, merges weights; what to send over each link."""
        if self.is_new:
            return self._ask(source_of_all(self.roster.by_peer, capacity_bytes))
        answers = self.answers(replica)
        self._merge(replica)
        gradient = step.gradient * np.float32(self._weight(step.n_examples))
        for residual in self._residuals.values():
            residual.add(gradient)
        self.roster.stepped(step)
        busy = {answer.to for answer in answers}
        gradients = [
            outgoing
            for peer in self._residuals
            if peer not in busy
            and (outgoing := self._gradient(peer, capacity_bytes.get(peer, 0))) is not None
        ]
        gradient += self._arrived
        self._arrived[:] = 0
        replica.apply(gradient)
        return [*answers, *self._wanted(capacity_bytes), *gradients]

    def lost(self, rank: int) -> None:
        """A peer is gone; what was kept for it is forgotten."""
        self.roster.lost(rank)
        self._residuals.pop(rank, None)
        self._to_answer.pop(rank, None)
        self._forget_asked(rank)
        if self._owed == rank:
            self._owed = None

    def interrupted(self, rank: int) -> None:
        """What was on its way from and to a peer is lost; its weights make up for it."""
        self._to_answer.pop(rank, None)
        self._forget_asked(rank)
        if rank in self.roster.by_peer:
            self._owed = rank

    def _forget_asked(self, rank: int) -> None:
        if self._asked == rank:
            self._asked, self._is_copy = None, False

    def joined(self, rank: int) -> None:
        """A peer is there; it takes another worker's weights, so that nothing is owed to it."""
        self.lost(rank)
        self.roster.joined(rank)
        self._residuals[rank] = self._new_residual()

    @property
    def is_asking(self) -> bool:
        """Whether weights are on their way from a peer that is still there."""
        return self._asked is not None

    def ask_copy(self, capacity_bytes: Mapping[int, int]) -> list[Outgoing]:
        """Asks a better worker for its weights, to be kept; nothing where none is better."""
        self.copy = None
        transfer = self._options.transfer
        better = replace(transfer, behind=transfer.as_good, most_steps=None)
        source = self._source(better, capacity_bytes)
        if source is None or self._asked is not None or self.is_new:
            return []
        self._asked, self._is_copy = source, True
        return [Outgoing(source, Message(Kind.COPY, self.roster.told(source)))]

    def ask_best(
        self, capacity_bytes: Mapping[int, int], among: Collection[int] | None = None
    ) -> list[Outgoing]:
        """Asks for the weights of the worker with the least loss, unless it is this one.

        Args:
            capacity_bytes: what the link to each peer carries in a step.
            among: peers of which the best is asked even if this worker's loss is less; None
                for all, and this worker.
        """
        any_better = replace(self._options.transfer, behind=0.0, most_steps=None)
        if among is None:
            return self._ask(self._source(any_better, capacity_bytes))
        peers = {peer: each for peer, each in self.roster.by_peer.items() if peer in among}
        stale = replace(self.roster.own, loss=math.inf)
        size_bytes = VALUE_BYTES * self._layout.size
        return self._ask(source_of(any_better, stale, peers, capacity_bytes, size_bytes))

    def take_over_pulled(self, replica: Replica) -> None:
        """Goes on with the weights that have come, in place of its own."""
        for _, message in self._pulled:
            replica.write(np.array(message.part.values, np.float32))
            self.n_transfers += 1
        self._pulled.clear()

    def n_percent_by_peer(self) -> dict[int, float]:
        """N of what went last over each link."""
        return {peer: residual.n_percent for peer, residual in self._residuals.items()}

    def waiting(self, peer: int) -> Vector:
        """What a peer has not been sent yet, shape `(d,)`."""
        return self._residuals[peer].vector

    def _new_residual(self) -> Residual:
        return Residual(np.zeros(self._layout.size, np.float32), self._layout)

    def _weight(self, n_examples: int) -> float:
        if self._options.weighted:
            return self.roster.weight(n_examples)
        return 1.0 / (1 + len(self.roster.by_peer))

    def _gradient(self, peer: int, capacity_bytes: int) -> Outgoing | None:
        """What goes over one link now; what does not fit waits."""
        if capacity_bytes <= 0:
            return None
        if not self._options.prioritised:
            capacity_bytes = HEADER_BYTES + VALUE_BYTES * self._layout.size
        part = self._residuals[peer].take(capacity_bytes - HEADER_BYTES)
        told = self.roster.told(peer)
        if part is None:
            return Outgoing(peer, Message(Kind.STANDING, told))
        return Outgoing(peer, Message(Kind.GRADIENT, told, part))

    def answers(self, replica: Replica) -> list[Outgoing]:
        """The weights for those who have asked for them."""
        if not self._to_answer:
            return []
        weights = Span(0, replica.read())
        kind, part = (
            (Kind.WEIGHTS, weights) if is_finite(weights.values) else (Kind.REFUSAL, NOTHING)
        )
        answers = []
        for peer, left in self._to_answer.items():
            if kind is Kind.WEIGHTS:
                self._residuals[peer].scale(left)
            answers.append(Outgoing(peer, Message(kind, self.roster.told(peer), part)))
        self._to_answer.clear()
        return answers

    def _wanted(self, capacity_bytes: Mapping[int, int]) -> list[Outgoing]:
        """Asks for the weights that this worker wants now, if it wants any."""
        options, own = self._options.transfer, self.roster.own
        if not options.every_steps or own.step % options.every_steps:
            return []
        owed, self._owed = self._owed, None
        best = self._source(options, capacity_bytes)
        if best is None:
            return self._ask(owed, is_owed=True)
        return self._ask(best, is_owed=best == owed)

    def _source(self, options: TransferOptions, capacity_bytes: Mapping[int, int]) -> int | None:
        size_bytes = VALUE_BYTES * self._layout.size
        return source_of(options, self.roster.own, self.roster.by_peer, capacity_bytes, size_bytes)

    def _ask(self, peer: int | None, *, is_owed: bool = False) -> list[Outgoing]:
        if peer is None or self._asked is not None:
            return []
        self._asked, self._is_owed = peer, is_owed
        return [Outgoing(peer, Message(Kind.REQUEST, self.roster.told(peer)))]

    def _merge(self, replica: Replica) -> None:
        """Merges w := (1 − λ) · w + λ · w_pulled, unless this worker has caught up meanwhile.

        One that has diverged has nothing to merge, and takes over all.
        """
        transfer, loss = self._options.transfer, self.roster.own.loss
        part = transfer.merge if loss is None or math.isfinite(loss) else 1.0
        for is_owed, message in self._pulled:
            if is_owed or is_behind(transfer, self.roster.own, message.standing.loss):
                replica.write(_merged(replica.read(), message.part.values, part))
                self.n_transfers += 1
        self._pulled.clear()

    def _take_over(self, replica: Replica) -> None:
        """A new worker goes on where the peer is whose weights have come."""
        if not self._pulled:
            return
        _, message = self._pulled.pop()
        replica.write(np.array(message.part.values, np.float32))
        self.roster.go_to(message.standing.step)
        self._arrived[:] = 0
        self._pulled.clear()
        self.is_new = False
        self.n_transfers += 1


def _merged(own: Vector, pulled: Vector, part: float) -> Vector:
    """(1 − λ) · own + λ · pulled, where λ = 1 takes nothing of weights that may not be finite."""
    if part == 1.0:
        return np.array(pulled, np.float32)
    own += np.float32(part) * (pulled - own)
    return own
