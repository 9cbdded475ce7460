"""Workers that train for real, in simulated time."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from launcher.worker.exchange.decentralized.batching import Growth, LocalBatch, Speed
from launcher.worker.exchange.decentralized.budget import LinkBudget, StepClock
from launcher.worker.exchange.decentralized.message import HEADER_BYTES, Message, parse_body
from launcher.worker.exchange.decentralized.message import parse_header as parse
from launcher.worker.exchange.decentralized.rule import Rule, Step
from scripts.micro_clouds.perceptron import Data, Perceptron
from scripts.micro_clouds.world import Killed, Wires, World

DETECTED_S = 0.5  # until the others know that a worker is gone

NewRule = Callable[[int, Sequence[int], bool], Rule]
"""Makes a rule of a rank, its peers, and whether it is new among them."""


@dataclass(frozen=True, slots=True)
class Course:
    """How training went.

    Attributes:
        times_s: at which accuracy was taken.
        accuracies: at these times, shape `(n_times, n_workers)`; NaN of the dead.
        steps: that each worker took in all.
        step_times_s: of each worker, when each of its steps ended.
        step_examples: of each worker, how many examples each of its steps had.
        sent_bytes: by pair of ranks.
    """

    times_s: list[float]
    accuracies: np.ndarray
    steps: list[int]
    step_times_s: list[list[float]]
    step_examples: list[list[int]]
    sent_bytes: dict[tuple[int, int], int]

    def time_to(self, target: float) -> float | None:
        """When the workers' mean accuracy was first at the target, in seconds."""
        means = np.nanmean(self.accuracies, axis=1)
        reached = np.flatnonzero(means >= target)
        return self.times_s[int(reached[0])] if reached.size else None

    def accuracy_at(self, time_s: float) -> float:
        """The workers' mean accuracy at a time."""
        place = max(0, int(np.searchsorted(self.times_s, time_s, side="right")) - 1)
        return float(np.nanmean(self.accuracies[place]))


@dataclass(slots=True)
class Machine:
    """One simulated worker."""

    rank: int
    replica: Perceptron
    rule: Rule
    data: Data
    batch: LocalBatch
    rng: np.random.Generator
    budgets: dict[int, LinkBudget]
    speed: Speed = field(default_factory=Speed)
    clock: StepClock = field(default_factory=StepClock)
    is_waiting: bool = False
    lives: bool = True
    life: int = 0
    step_times_s: list[float] = field(default_factory=list)
    step_examples: list[int] = field(default_factory=list)


class Simulation:
    """Runs the workers of a world.

    Args:
        world: machines and network.
        wires: of the world.
        new_rule: makes each worker's rule.
        new_replica: makes each worker's model; all alike.
        shards: each worker's training data.
        test: what accuracy is taken of.
        global_batch: examples per step of all workers.
        weighted: whether local batches follow speed.
        growth: of the global batch, where local batches follow speed.
        seed: of the order of examples.
    """

    def __init__(
        self,
        world: World,
        wires: Wires,
        *,
        new_rule: NewRule,
        new_replica: Callable[[], Perceptron],
        shards: Sequence[Data],
        test: Data,
        global_batch: int,
        weighted: bool,
        growth: Growth | None = None,
        seed: int = 0,
    ) -> None:
        self._world, self._wires, self._test = world, wires, test
        self._new_rule, self._new_replica = new_rule, new_replica
        self._global_batch, self._weighted = global_batch, weighted
        self._growth = growth or Growth()
        self._n_training = sum(len(shard.labels) for shard in shards)
        self._now_s, self._order = 0.0, itertools.count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._machines = [self._new_machine(rank, shards[rank], seed) for rank in self._ranks]
        self._times_s: list[float] = []
        self._accuracies: list[list[float]] = []

    @property
    def _ranks(self) -> range:
        return range(self._world.n_workers)

    def run(self, until_s: float, look_every_s: float, target: float | None = None) -> Course:
        """Trains until a time, or until the mean accuracy is at a target.

        Args:
            until_s: simulated seconds.
            look_every_s: between two looks at the accuracy.
            target: of the mean accuracy over workers.
        """
        for machine in self._machines:
            self._try_to_begin(machine)
        for event in self._world.events:
            if isinstance(event, Killed):
                self._at(event.at_s, lambda event=event: self._kill(event))  # type: ignore[misc]
        look_s = 0.0
        while self._heap and self._now_s < until_s:
            at_s, _, act = heapq.heappop(self._heap)
            while look_s <= min(at_s, until_s):
                accuracy = self._look(look_s)
                if target is not None and accuracy >= target:
                    return self._course()
                look_s += look_every_s
            self._now_s = at_s
            act()
        return self._course()

    def _course(self) -> Course:
        return Course(
            self._times_s,
            np.array(self._accuracies),
            [len(machine.step_times_s) for machine in self._machines],
            [machine.step_times_s for machine in self._machines],
            [machine.step_examples for machine in self._machines],
            dict(self._wires.sent_bytes),
        )

    def _look(self, at_s: float) -> float:
        row = [m.replica.accuracy(self._test) if m.lives else np.nan for m in self._machines]
        self._times_s.append(at_s)
        self._accuracies.append(row)
        return float(np.nanmean(row))

    def _new_machine(self, rank: int, data: Data, seed: int) -> Machine:
        peers = [peer for peer in self._ranks if peer != rank]
        return Machine(
            rank,
            self._new_replica(),
            self._new_rule(rank, peers, False),
            data,
            LocalBatch(rank, self._global_batch, len(self._ranks)),
            np.random.default_rng([seed, rank]),
            # the rates are known from the probe
            {peer: LinkBudget(self._world.links[rank, peer].bytes_per_s) for peer in peers},
        )

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_s, next(self._order), act))

    def _try_to_begin(self, machine: Machine) -> None:
        machine.is_waiting = not machine.rule.begin(machine.replica)
        if machine.is_waiting:
            return
        chosen = machine.rng.integers(len(machine.data.labels), size=machine.batch.n_examples)
        examples = Data(machine.data.images[chosen], machine.data.labels[chosen])
        gradient, loss = machine.replica.gradient(examples)
        n_examples, life = len(chosen), machine.life
        speed = self._world.speed(machine.rank, self._now_s)
        busy_s = self._world.step_s + n_examples / speed

        def finish() -> None:
            if machine.life == life:
                machine.speed.note(n_examples, busy_s)
                speed = machine.speed.examples_per_s
                self._finish(machine, Step(gradient, n_examples, loss, speed))

        self._at(self._now_s + busy_s, finish)

    def _finish(self, machine: Machine, step: Step) -> None:
        machine.clock.tick(self._now_s)
        machine.step_times_s.append(self._now_s)
        machine.step_examples.append(step.n_examples)
        capacities = {
            peer: budget.capacity_bytes(
                machine.clock.step_s, self._wires.queued_bytes((machine.rank, peer), self._now_s)
            )
            for peer, budget in machine.budgets.items()
        }
        for outgoing in machine.rule.step(machine.replica, step, capacities):
            self._send(machine, self._machines[outgoing.to], outgoing.message)
        if self._weighted:
            speeds = machine.rule.roster.speeds()
            n_steps = len(machine.step_times_s)
            global_batch = self._growth.global_batch(self._global_batch, n_steps, self._n_training)
            machine.batch.follow(global_batch, speeds)
        self._try_to_begin(machine)

    def _send(self, source: Machine, to: Machine, message: Message) -> None:
        size = source.replica.layout.size
        packed = message.packed(size)
        header = parse(packed[:HEADER_BYTES], size)
        arrived = parse_body(header, packed[HEADER_BYTES:], size)
        lives = (source.life, to.life)

        def arrive() -> None:
            if (source.life, to.life) == lives and to.lives:
                to.rule.take(source.rank, arrived)
                if to.is_waiting:
                    self._try_to_begin(to)

        pair = (source.rank, to.rank)
        busy_s = self._wires.send(
            pair, len(packed), self._now_s, lambda at_s: self._at(at_s, arrive)
        )
        source.budgets[to.rank].note_transfer(len(packed), busy_s)

    def _kill(self, event: Killed) -> None:
        dead = self._machines[event.rank]
        dead.lives, dead.life = False, dead.life + 1
        self._at(self._now_s + DETECTED_S, lambda: self._tell_loss(event.rank))
        if event.back_at_s is not None:
            self._at(event.back_at_s, lambda: self._bring_back(event.rank))

    def _tell_loss(self, rank: int) -> None:
        for machine in self._machines:
            if machine.rank != rank:
                machine.rule.lost(rank)
                if machine.is_waiting and machine.lives:
                    self._try_to_begin(machine)

    def _bring_back(self, rank: int) -> None:
        machine = self._machines[rank]
        peers = [peer for peer in self._ranks if peer != rank]
        machine.lives, machine.life = True, machine.life + 1
        machine.replica = self._new_replica()
        machine.rule = self._new_rule(rank, peers, True)
        for peer in peers:
            self._machines[peer].rule.joined(rank)
        self._try_to_begin(machine)
