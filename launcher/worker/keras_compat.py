"""Corrections for Keras 3: every private name of it that we touch is named here."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.losses import loss as keras_losses
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from launcher.worker.batch_moments import global_moments
from launcher.worker.common_compat import (
    call_metric,
    count_scalars_as_shares,
    follow_train_functions,
    install_predict,
    keep_state_if_idle,
    mark_calls,
    metric_result,
    switch_off_jit,
    update_metric,
)
from launcher.worker.data_parallel import DataParallel
from launcher.worker.framework import Framework
from launcher.worker.method_patch import wrap_method
from launcher.worker.seeds import folded_seed

Trainer = tf_trainer.TensorFlowTrainer


class KerasFramework:
    """What Keras 3 tells about a model."""

    model_class: type = keras.Model

    def __init__(self) -> None:
        self._folded: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def is_model(self, model: Any) -> bool:
        """Whether it is a Keras 3 model."""
        return isinstance(model, keras.Model)

    def parts(self, model: Any) -> list[Any]:
        """The layers and models that a model is made of."""
        return [*model._flatten_layers(include_self=False), getattr(model, "_functional", None)]

    def state_variables(self, model: Any) -> list[Any]:
        """Weights and optimizer state; nothing where a layer is not built."""
        if not model.built:
            return []
        optimizer = getattr(model, "optimizer", None)
        return [*model.weights, *(optimizer.variables if optimizer is not None else [])]

    def moving_statistics(self, model: Any) -> list[Any]:
        """Moving means and variances of all batch normalisation layers."""
        layers = [
            layer
            for layer in model._flatten_layers()
            if isinstance(layer, keras.layers.BatchNormalization) and layer.built
        ]
        return [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]

    def fold_rank(self, model: Any, rank: int) -> None:
        """Folds the rank into the first word of every layer's seed generator."""
        layers = model._flatten_layers()
        generators = [g for layer in layers for g in layer._seed_generators]
        for generator in {id(g): g for g in generators}.values():
            seed, counter = (int(x) for x in generator.state.numpy())
            if rank and self._folded.get(generator) != seed:
                self._folded[generator] = folded_seed(seed, rank)
                generator.state.assign([self._folded[generator], counter])


def install(parallel: DataParallel) -> Framework:
    """Patches Keras 3 for the process."""
    _install_data(parallel)
    _install_steps(parallel)
    _install_optimizers(parallel)
    _install_losses(parallel)
    _install_metrics(parallel)
    _install_batch_normalization(parallel)
    if parallel.shares_data:
        install_predict(parallel, Trainer, tree.flatten, tree.pack_sequence_as)
        switch_off_jit(Trainer, "_resolve_auto_jit_compile")
    return KerasFramework()


def _install_data(parallel: DataParallel) -> None:
    """Data streams yield this rank's slices; training data can be passed over."""
    role_by_iterator: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def init(original: Any, iterator: Any, *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        role = parallel.role()
        if role is None:
            return
        if isinstance(iterator.data_adapter, GeneratorDataAdapter):
            parallel.refuse_generator(role, kwargs.get("x", args[1] if len(args) > 1 else None))
        role_by_iterator[iterator] = role
        iterator._distributed_dataset = parallel.shared(
            iterator._distributed_dataset, role, ahead=_may_read_ahead(iterator)
        )

    def enumerate_iterator(original: Any, iterator: Any) -> Iterator[Any]:
        if role_by_iterator.get(iterator) != "train":
            yield from original()
            return
        replay = parallel.take_replay()
        for _ in range(replay.epochs):
            _pass_over_epoch(parallel, iterator, original)
        parallel.begin_epoch()
        steps = original()
        for begin, end, data in steps:
            if begin >= replay.steps:
                yield from itertools.chain([(begin, end, data)], steps)
                return
            for _ in range(end - begin + 1):
                parallel.pass_over(next(data))

    wrap_method(tf_trainer.TFEpochIterator, "__init__", init)
    wrap_method(tf_trainer.TFEpochIterator, "_enumerate_iterator", enumerate_iterator)


def _may_read_ahead(iterator: Any) -> bool:
    """Not over an epoch's end of the script's own dataset, see `sharing.share_dataset`."""
    is_own = isinstance(iterator.data_adapter, TFDatasetAdapter)
    return not is_own or iterator.steps_per_epoch is None


def _pass_over_epoch(parallel: DataParallel, iterator: Any, original: Any) -> None:
    """Goes through one epoch without training.

    Arrays are permuted when an epoch's first batch is drawn, so its other batches need not be
    read.
    """
    first_only = isinstance(iterator.data_adapter, ArrayDataAdapter)
    with iterator.catch_stop_iteration():
        for begin, end, data in original():
            for _ in range(end - begin + 1 if not first_only or begin == 0 else 0):
                parallel.pass_over(next(data))


def _install_steps(parallel: DataParallel) -> None:
    """train_step and test_step know their part of the batch; results come from all ranks."""

    def train_step(original: Any, model: Any, data: Any) -> Any:
        return parallel.run_step(original, model, data, "train")

    def test_step(original: Any, model: Any, data: Any) -> Any:
        return parallel.run_step(original, model, data, "test")

    def result_or_logs(original: Any, model: Any, logs: Any) -> Any:
        return parallel.logs.of_epoch(model, logs, original)

    wrap_method(Trainer, "train_step", train_step)
    wrap_method(Trainer, "test_step", test_step)
    follow_train_functions(parallel, Trainer)
    wrap_method(Trainer, "_get_metrics_result_or_logs", result_or_logs)
    mark_calls(parallel, Trainer)


def _install_optimizers(parallel: DataParallel) -> None:
    """The outermost `apply` exchanges gradients first."""

    def apply(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        return parallel.gradients.exchange(
            lambda means: original(means, trainable_variables),
            grads,
            trainable_variables or (optimizer._trainable_variables if optimizer.built else None),
            optimizer,
        )

    def apply_gradients(original: Any, optimizer: Any, grads_and_vars: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        return parallel.gradients.exchange(
            lambda means: original(list(zip(means, variables, strict=True))),
            [gradient for gradient, _ in pairs],
            variables,
            optimizer,
        )

    wrap_method(BaseOptimizer, "apply", apply, autograph=True)
    wrap_method(BaseOptimizer, "apply_gradients", apply_gradients, autograph=True)


def install_lone_exchange(note: Callable[[Any], None]) -> None:
    """For a worker that exchanges gradients, but trains alone as far as Keras knows.

    Args:
        note: is handed each training step's loss as `fit` computes it, while it is traced.
    """

    def scale_loss(original: Any, _optimizer: Any, loss: Any) -> Any:
        note(loss)
        return original(loss)

    wrap_method(BaseOptimizer, "scale_loss", scale_loss, autograph=True)
    switch_off_jit(Trainer, "_resolve_auto_jit_compile")


def loss_scale(optimizer: Any) -> Any:
    """By what gradients were multiplied, against underflow; None if by nothing, ever.

    Args:
        optimizer: whose step is being traced.
    """
    if not isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
        return None
    return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale


def _install_losses(parallel: DataParallel) -> None:
    """Losses whose denominator is not the number of rows are divided by the global one."""
    apply_mask, reduce_values = keras_losses.apply_mask, keras_losses.reduce_values

    def global_apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        if mask is None or not parallel.in_step or reduction not in ("mean", "sum_over_batch_size"):
            return apply_mask(sample_weight, mask, dtype, reduction)
        valid = parallel.state.denominator(tf.reduce_sum(tf.cast(mask, tf.float32)), "mask")
        total = tf.cast(tf.size(mask), tf.float32)
        scale = tf.cast(tf.math.divide_no_nan(total, valid), dtype)
        return apply_mask(sample_weight, mask, dtype, "sum") * scale

    def global_reduce_values(
        values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
    ) -> Any:
        if not parallel.in_step or not tuple(values.shape):
            return reduce_values(values, sample_weight, reduction)
        if reduction == "sum":
            return tf.reduce_sum(values) * tf.cast(parallel.state.sum_scale(), values.dtype)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            total = tf.reduce_sum(tf.cast(sample_weight, tf.float32))
            divisor = parallel.state.denominator(total, "sample weights")
            return tf.math.divide_no_nan(tf.reduce_sum(values), tf.cast(divisor, values.dtype))
        return reduce_values(values, sample_weight, reduction)

    keras_losses.apply_mask = global_apply_mask
    keras_losses.reduce_values = global_reduce_values


def _install_metrics(parallel: DataParallel) -> None:
    """Metric states sum up over ranks to those of one machine."""

    def update_state(original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        return update_metric(
            parallel,
            metric,
            lambda: original(*args, **kwargs),
            variables=lambda: metric.variables,
        )

    def result(original: Any, metric: Any) -> Any:
        return metric_result(parallel, metric, original)

    def call(original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        return call_metric(parallel, metric, lambda: original(*args, **kwargs))

    count_scalars_as_shares(parallel, keras.metrics.Mean)
    wrap_method(keras.metrics.Metric, "update_state", update_state, autograph=True)
    wrap_method(keras.metrics.Metric, "result", result, autograph=True)
    wrap_method(keras.metrics.Metric, "__call__", call, autograph=True, subclasses=False)


def _install_batch_normalization(parallel: DataParallel) -> None:
    """Moments over the global batch, or undisturbed local ones."""

    def moments(original: Any, layer: Any, inputs: Any, mask: Any) -> Any:
        if not parallel.has_global_moments:
            return original(inputs, mask)
        wide_mask = None if mask is None else tf.expand_dims(mask, -1)
        mean, variance, _ = global_moments(
            inputs, layer._reduction_axes, parallel.state, f"moments of {layer.path}", wide_mask
        )
        return mean, variance

    def call(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not parallel.in_step or parallel.has_global_moments:
            return original(*args, **kwargs)
        statistics = [layer.moving_mean, layer.moving_variance]
        return keep_state_if_idle(parallel, statistics, lambda: original(*args, **kwargs))

    wrap_method(keras.layers.BatchNormalization, "_moments", moments)
    wrap_method(keras.layers.BatchNormalization, "call", call)
