"""The metrics of a model in stages: the last stage counts, and all ranks show the same numbers."""

from typing import Any

import numpy as np
import tensorflow as tf

from launcher.worker.metric_sums import metric_variables


class MetricStates:
    """A model's metric states as one row of numbers.

    Args:
        model: whose metrics have all their variables.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._variables = model, metric_variables(model.metrics)
        self._row = tf.function(self._packed, autograph=False)
        self._results = tf.function(model.get_metrics_result, autograph=False)
        self._set = tf.function(self._unpack, autograph=False)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(variable.value.shape.num_elements() for variable in self._variables)

    def row(self) -> Any:
        """The states, float64, `(size,)`."""
        return self._row().numpy()

    def logs(self) -> dict[str, Any]:
        """What `fit` shows of the states, by name."""
        found: dict[str, Any] = self._results()
        return found

    def take(self, row: Any) -> None:
        """Goes on with another rank's states."""
        self._set(tf.constant(row, tf.float64))

    def _packed(self) -> Any:
        flat = [tf.cast(tf.reshape(v.value, [-1]), tf.float64) for v in self._variables]
        return tf.concat(flat, 0) if flat else tf.zeros([0], tf.float64)

    def _unpack(self, row: Any) -> None:
        sizes = [int(np.prod(variable.shape)) for variable in self._variables]
        for variable, part in zip(self._variables, tf.split(row, sizes), strict=True):
            variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))
