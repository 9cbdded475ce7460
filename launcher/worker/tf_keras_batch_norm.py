"""Synchronised batch normalisation for legacy Keras, whose fused kernel knows one worker only."""

from typing import Any

import tensorflow as tf
from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase

from launcher.worker.batch_moments import global_moments
from launcher.worker.common_compat import keep_state_if_idle
from launcher.worker.data_parallel import DataParallel
from launcher.worker.method_patch import wrap_method

Base = BatchNormalizationBase


def install(parallel: DataParallel) -> None:
    """Moments over the global batch, or undisturbed local ones."""

    def moments(
        original: Any, layer: Any, inputs: Any, axes: Any, keep_dims: Any, mask: Any = None
    ) -> Any:
        if not parallel.has_global_moments or layer.virtual_batch_size:
            return original(inputs, axes, keep_dims, mask=mask)
        wide_mask = None if mask is None else tf.expand_dims(mask, -1)
        purpose = f"moments of {layer.name}"
        mean, variance, _ = global_moments(inputs, axes, parallel.state, purpose, wide_mask)
        if keep_dims:
            for axis in sorted(axes):
                mean, variance = tf.expand_dims(mean, axis), tf.expand_dims(variance, axis)
        return mean, variance

    def call(original: Any, layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not parallel.in_step:
            return original(inputs, training=training, mask=mask)
        if not parallel.has_global_moments:
            statistics = [layer.moving_mean, layer.moving_variance]
            return keep_state_if_idle(
                parallel, statistics, lambda: original(inputs, training=training, mask=mask)
            )
        if layer.fused and tf.get_static_value(layer._get_training_value(training)):
            return _fused_training(parallel, layer, inputs)
        return original(inputs, training=training, mask=mask)

    wrap_method(Base, "_calculate_mean_and_var", moments, autograph=True)
    wrap_method(Base, "call", call, autograph=True)


def _fused_training(parallel: DataParallel, layer: Any, inputs: Any) -> Any:
    """What the fused kernel does in training, with moments over the global batch.

    The kernel's moving variance takes the unbiased variance, N/(N−1) times the batch's.
    """
    inputs = tf.cast(inputs, layer.compute_dtype)
    axis = layer.axis[0] % inputs.shape.rank
    axes = [i for i in range(inputs.shape.rank) if i != axis]
    values = tf.cast(inputs, layer._param_dtype)
    mean, variance, n = global_moments(values, axes, parallel.state, f"moments of {layer.name}")
    unbiased = variance * tf.cast(n / tf.maximum(n - 1.0, 1.0), variance.dtype)
    layer.add_update(lambda: _move(layer, layer.moving_mean, mean))
    layer.add_update(lambda: _move(layer, layer.moving_variance, unbiased))
    shape = [1] * inputs.shape.rank
    shape[axis] = inputs.shape[axis]

    def wide(parameter: Any) -> Any:
        return None if parameter is None else tf.reshape(parameter, shape)

    outputs = tf.nn.batch_normalization(
        values,
        wide(mean),
        wide(variance),
        wide(layer.beta if layer.center else None),
        wide(layer.gamma if layer.scale else None),
        layer.epsilon,
    )
    return tf.cast(outputs, inputs.dtype)


def _move(layer: Any, average: Any, value: Any) -> Any:
    momentum = tf.cast(layer.momentum, average.dtype)
    return average.assign(average * momentum + tf.stop_gradient(value) * (1.0 - momentum))
