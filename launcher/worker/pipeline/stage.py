"""One stage's forward and backward passes, as TensorFlow functions."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras.src import tree

from launcher.worker.model_facts import item_bytes
from launcher.worker.pipeline.keras_graph import (
    Graph,
    as_model_outputs,
    build_loss_and_metrics,
    compile_loss,
    count_loss,
    inner_layers,
)
from launcher.worker.pipeline.messages import Layout
from launcher.worker.pipeline.refusals import UnsplittableError


@dataclass(frozen=True, slots=True)
class Answers:
    """What the outputs of a micro-batch should be, as `fit` was given it."""

    targets: Any
    sample_weight: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """A forward pass whose backward pass is still to come, if any.

    Attributes:
        tape: what it was made of; None if no backward pass follows.
        inputs: what came over the cut before.
        outputs: what goes over the cut behind; for the last stage, nothing.
        objective: what the stage itself adds to the batch's loss: the penalties of its layers, and
            in the last stage the loss, as much of it as the micro-batch counts for.
        loss: of the micro-batch so far: what all stages up to this one add, in full.
    """

    tape: Any
    inputs: list[Any]
    outputs: list[Any]
    objective: Any
    loss: float


class Stage:
    """Calls `first` to before `stop` of a model, computed here.

    Gradients are summed over micro-batches until `apply`. What is computed is kept from the forward
    to the backward pass, and not computed again: so layers with random numbers, and those that
    change a state, need no care.

    Args:
        graph: the model.
        first: the first call's number.
        stop: the number after the last call's.
        optimizer: changes the weights; the model's own is not touched where none is given.
    """

    def __init__(self, graph: Graph, first: int, stop: int, optimizer: Any = None) -> None:
        self._graph = graph
        self._taken, self._given = graph.crossing(first), graph.crossing(stop)
        self._used, self._made = graph.used_inputs(first, stop), graph.made_outputs(first, stop)
        self.is_last = stop == len(graph.calls)
        self.model = graph.stage_model(first, stop)
        self.variables = list(self.model.trainable_variables)
        self._optimizer = optimizer or _own_optimizer(graph.model.optimizer)
        self._sums: list[Any] = [None] * len(self.variables)
        self._has_run = False
        self._run = tf.function(self._pass, autograph=False, reduce_retracing=True)
        self._update = tf.function(self._apply, autograph=False, reduce_retracing=True)

    @property
    def taken(self) -> Layout:
        """What comes over the cut before."""
        return _layout(self._taken)

    @property
    def given(self) -> Layout:
        """What goes over the cut behind."""
        return _layout(self._given)

    def chosen(self, inputs: Sequence[Any]) -> list[Any]:
        """Of the model's inputs, those that the first stage takes."""
        taken = {id(tensor) for tensor in self._taken}
        named = zip(self._graph.inputs, inputs, strict=True)
        return [value for tensor, value in named if id(tensor) in taken]

    def forward(
        self,
        inputs: Sequence[Any],
        share: float,
        loss: float = 0.0,
        answers: Answers | None = None,
        *,
        training: bool = True,
    ) -> Passed:
        """The forward pass of a micro-batch.

        Args:
            inputs: of the layout `taken`.
            share: of the batch's rows that are in it.
            loss: what the stages before add to the micro-batch's loss.
            answers: of the last stage.
            training: whether a backward pass will follow.
        """
        pairs = zip(inputs, self._taken, strict=True)
        tensors = [tf.cast(tf.convert_to_tensor(x), _dtype(tensor)) for x, tensor in pairs]
        answers = answers or Answers(None)
        if self.is_last and not self._has_run:
            build_loss_and_metrics(self._graph.model, answers.targets, answers.sample_weight)
        self._has_run = True
        numbers = tf.constant(share), tf.constant(loss)
        with tf.GradientTape() if training else contextlib.nullcontext() as tape:
            if tape is not None:
                tape.watch([tensor for tensor in tensors if tensor.dtype.is_floating])
            outputs, objective, loss = self._run(
                tensors, *numbers, answers.targets, answers.sample_weight, training=training
            )
        return Passed(tape, tensors, outputs, objective, float(loss))

    def _pass(
        self,
        tensors: list[Any],
        share: Any,
        loss: Any,
        targets: Any,
        sample_weight: Any,
        *,
        training: bool,
    ) -> tuple[list[Any], Any, Any]:
        by_tensor = {id(t): x for t, x in zip(self._taken, tensors, strict=True)}
        made = self.model([by_tensor[id(tensor)] for tensor in self._used], training=training)
        by_tensor |= {id(t): x for t, x in zip(self._made, tree.flatten(made), strict=True)}
        own_loss = self._penalty()
        if not self.is_last:
            given = [by_tensor[id(tensor)] for tensor in self._given]
            return given, share * own_loss, loss + own_loss
        whole = self._graph.model
        outputs = as_model_outputs(whole, by_tensor)
        loss_of_outputs = compile_loss(whole, targets, outputs, sample_weight, share)
        own_loss += tf.cast(loss_of_outputs, tf.float32)
        count_loss(whole, loss + own_loss, tf.shape(tensors[0])[0])
        whole.compute_metrics(None, targets, outputs, sample_weight=sample_weight)
        return [], share * own_loss, loss + own_loss

    def _penalty(self) -> Any:
        """What the stage's layers add to the loss: their weights' and activities' regularizers."""
        losses = self.model.losses
        of_weights = [variable for variable in self.variables if variable.regularizer is not None]
        if len(losses) > len(of_weights) and not self._has_activity_regularizer:
            raise UnsplittableError("a layer adds a loss of its own (add_loss)")
        return tf.add_n([tf.cast(tf.reduce_sum(x), tf.float32) for x in losses] or [tf.zeros(())])

    @property
    def _has_activity_regularizer(self) -> bool:
        layers = inner_layers(self.model)
        return any(getattr(layer, "activity_regularizer", None) for layer in layers)

    def backward(self, passed: Passed, gradients: Sequence[Any]) -> list[Any]:
        """The backward pass of a micro-batch.

        Args:
            passed: its forward pass.
            gradients: of the outputs with a gradient, from the stage behind.

        Returns:
            The gradients of the inputs that can have one.
        """
        outputs = [output for output in passed.outputs if output.dtype.is_floating]
        inputs = [tensor for tensor in passed.inputs if tensor.dtype.is_floating]
        seeds = [tf.convert_to_tensor(g, o.dtype) for g, o in zip(gradients, outputs, strict=True)]
        found = passed.tape.gradient(
            [*outputs, passed.objective],
            [*inputs, *self.variables],
            output_gradients=[*seeds, tf.ones_like(passed.objective)],
        )
        for i, gradient in enumerate(found[len(inputs) :]):
            self._add(i, gradient)
        pairs = zip(found[: len(inputs)], inputs, strict=True)
        return [tf.zeros_like(x) if g is None else g for g, x in pairs]

    def _add(self, i: int, gradient: Any) -> None:
        if gradient is not None:
            self._sums[i] = gradient if self._sums[i] is None else _sum(self._sums[i], gradient)

    def apply(self) -> None:
        """Changes the stage's weights by the summed gradients, and begins new sums."""
        self.update_by(self._sums)
        self.forget()

    def update_by(self, gradients: Sequence[Any]) -> None:
        """Changes the stage's weights by gradients, None for those that have none."""
        if not self.variables:  # the optimizer counts its steps all the same
            self._optimizer.iterations.assign_add(1)
            return
        if not self._optimizer.built:
            self._optimizer.build(self.variables)
        self._update([None if g is None else _as_gradient(g) for g in gradients])

    def _apply(self, gradients: Sequence[Any]) -> None:
        self._optimizer.apply(gradients, self.variables)

    def forget(self) -> None:
        """Begins new sums of gradients."""
        self._sums = [None] * len(self.variables)

    @property
    def state_bytes(self) -> int:
        """Weights, the sums of their gradients, and the optimizer's state."""
        optimizer = _own_optimizer(self._optimizer)  # only to see how large it gets
        optimizer.build(self.variables)
        states = [variable for variable in optimizer.variables if len(variable.shape)]
        held = [*self.model.variables, *self.variables, *states]
        return sum(item_bytes(variable) * math.prod(variable.shape) for variable in held)


def _as_gradient(value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def _sum(one: Any, other: Any) -> Any:
    """The sum of two gradients.

    Gradients of an embedding stay the rows that they are: some optimizers treat each row by itself.
    """
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        values = tf.concat([one.values, other.values], axis=0)
        indices = tf.concat([one.indices, other.indices], axis=0)
        return tf.IndexedSlices(values, indices, one.dense_shape)
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def _own_optimizer(optimizer: Any) -> Any:
    """An optimizer of the same settings for a stage's weights alone."""
    return type(optimizer).from_config(optimizer.get_config())


def _layout(tensors: Sequence[Any]) -> Layout:
    shapes = tuple(tuple(tensor.shape[1:]) for tensor in tensors)
    return Layout(shapes, tuple(str(tensor.dtype) for tensor in tensors))


def _dtype(tensor: Any) -> Any:
    return tf.as_dtype(str(tensor.dtype))
