"""Corrections for legacy Keras: every private name of `tf_keras` that we touch is named here."""

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import data_adapter
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
from tf_keras.src.optimizers.optimizer import _BaseOptimizer
from tf_keras.src.utils import losses_utils, metrics_utils

from launcher.worker import tf_keras_batch_norm
from launcher.worker.common_compat import (
    call_metric,
    count_scalars_as_shares,
    follow_train_functions,
    install_predict,
    mark_calls,
    metric_result,
    switch_off_jit,
    update_metric,
)
from launcher.worker.data_parallel import DataParallel, Replay
from launcher.worker.framework import Framework
from launcher.worker.method_patch import wrap_method
from launcher.worker.seeds import folded_seed

Model = tf_keras.Model
Reduction = losses_utils.ReductionV2


class TfKerasFramework:
    """What legacy Keras tells about a model."""

    model_class: type = Model

    def __init__(self) -> None:
        self._folded: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def is_model(self, model: Any) -> bool:
        """Whether it is a legacy model."""
        return isinstance(model, Model)

    def parts(self, model: Any) -> list[Any]:
        """The layers and models that a model is made of."""
        return list(model._flatten_layers(include_self=False))

    def state_variables(self, model: Any) -> list[Any]:
        """Weights and optimizer state; nothing where the model is not built."""
        if not model.built:
            return []
        variables = getattr(getattr(model, "optimizer", None), "variables", [])
        return [*model.weights, *(variables() if callable(variables) else variables)]

    def moving_statistics(self, model: Any) -> list[Any]:
        """Moving means and variances of all batch normalisation layers."""
        layers = [
            layer
            for layer in model._flatten_layers()
            if isinstance(layer, tf_keras_batch_norm.Base) and layer.built
        ]
        return [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]

    def fold_rank(self, model: Any, rank: int) -> None:
        """Folds the rank into the seeds of all layers that draw random numbers."""
        layers = [layer for layer in model._flatten_layers() if hasattr(layer, "_random_generator")]
        for place, layer in enumerate(layers if rank else []):
            self._fold(layer._random_generator, rank, place)

    def _fold(self, generator: Any, rank: int, place: int) -> None:
        generator._maybe_init()
        if generator._generator is not None:  # a tf.random.Generator, whose key is a variable
            counter_and_key = generator._generator.state.numpy()
            if self._folded.get(generator) != int(counter_and_key[-1]):
                counter_and_key[-1] = folded_seed(int(counter_and_key[-1]), rank)
                self._folded[generator] = int(counter_and_key[-1])
                generator._generator.state.assign(counter_and_key)
        elif generator not in self._folded:
            seed = place if generator._seed is None else int(generator._seed)
            generator._seed = self._folded[generator] = folded_seed(seed, rank)


def install(parallel: DataParallel) -> Framework:
    """Patches legacy Keras for the process."""
    _install_data(parallel)
    _install_steps(parallel)
    _install_optimizers(parallel)
    _install_losses(parallel)
    _install_metrics(parallel)
    tf_keras_batch_norm.install(parallel)
    if parallel.shares_data:
        install_predict(parallel, Model, tf.nest.flatten, tf.nest.pack_sequence_as)
        switch_off_jit(Model, None)
    return TfKerasFramework()


def _install_data(parallel: DataParallel) -> None:
    """Data streams yield this rank's slices; training data can be passed over."""
    replay_by_handler: WeakKeyDictionary[Any, Replay] = WeakKeyDictionary()

    def init(original: Any, handler: Any, *args: Any, **kwargs: Any) -> None:
        role = parallel.role() if kwargs.get("distribute", True) else None
        if role != "train":
            original(*args, **kwargs)
        else:
            replay_by_handler[handler] = replay = parallel.take_replay()
            initial_epoch = kwargs.get("initial_epoch", 0)
            # Array data are laid out for the epochs to come; those passed over are among them.
            original(*args, **{**kwargs, "initial_epoch": initial_epoch - replay.epochs})
            handler._initial_epoch = initial_epoch
        if role is not None:
            _refuse_generator(parallel, handler, role, kwargs.get("x"))
            ahead = _may_read_ahead(handler, kwargs.get("steps_per_epoch"))
            handler._dataset = parallel.shared(handler._dataset, role, ahead=ahead)

    def enumerate_epochs(original: Any, handler: Any) -> Iterator[Any]:
        replay = replay_by_handler.pop(handler, None)
        if replay is None:
            yield from original()
            return
        first = handler._initial_epoch
        handler._initial_epoch = first - replay.epochs
        for epoch, iterator in original():
            if epoch < first:
                _pass_over_epoch(parallel, handler, iterator)
                continue
            parallel.begin_epoch()
            if epoch == first and replay.steps:
                for _ in range(replay.steps):
                    parallel.pass_over(next(iterator))
                handler._initial_step = replay.steps
            yield epoch, iterator

    wrap_method(data_adapter.DataHandler, "__init__", init)
    wrap_method(data_adapter.DataHandler, "enumerate_epochs", enumerate_epochs)


def _refuse_generator(parallel: DataParallel, handler: Any, role: Any, source: Any) -> None:
    if type(handler._adapter) is data_adapter.GeneratorDataAdapter:
        parallel.refuse_generator(role, source)


def _may_read_ahead(handler: Any, steps_per_epoch: int | None) -> bool:
    """Not over an epoch's end of the script's own dataset, see `sharing.share_dataset`."""
    is_own = isinstance(handler._adapter, data_adapter.DatasetAdapter)
    return not is_own or steps_per_epoch is None


def _pass_over_epoch(parallel: DataParallel, handler: Any, iterator: Any) -> None:
    with handler.catch_stop_iteration():
        for _ in handler.steps():
            for _ in range(handler.step_increment + 1):
                parallel.pass_over(next(iterator))


def _install_steps(parallel: DataParallel) -> None:
    """train_step and test_step know their part of the batch; results come from all ranks."""

    def train_step(original: Any, model: Any, data: Any) -> Any:
        return parallel.run_step(original, model, data, "train")

    def test_step(original: Any, model: Any, data: Any) -> Any:
        return parallel.run_step(original, model, data, "test")

    def result_or_logs(original: Any, model: Any, logs: Any) -> Any:
        return parallel.logs.of_epoch(model, logs, original)

    wrap_method(Model, "train_step", train_step, autograph=True)
    wrap_method(Model, "test_step", test_step, autograph=True)
    follow_train_functions(parallel, Model)
    wrap_method(Model, "_validate_and_get_metrics_result", result_or_logs)
    mark_calls(parallel, Model)


def _install_optimizers(parallel: DataParallel) -> None:
    """The outermost `apply_gradients` exchanges gradients first."""

    def apply_gradients(
        original: Any, optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        return parallel.gradients.exchange(
            lambda means: original(list(zip(means, variables, strict=True)), *args, **kwargs),
            [gradient for gradient, _ in pairs],
            variables,
            optimizer,
        )

    wrap_method(_BaseOptimizer, "apply_gradients", apply_gradients, autograph=True)
    wrap_method(OptimizerV2, "apply_gradients", apply_gradients, autograph=True)


def install_lone_exchange(note: Callable[[Any], None]) -> None:
    """For a worker that exchanges gradients, but trains alone as far as Keras knows.

    Args:
        note: is handed each training step's loss as `fit` computes it, while it is traced.
    """

    def minimize(original: Any, _optimizer: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        note(loss)
        return original(loss, *args, **kwargs)

    wrap_method(_BaseOptimizer, "minimize", minimize, autograph=True)
    wrap_method(OptimizerV2, "minimize", minimize, autograph=True)
    switch_off_jit(Model, None)


def loss_scale(optimizer: Any) -> float | None:
    """By what gradients are multiplied when they are handed over; None if by nothing, ever.

    This optimizer has divided them again by then, but still wants to see those that overflow.

    Args:
        optimizer: whose step is being traced.
    """
    return 1.0 if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer) else None


def _install_losses(parallel: DataParallel) -> None:
    """Losses whose denominator is not the number of rows are divided by the global one."""
    apply_valid_mask = losses_utils.apply_valid_mask
    reduce_weighted_loss = losses_utils.reduce_weighted_loss

    def global_valid_mask(losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
        means = (Reduction.AUTO, Reduction.SUM_OVER_BATCH_SIZE)
        if mask is None or not parallel.in_step or reduction not in means:
            return apply_valid_mask(losses, sw, mask, reduction)
        mask = tf.cast(mask, losses.dtype)
        valid = parallel.state.denominator(tf.reduce_sum(tf.cast(mask, tf.float32)), "mask")
        total = tf.cast(tf.size(mask), tf.float32)
        scale = tf.cast(tf.math.divide_no_nan(total, valid), losses.dtype)
        return losses_utils.apply_mask(losses, sw, mask * scale)

    def global_reduce(weighted_losses: Any, reduction: Any = Reduction.SUM_OVER_BATCH_SIZE) -> Any:
        loss = reduce_weighted_loss(weighted_losses, reduction)
        if reduction == Reduction.SUM and parallel.in_step and weighted_losses.shape.rank != 0:
            loss *= tf.cast(parallel.state.sum_scale(), loss.dtype)
        return loss

    losses_utils.apply_valid_mask = global_valid_mask
    losses_utils.reduce_weighted_loss = global_reduce


def _install_metrics(parallel: DataParallel) -> None:
    """Metric states sum up over ranks to those of one machine."""
    result_wrapper = metrics_utils.result_wrapper

    def update_state(original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        return update_metric(
            parallel,
            metric,
            lambda: original(*args, **kwargs),
            variables=lambda: metric.variables,
        )

    def noting_result_wrapper(result_fn: Any) -> Any:
        wrapped = result_wrapper(result_fn)

        def result(metric: Any, *args: Any) -> Any:
            return metric_result(parallel, metric, lambda: wrapped(metric, *args))

        return tf.__internal__.decorator.make_decorator(wrapped, result)

    def call(original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        return call_metric(parallel, metric, lambda: original(*args, **kwargs))

    metrics_utils.result_wrapper = noting_result_wrapper
    reduce_metric = tf_keras.metrics.Mean.__mro__[1]
    count_scalars_as_shares(parallel, reduce_metric)
    wrap_method(tf_keras.metrics.Metric, "update_state", update_state, autograph=True)
    wrap_method(tf_keras.metrics.Metric, "__call__", call, autograph=True, subclasses=False)
