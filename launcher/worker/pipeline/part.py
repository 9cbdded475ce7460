"""A rank's part in the steps of a pipeline."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from keras.src import tree

from launcher.worker.exchange.algorithms.call import parts
from launcher.worker.exchange.algorithms.mailbox import Mailbox, Pending
from launcher.worker.pipeline.keras_graph import unpacked
from launcher.worker.pipeline.messages import Layout, Message, Neighbour
from launcher.worker.pipeline.schedule import Backward, Forward, Pass, one_forward_one_backward
from launcher.worker.pipeline.stage import Answers, Passed, Stage


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's batch; all ranks go through the same ones.

    Attributes:
        inputs: the model's inputs, in order.
        targets: what its outputs should be, in the structure that `fit` takes.
        sample_weight: as `fit` takes it.
    """

    inputs: Sequence[Any]
    targets: Any
    sample_weight: Any = None

    @classmethod
    def drawn(cls, model: Any, data: Any) -> Self:
        """A batch as `fit` draws it from the script's data."""
        return cls(*unpacked(model, data))

    @property
    def n_rows(self) -> int:
        """How many examples there are."""
        return len(self.inputs[0])

    def answers(self, rows: slice) -> Answers:
        """Targets and weights of some of the rows."""
        given = (self.targets, self.sample_weight)
        return Answers(*tree.map_structure(lambda x: None if x is None else x[rows], given))


@dataclass(frozen=True, slots=True, eq=False)
class _Coming:
    """A message that a pass waits for."""

    message: Message
    pending: Pending


class Part:
    """One rank of a pipeline: rank k of n computes stage k.

    Args:
        mailbox: messages between the ranks.
        stage: what this rank computes.
        n_micro_batches: that a batch is cut into.
        numbers: of the steps, alike on all ranks; each is used once on this mailbox.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        stage: Stage,
        n_micro_batches: int,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._stage, self._n_micro_batches = stage, n_micro_batches
        self._rank, self._n_stages = mailbox.rank, mailbox.world_size
        self._before = Neighbour(mailbox, mailbox.rank - 1) if mailbox.rank else None
        self._behind = None if stage.is_last else Neighbour(mailbox, mailbox.rank + 1)
        self._numbers = numbers or itertools.count()

    def train_on_batch(self, batch: Batch) -> None:
        """Takes part in one step: all micro-batches forward and backward, then new weights."""
        rows = self._micro_batches(batch)
        passes = one_forward_one_backward(self._rank, self._n_stages, len(rows))
        self._make(passes, batch, rows, training=True)
        self._stage.apply()

    def test_on_batch(self, batch: Batch) -> None:
        """Takes part in evaluating a batch: its loss and metrics are counted at the last stage."""
        rows = self._micro_batches(batch)
        self._make(tuple(map(Forward, range(len(rows)))), batch, rows, training=False)

    def _micro_batches(self, batch: Batch) -> Sequence[slice]:
        return parts(batch.n_rows, min(self._n_micro_batches, batch.n_rows))

    def _make(
        self, passes: Sequence[Pass], batch: Batch, rows: Sequence[slice], *, training: bool
    ) -> None:
        """Makes the passes in order; while one is made, what the next one needs may come."""
        around = self._before, self._behind
        step = _Step(self._stage, *around, next(self._numbers), batch, rows, training)
        coming = step.expect(passes[0])
        for one, following in zip(passes, [*passes[1:], None], strict=True):
            arrived, coming = coming, step.expect(following)
            step.make(one, arrived)
        for neighbour in around:
            if neighbour is not None:
                neighbour.flush()


@dataclass(frozen=True, slots=True)
class _Step:
    """A rank's part in one step.

    Attributes:
        rows: of the batch in each micro-batch.
        training: whether backward passes follow.
        passed: forward passes whose backward passes are still to come, by micro-batch.
    """

    stage: Stage
    before: Neighbour | None
    behind: Neighbour | None
    number: int
    batch: Batch
    rows: Sequence[slice]
    training: bool
    passed: dict[int, Passed] = field(default_factory=dict)

    def expect(self, one: Pass | None) -> _Coming | None:
        """Waits for what a pass needs from another rank, if anything; returns at once."""
        match one:
            case Forward(i) if self.before is not None:
                return self._coming(self.before, i, self.stage.taken)
            case Backward(i) if self.behind is not None:
                return self._coming(self.behind, i, self.stage.given.gradients)
        return None

    def _coming(self, neighbour: Neighbour, i: int, layout: Layout) -> _Coming:
        message = layout.message(self._n_rows(i))
        return _Coming(message, neighbour.receive(self.number, i, message))

    def make(self, one: Pass, coming: _Coming | None) -> None:
        """Makes a pass as soon as what it needs is there, and sends on what it gives."""
        if coming is not None:
            coming.pending.wait()
        match one:
            case Forward(i):
                self._forward(i, coming)
            case Backward(i):
                self._backward(i, coming)

    def _forward(self, i: int, coming: _Coming | None) -> None:
        rows = self.rows[i]
        if coming is None:
            inputs, loss = self.stage.chosen([x[rows] for x in self.batch.inputs]), 0.0
        else:
            inputs, loss = coming.message.arrays, float(coming.message.number[0])
        answers = self.batch.answers(rows) if self.stage.is_last else None
        share = self._n_rows(i) / self.batch.n_rows
        passed = self.stage.forward(inputs, share, loss, answers, training=self.training)
        if self.training:
            self.passed[i] = passed
        self._send(self.behind, i, self.stage.given, passed.outputs, passed.loss)

    def _backward(self, i: int, coming: _Coming | None) -> None:
        gradients = [] if coming is None else coming.message.arrays
        found = self.stage.backward(self.passed.pop(i), gradients)
        self._send(self.before, i, self.stage.taken.gradients, found)

    def _send(
        self, to: Neighbour | None, i: int, layout: Layout, tensors: list[Any], number: float = 0.0
    ) -> None:
        if to is not None:
            message = layout.message(self._n_rows(i))
            to.send(self.number, i, message.fill([x.numpy() for x in tensors], number))

    def _n_rows(self, i: int) -> int:
        return len(range(self.rows[i].start, self.rows[i].stop))
