"""Sums metric states and logs over ranks."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from launcher.worker.exchange import Exchange


def metric_variables(metrics: Sequence[Any]) -> list[Any]:
    """The variables that hold the metrics' states, each once."""
    by_id = {id(v): v for metric in metrics for v in metric.variables}
    return list(by_id.values())


@contextlib.contextmanager
def summed(exchange: Exchange, metrics: Sequence[Any]) -> Iterator[None]:
    """Holds all ranks' states in the metrics for a while; collective."""
    variables = metric_variables(metrics)
    own = [variable.numpy() for variable in variables]
    totals = exchange.sum_arrays(own, "metric states")
    for variable, total in zip(variables, totals, strict=True):
        variable.assign(total / world if (world := _divisor(variable, exchange)) > 1 else total)
    try:
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def summed_in_place(exchange: Exchange, variables: Sequence[Any]) -> Iterator[None]:
    """Holds all ranks' states in a metric's variables for a while, inside or outside of a graph."""
    import tensorflow as tf

    own = [tf.convert_to_tensor(variable) for variable in variables]
    totals = exchange.sum_tensors(own, "metric state") if own else []
    for variable, total in zip(variables, totals, strict=True):
        world = _divisor(variable, exchange)
        variable.assign(total / world if world > 1 else total)
    try:
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def _divisor(variable: Any, exchange: Exchange) -> int:
    """A state is summed over ranks unless its metric declares it to be a mean."""
    declared = str(getattr(variable, "aggregation", "sum")).lower()
    return exchange.world_size if declared.endswith("mean") else 1


def weighted_logs(exchange: Exchange, logs: dict[str, Any], weight: float) -> dict[str, Any]:
    """Per-batch values of the last step, combined by the ranks' weights in it; collective.

    Args:
        exchange: sums over ranks.
        logs: by name; what is not a number stays as it is.
        weight: this rank's part of the batch, in [0, 1].
    """
    values = {key: np.asarray(value) for key, value in logs.items()}
    keys = [key for key, value in values.items() if value.dtype.kind in "fiu"]
    own = [
        values[key].astype(np.float64) * weight if weight else np.zeros(values[key].shape)
        for key in keys
    ]
    totals = exchange.sum_arrays(own, "logs")
    kinds = [values[key].dtype if values[key].dtype.kind == "f" else np.float64 for key in keys]
    sums = [total.astype(kind)[()] for total, kind in zip(totals, kinds, strict=True)]
    return {**logs, **dict(zip(keys, sums, strict=True))}
