"""A model of which each rank trains one stage; whole again whenever somebody looks at it."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from launcher.worker import state
from launcher.worker.exchange.algorithms.mailbox import Mailbox
from launcher.worker.pipeline import optimizer_state, weights
from launcher.worker.pipeline.keras_graph import (
    Graph,
    build_loss_and_metrics,
    set_value,
)
from launcher.worker.pipeline.metric_states import MetricStates
from launcher.worker.pipeline.notices import Notices
from launcher.worker.pipeline.optimizer_state import Optimizers, Place
from launcher.worker.pipeline.part import Batch, Part
from launcher.worker.pipeline.refusals import UnsplittableError
from launcher.worker.pipeline.stage import Stage


class SplitModel:
    """This rank's view of a model that all ranks train together.

    All ranks call the same methods in the same order.

    Args:
        mailbox: rank k trains stage k.
        graph: of the model.
        cuts: between the stages.
        n_micro_batches: that a batch is cut into.
        numbers: of messages, alike on all ranks.
        optimizers: which have the states of a stage only.

    Raises:
        UnsplittableError: the model cannot be cut there.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        graph: Graph,
        cuts: Sequence[int],
        n_micro_batches: int,
        numbers: Iterator[int],
        optimizers: Optimizers,
    ) -> None:
        for cut in cuts:
            if (reason := graph.why_not(cut)) is not None:
                raise UnsplittableError(reason)
        self._mailbox, self._graph, self._cuts = mailbox, graph, tuple(cuts)
        self._n_micro_batches, self._numbers = n_micro_batches, numbers
        self._optimizers, self._notices = optimizers, Notices(mailbox, numbers)
        self.model = graph.model
        self._all = list(self.model.trainable_variables)
        by_id = {id(weight): number for number, weight in enumerate(self._all)}
        self._variables = weights.variables_by_rank(graph, cuts)
        self._trained = [
            sorted(by_id[id(v)] for v in variables if id(v) in by_id)
            for variables in self._variables
        ]
        self._watched = {id(v) for variables in self._variables for v in variables}
        self.is_whole = True
        self._part: Part | None = None
        self._metrics: MetricStates | None = None
        self._places: dict[int, list[Place]] = {}

    @property
    def _rank(self) -> int:
        return self._mailbox.rank

    @property
    def _is_last(self) -> bool:
        return self._rank == self._mailbox.world_size - 1

    def has(self, variable: Any) -> bool:
        """Whether a variable is one of the model's layers."""
        return id(variable) in self._watched

    # ------------------------------------------------------------------ whole or in stages

    def begin(self) -> None:
        """Makes ready to train: this rank's stage, with the states of its weights only."""
        if self._part is None:
            own = [self._all[number] for number in self._trained[self._rank]]
            optimizer = self._optimizers.adopt(self.model, own, self._all)
            first, stop = list(pairwise([0, *self._cuts, len(self._graph.calls)]))[self._rank]
            stage = Stage(self._graph, first, stop, optimizer)
            self._part = Part(self._mailbox, stage, self._n_micro_batches, self._numbers)

    def spread(self) -> None:
        """Gives each stage the weights that rank 0's model has."""
        weights.spread(self._mailbox, self._graph, self._cuts, next(self._numbers))

    def cut(self) -> None:
        """Frees what this rank does not train."""
        if self.is_whole:
            first, stop = list(pairwise([0, *self._cuts, len(self._graph.calls)]))[self._rank]
            weights.drop_others(self._graph, first, stop)
            self.is_whole = False

    def make_whole(self) -> None:
        """Gives all ranks all weights, as they are now."""
        if not self.is_whole:
            weights.exchange(self._mailbox, self._graph, self._cuts, next(self._numbers))
            self.is_whole = True

    # ------------------------------------------------------------------ steps

    def train(self, batch: Batch, request: int) -> tuple[dict[str, Any], int]:
        """One step; what `fit` shows after it, and what rank 0 had asked for when it began."""
        assert self._part is not None
        self.cut()
        order = self._notices.tell(0, [request])
        self._part.train_on_batch(batch)
        return self._logs(batch), round(float(order.wait()[0]))

    def test(self, batch: Batch) -> dict[str, Any]:
        """Evaluates a batch; what `evaluate` shows after it."""
        assert self._part is not None
        self.cut()
        self._part.test_on_batch(batch)
        return self._logs(batch)

    def _logs(self, batch: Batch) -> dict[str, Any]:
        """What the last stage has counted, on all ranks."""
        if self._metrics is None:
            if not self._is_last:  # where the loss is not computed, its metrics are not made
                build_loss_and_metrics(self.model, batch.targets, batch.sample_weight)
            self._metrics = MetricStates(self.model)
        metrics = self._metrics
        row = metrics.row() if self._is_last else np.empty(metrics.size)
        told = self._notices.tell(self._mailbox.world_size - 1, row).wait()
        if not self._is_last:
            metrics.take(told)
        return metrics.logs()

    # ------------------------------------------------------------------ keeping and loading

    def kept(self) -> dict[str, Any] | None:
        """Weights and optimizer state of the whole model as `state.model_state` has them.

        Only on rank 0; None on others.
        """
        optimizer = self._kept_states()
        arrays = self._kept_weights()
        if self._rank:
            return None
        return {
            "model": [arrays[id(variable)] for variable in self.model.variables],
            "optimizer": optimizer,
            "learning_rate": state.learning_rate(self.model.optimizer),
        }

    def _kept_weights(self) -> dict[int, Any]:
        """Copies of all variables by identity, on rank 0."""
        mailbox, number = self._mailbox, next(self._numbers)
        if self.is_whole:
            return _by_id(self.model.variables, weights.copies(self.model.variables))
        if self._rank:
            own = (np.ascontiguousarray(v.numpy()) for v in self._variables[self._rank])
            weights.send_some(mailbox, 0, own, number)
            return {}
        found = _by_id(self._variables[0], weights.copies(self._variables[0]))
        for rank in range(1, mailbox.world_size):
            theirs = self._variables[rank]
            found |= _by_id(theirs, weights.received(mailbox, rank, theirs, number))
        return found

    def _kept_states(self) -> list[Any]:
        """The states of an optimizer that trains all weights; on rank 0."""
        mailbox, number = self._mailbox, next(self._numbers)
        own, optimizer = self._own_states(self._rank), self.model.optimizer
        if self._rank:
            pairs = zip(own, optimizer.variables, strict=True)
            sent = (np.ascontiguousarray(v.numpy()) for p, v in pairs if p.weight is not None)
            weights.send_some(mailbox, 0, sent, number)
            return []
        values = dict(zip(own, optimizer_state.read(optimizer), strict=True))
        for rank in range(1, mailbox.world_size):
            wanted = [place for place in self._own_states(rank) if place.weight is not None]
            like = [self._all[place.weight] for place in wanted if place.weight is not None]
            arrays = weights.received(mailbox, rank, like, number)
            values |= dict(zip(wanted, arrays, strict=True))
        found = [values[place] for place in self._whole_states]
        self._optimizers.remember(optimizer, found)
        return found

    def share_states(self) -> None:
        """Gives all ranks the optimizer's whole state, which rank 0 knows; collective."""
        mailbox, number, optimizer = self._mailbox, next(self._numbers), self.model.optimizer
        if self._rank == 0:
            arrays = [np.ascontiguousarray(a) for a in self._optimizers.whole(optimizer) or ()]
            for rank in range(1, mailbox.world_size):
                for pending in weights.send(mailbox, rank, arrays, number):
                    pending.wait()
            return
        common = dict(zip(self._own_states(self._rank), optimizer.variables, strict=True))
        like = [
            common[place] if place.weight is None else self._all[place.weight]
            for place in self._whole_states
        ]
        self._optimizers.remember(optimizer, weights.received(mailbox, 0, like, number))

    def forget_states(self) -> None:
        """Frees the optimizer's whole state, where it is not needed any more."""
        if self._rank:
            self._optimizers.remember(self.model.optimizer, None)

    def _own_states(self, rank: int) -> list[Place]:
        """What each of a rank's optimizer variables keeps, by the number of the model's weight."""
        if rank not in self._places:
            self._places[rank] = self._found_states(self._trained[rank])
        return self._places[rank]

    def _found_states(self, numbers: Sequence[int]) -> list[Place]:
        found = optimizer_state.places(self.model.optimizer, [self._all[i] for i in numbers])
        return [
            place if place.weight is None else Place(numbers[place.weight], place.ordinal)
            for place in found
        ]

    @cached_property
    def _whole_states(self) -> tuple[Place, ...]:
        """What the variables of an optimizer would keep that trains all weights."""
        return optimizer_state.places(self.model.optimizer, self._all)

    def load(self, kept: dict[str, Any]) -> None:
        """Goes on from what `kept` gave, on however many stages; each rank has all of it.

        Raises:
            RecordError: the script's model is another one.
        """
        state.check_shapes(self.model.variables, kept["model"], "weights")
        own = {id(v) for v in self._variables[self._rank]}
        for variable, array in zip(self.model.variables, kept["model"], strict=True):
            if self.is_whole or id(variable) in own or not self.has(variable):
                set_value(variable, array)
        if kept["optimizer"]:
            values = dict(zip(self._whole_states, kept["optimizer"], strict=True))
            places = self._own_states(self._rank)
            optimizer_state.write(self.model.optimizer, places, values)


def _by_id(variables: Sequence[Any], arrays: Sequence[Any]) -> dict[int, Any]:
    return {id(v): array for v, array in zip(variables, arrays, strict=True)}
