"""Mean and variance over the global batch, for synchronised batch normalisation."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from launcher.worker.step import StepState


def global_moments(
    inputs: Any, axes: Sequence[int], state: StepState, purpose: str, mask: Any = None
) -> tuple[Any, Any, Any]:
    """Moments over all ranks' rows with one exchange; differentiable.

    Each rank sends its count, its sum and its sum of squares, the latter in float64 from the
    local two-pass moments, so that a mean far from 0 costs no precision (Chan, Golub & LeVeque
    1979, "Updating formulae and a pairwise algorithm for computing sample variances").

    Args:
        inputs: float tensor of this rank's rows.
        axes: to reduce over.
        state: the running step.
        purpose: names the exchange.
        mask: bool tensor, broadcastable to `inputs`; True where a value counts.

    Returns:
        mean and variance of the shape without `axes`, and the count of values a channel
        that they rest on (float64).
    """
    count, mean, variance = _local_moments(inputs, axes, mask)
    count = tf.where(state.is_idle(), tf.zeros_like(count), count)
    wide_mean, wide_variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
    squares = count * (wide_variance + tf.square(wide_mean))
    n, total, total_squares = state.sum_over_ranks([count, count * wide_mean, squares], purpose)
    global_mean = tf.math.divide_no_nan(total, n)
    mean_square = tf.math.divide_no_nan(total_squares, n)
    global_variance = tf.maximum(mean_square - tf.square(global_mean), 0.0)
    return tf.cast(global_mean, inputs.dtype), tf.cast(global_variance, inputs.dtype), n


def _local_moments(inputs: Any, axes: Sequence[int], mask: Any) -> tuple[Any, Any, Any]:
    """Count (float64), mean and variance of this rank's values."""
    if mask is None:
        mean, variance = tf.nn.moments(inputs, list(axes))
        count = tf.cast(tf.size(inputs), tf.float64) / tf.cast(tf.size(mean), tf.float64)
        return tf.fill(tf.shape(mean), count), mean, variance
    valid = tf.broadcast_to(tf.cast(mask, tf.bool), tf.shape(inputs))
    kept = tf.where(valid, inputs, tf.zeros_like(inputs))
    count = tf.reduce_sum(tf.cast(valid, inputs.dtype), axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(kept, axes, keepdims=True), count)
    squares = tf.where(valid, tf.square(inputs - mean), tf.zeros_like(inputs))
    variance = tf.math.divide_no_nan(tf.reduce_sum(squares, axes, keepdims=True), count)
    shape = tf.boolean_mask(tf.shape(inputs), [i not in axes for i in range(inputs.shape.rank)])
    static = [inputs.shape[i] for i in range(inputs.shape.rank) if i not in axes]
    parts = [tf.ensure_shape(tf.reshape(t, shape), static) for t in (count, mean, variance)]
    return tf.cast(parts[0], tf.float64), parts[1], parts[2]
