"""One worker's part in training without a master: its rule, its links, its speed."""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from launcher.worker.exchange.decentralized.batching import Speed
from launcher.worker.exchange.decentralized.budget import StepClock
from launcher.worker.exchange.decentralized.dlion import Dlion
from launcher.worker.exchange.decentralized.figures import Figures
from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.message import Kind, Message, Outgoing, Standing
from launcher.worker.exchange.decentralized.network import Network, OpenNetwork
from launcher.worker.exchange.decentralized.rule import (
    Deferred,
    NewRule,
    Replica,
    Rule,
    Step,
)
from launcher.worker.exchange.decentralized.sparse import Span, Vector, is_finite

CONNECT_S = 120.0  # until the slowest worker has made its model
GONE_S = 5.0  # without a link, until a peer counts as lost
TICK_S = 0.5  # between two looks for peers that are gone, while a rule waits
FIRST = 0  # the rank that keeps the model
SETTLE_S = 60.0  # for the best worker's weights when training ends
COPY_S = 30.0  # for a better worker's weights that a checkpoint is to hold
N_COMPARED = 64  # weights, to tell whether workers begin alike
N_GENERATIONS = 1 << 16  # of models, as messages count them
DIVERGED = (
    "the gradient of step %d on worker %d isn't finite, and is left out, as are others like it. "
    "If the loss stays nan, training has diverged: lower the learning rate, or clip gradients"
)

_log = logging.getLogger(__name__)


class Training:
    """Exchanges one model's gradients with whoever is there.

    Args:
        rank: of this worker.
        n_workers: that there should be.
        open_network: makes the links.
        new_rule: makes this worker's rule.
        clock: in seconds.
        connect_s: how long to wait for all peers when a model begins to train; those that do not
            come count as lost until they do.
    """

    def __init__(
        self,
        rank: int,
        n_workers: int,
        open_network: OpenNetwork,
        new_rule: NewRule = Dlion,
        *,
        clock: Callable[[], float] = time.monotonic,
        connect_s: float = CONNECT_S,
    ) -> None:
        self.rank = rank
        self._peers = [peer for peer in range(n_workers) if peer != rank]
        self._open_network, self._make_rule = open_network, new_rule
        self._clock, self._connect_s = clock, connect_s
        self._changed = threading.Condition()
        self._network: Network | None = None
        self._layout: Layout | None = None
        self._model: Hashable = None
        self._generation = 0
        self._rule: Rule | None = None
        self._sample = np.zeros(0, np.float32)
        self._greetings: dict[int, Message] = {}
        self._down_since_s: dict[int, float] = {}
        self._lost: set[int] = set()
        self._speed, self._steps = Speed(), StepClock()
        self._resting: Replica | None = None
        self._copy_by_s: float | None = None
        self._has_diverged = False
        self.is_told_to_stop = self._has_told_to_stop = False

    def open(self, sizes: Sequence[int], replica: Replica, model: Hashable = None) -> None:
        """Begins to exchange a model; blocks until the peers are there, or for `connect_s`.

        Peers that were lost while the model before was trained are waited for only as long as one
        takes to answer that has gone on to this one; so are all, by one that joins.

        Args:
            sizes: of its variables, in entries.
            replica: the model.
            model: names it; nothing happens where it is the one that is exchanged already.
        """
        if self._layout is not None and model == self._model:
            return
        self.close()
        self._model, self._generation = model, (self._generation + 1) % N_GENERATIONS
        weights, layout = replica.read(), Layout(sizes)
        with self._changed:
            self._give_up_the_gone()
            all_peers, living = set(self._peers), set(self._peers) - self._lost
            self._greetings.clear()
            self._down_since_s.clear()
            self._lost.clear()
            self._rule = None
            self._layout = layout
            self._sample = weights[:: max(1, layout.size // N_COMPARED)].copy()
        network = self._open_network(layout.size, self, self._generation)
        with self._changed:
            self._network = network
            for peer in network.up():
                self._greet(peer)
            wait_for, soon_s = self._changed.wait_for, min(GONE_S, self._connect_s)
            wait_for(lambda: self._have_greeted(all_peers), soon_s)
            wait_for(lambda: self._is_under_way or self._have_greeted(living), self._connect_s)
            self._rule = self._new_rule(layout)
            self._steps.tick(self._clock())

    @property
    def _is_under_way(self) -> bool:
        """Whether a peer is training already, so that this worker joins, and waits for no more."""
        return any(greeting.standing.step > 0 for greeting in self._greetings.values())

    def _have_greeted(self, peers: set[int]) -> bool:
        """Whether they have, or need not, since training is to stop."""
        is_ending = self._has_told_to_stop or self.is_told_to_stop
        return is_ending or peers <= self._greetings.keys()

    def _new_rule(self, layout: Layout) -> Rule:
        """Of those that are there; one that begins with other weights, or later, is new."""
        is_new = self._is_under_way or any(
            peer < self.rank and not np.array_equal(greeting.part.values, self._sample)
            for peer, greeting in self._greetings.items()
        )
        rule = self._make_rule(self.rank, sorted(self._greetings), layout, is_new=is_new)
        for peer in self._peers:
            if peer not in self._greetings:
                _log.warning("worker %d is not there; training begins without it", peer)
                self._lost.add(peer)
        return rule

    def exchange(
        self, replica: Replica, gradient: Vector, n_examples: int, loss: float | None, busy_s: float
    ) -> Vector:
        """What the optimizer is to apply: own and others' gradients; sends what there is to send.

        Args:
            replica: the weights that the gradient was computed at; may be changed.
            gradient: mean over this worker's examples, shape `(d,)`. One that is not finite is
                neither sent nor applied, so that it cannot spoil a replica for good.
            n_examples: of this step.
            loss: mean over them; None if not known.
            busy_s: how long computing took.
        """
        with self._changed:
            rule, network = self._rule, self._network
            if rule is None or network is None:
                raise ValueError("open() comes first")
            self._resting = None
            self._speed.note(n_examples, busy_s)
            self._steps.tick(self._clock())
            self._give_up_the_gone()
            applied = Deferred(replica, len(gradient))
            was_new = _is_new(rule)
            while not rule.begin(applied):
                self._changed.wait(TICK_S)
                self._give_up_the_gone()
            if was_new and not _is_new(rule):
                return applied.gradient  # nothing: the gradient was of other weights
            if not is_finite(gradient):
                self._warn_of_divergence(rule.roster.own.step)
                gradient, loss = np.zeros_like(gradient), float("inf")
            speed = self._speed.examples_per_s
            step = Step(gradient, n_examples, loss, speed)
            outgoing = rule.step(applied, step, network.capacity_bytes(self._steps.step_s))
        for each in outgoing:
            network.send(each)
        return applied.gradient

    def _warn_of_divergence(self, step: int) -> None:
        if not self._has_diverged:
            _log.warning(DIVERGED, step, self.rank)
        self._has_diverged = True

    def settle(self, replica: Replica, timeout_s: float = SETTLE_S) -> None:
        """Gives the first worker, which keeps the model, the best one's weights; blocks it so long.

        From now until the next `exchange`, this worker answers those who ask for its weights
        at once. It is the first one alone that asks, so that no two exchange theirs.

        Args:
            replica: the model.
            timeout_s: after which it stays as it is.
        """
        with self._changed:
            rule, network = self._rule, self._network
            if not isinstance(rule, Dlion) or network is None:
                return
            self._resting = replica
            outgoing = rule.answers(replica)
            if self.rank == FIRST:
                outgoing += self._asked_best(rule, network.capacity_bytes(None))
        for each in outgoing:
            network.send(each)
        if self.rank != FIRST:
            return
        with self._changed:
            if self._changed.wait_for(lambda: not rule.is_asking, timeout_s):
                rule.take_over_pulled(replica)
            else:
                _log.warning("the best worker's weights did not come within %g s", timeout_s)

    def _asked_best(self, rule: Dlion, capacity_bytes: dict[int, int]) -> list[Outgoing]:
        return rule.ask_best(capacity_bytes)

    @property
    def is_at_rest(self) -> bool:
        """Whether it has settled, and made no step since."""
        with self._changed:
            return self._resting is not None

    def ask_copy(self) -> None:
        """Asks a better worker for its weights, for a checkpoint; returns at once."""
        with self._changed:
            rule, network = self._rule, self._network
            if not isinstance(rule, Dlion) or network is None or self._copy_by_s is not None:
                return
            outgoing = rule.ask_copy(network.capacity_bytes(self._steps.step_s))
            self._copy_by_s = self._clock() + COPY_S if outgoing else None
        for each in outgoing:
            network.send(each)

    @property
    def awaits_copy(self) -> bool:
        """Whether a better worker's weights are on their way; not for ever."""
        with self._changed:
            rule = self._rule
            if self._copy_by_s is None or not isinstance(rule, Dlion):
                return False
            is_over = rule.copy is not None or not rule.is_asking
            return not is_over and self._clock() < self._copy_by_s

    def take_copy(self, timeout_s: float) -> Vector | None:
        """A better worker's weights; None where this worker's own are as good, or none come.

        Args:
            timeout_s: to wait for them, if they were not asked for before, or have not come.
        """
        self.ask_copy()
        with self._changed:
            self._changed.wait_for(lambda: not self.awaits_copy, timeout_s)
            self._copy_by_s = None
            if not isinstance(self._rule, Dlion):
                return None
            copy, self._rule.copy = self._rule.copy, None
            return copy

    def steps_by_rank(self) -> list[int]:
        """How many steps each worker has taken, as far as known."""
        with self._changed:
            if self._rule is None:
                return [0] * (1 + len(self._peers))
            roster = self._rule.roster
            steps = {peer: roster.knows(peer) for peer in self._peers}
            return [n for _, n in sorted({**steps, self.rank: roster.own.step}.items())]

    def linger(self) -> None:
        """Blocks until the first worker has parted, who may still want this one's weights."""
        with self._changed:
            network = self._network
            if network is not None and self._rule is not None and self.rank > 0:
                self._changed.wait_for(lambda: FIRST not in network.up())

    def speeds(self) -> dict[int, float | None]:
        """Examples per second of all workers that live, as far as known."""
        with self._changed:
            if self._rule is None:
                return {self.rank: None, **dict.fromkeys(self._peers)}
            speeds = self._rule.roster.speeds()
            return {**speeds, self.rank: self._speed.examples_per_s}

    def figures(self) -> Figures | None:
        """How the exchange went; None where there was none."""
        with self._changed:
            rule = self._rule
            if not isinstance(rule, Dlion):
                return None
            staleness, loss = rule.staleness, rule.roster.own.loss
            return Figures(
                rule.roster.own.step,
                rule.n_transfers,
                staleness.n_dropped,
                staleness.mean,
                staleness.oldest,
                None if loss is None or not np.isfinite(loss) else loss,
                rule.n_percent_by_peer(),
            )

    def sent_bytes(self) -> dict[int, int]:
        """What was sent to each peer; nothing where there are no links."""
        with self._changed:
            return {} if self._network is None else self._network.sent_bytes()

    def stop_all(self) -> None:
        """Tells all peers to stop, too."""
        with self._changed:
            network, self._has_told_to_stop = self._network, True
            self._changed.notify_all()
        if network is not None:
            network.send_to_all(Message(Kind.STOP, Standing()))

    def close(self) -> None:
        """Parts from the peers."""
        with self._changed:
            network, self._network, self._layout = self._network, None, None
            self._resting = None
        if network is not None:
            network.close()

    # ---- what links tell

    def hear(self, source: int, message: Message) -> None:
        """A message has come."""
        outgoing: list[Outgoing] = []
        with self._changed:
            network = self._network
            if message.kind is Kind.STOP:
                self.is_told_to_stop = True
            elif message.kind is Kind.GREETING:
                self._hear_greeting(source, message)
            elif self._rule is not None:
                self._rule.take(source, message)
                outgoing = self._answers_at_rest()
            self._changed.notify_all()
        if network is not None:
            for each in outgoing:
                network.send(each)

    def _answers_at_rest(self) -> list[Outgoing]:
        """For those who ask after this worker's last step."""
        if self._resting is None or not isinstance(self._rule, Dlion):
            return []
        return self._rule.answers(self._resting)

    def _hear_greeting(self, source: int, greeting: Message) -> None:
        self._down_since_s.pop(source, None)  # a link of another model would carry no greeting
        self._greetings.setdefault(source, greeting)  # what it began with, not where it is now
        rule = self._rule
        if rule is None:
            return
        is_another = rule.roster.knows(source) > greeting.standing.step
        if source in self._lost or is_another:
            _log.info("worker %d is there again", source)
            self._lost.discard(source)
            rule.joined(source)

    def link_is_up(self, peer: int) -> None:
        """Messages can be sent to a peer."""
        with self._changed:
            self._greet(peer)

    def link_is_down(self, peer: int) -> None:
        """What was on its way to and from a peer is lost, and made up for by a transfer."""
        with self._changed:
            network = self._network
            if network is None or peer not in network.up():  # which may have come again by now
                self._down_since_s.setdefault(peer, self._clock())
            if isinstance(self._rule, Dlion):
                self._rule.interrupted(peer)
            self._changed.notify_all()

    def _greet(self, peer: int) -> None:
        if self._network is None:
            return  # open() greets those that are there already
        step = self._rule.roster.own.step if self._rule is not None else 0
        greeting = Message(Kind.GREETING, Standing(step), Span(0, self._sample))
        self._network.send(Outgoing(peer, greeting))

    def _give_up_the_gone(self) -> None:
        now_s = self._clock()
        for peer, since_s in list(self._down_since_s.items()):
            if now_s - since_s > GONE_S and self._rule is not None:
                del self._down_since_s[peer]
                if peer not in self._lost:
                    _log.info("worker %d is gone; training goes on without it", peer)
                    self._lost.add(peer)
                    self._rule.lost(peer)


def _is_new(rule: Rule) -> bool:
    return isinstance(rule, Dlion) and rule.is_new
