"""Keeps variables the same on all ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from launcher.worker.exchange import Exchange


def broadcast(exchange: Exchange, variables: Sequence[Any]) -> bool:
    """Gives all ranks rank 0's values; collective.

    Returns:
        Whether it was done: not where a rank has no variables, or another number of them.
    """
    n_variables = np.zeros(exchange.world_size, np.int64)
    n_variables[exchange.rank] = len(variables)
    (n_variables,) = exchange.sum_arrays([n_variables], "number of weights")
    if not n_variables.all() or np.ptp(n_variables):
        return False
    own = [np.asarray(variable.numpy()) for variable in variables]
    if exchange.rank != 0:
        own = [np.zeros_like(array) for array in own]
    values = exchange.sum_arrays(own, "weights of worker 0")
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return True


def average(exchange: Exchange, variables: Sequence[Any], weight: float) -> None:
    """Gives all ranks the weighted mean of their values; collective.

    Args:
        exchange: sums over ranks.
        variables: floats.
        weight: of this rank; sums to 1 over ranks.
    """
    own = [variable.numpy() * np.float32(weight) for variable in variables]
    means = exchange.sum_arrays(own, "moving statistics")
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)
