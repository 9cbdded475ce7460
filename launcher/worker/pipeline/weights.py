"""The weights of a model whose stages are in different processes: where they are, whole again."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from launcher.worker.exchange.algorithms.mailbox import Mailbox
from launcher.worker.pipeline.keras_graph import Graph, drop_value, set_value

WEIGHTS = 1 << 62  # in the tags of messages with weights, which no step's messages have
VARIABLE_BITS = 20


def stage_variables(graph: Graph, first: int, stop: int) -> list[Any]:
    """The variables of the layers that are called from `first` to before `stop`, each once."""
    called = [variable for call in graph.calls[first:stop] for variable in call.variables]
    return list({id(variable): variable for variable in called}.values())


def drop_others(graph: Graph, first: int, stop: int) -> None:
    """Frees the memory of all variables that the stage does not need."""
    own = {id(variable) for variable in stage_variables(graph, first, stop)}
    for variable in stage_variables(graph, 0, len(graph.calls)):
        if id(variable) not in own:
            drop_value(variable)


def collect(mailbox: Mailbox, graph: Graph, cuts: Sequence[int], step: int) -> None:
    """Makes rank 0's model whole: it gets every variable from the rank that trains it.

    All ranks call it after the same step; it blocks until rank 0 has all. The others' models stay
    as they are. Random states come along, since they are variables of layers.

    Args:
        mailbox: rank k has stage k.
        graph: this rank's model.
        cuts: between the stages.
        step: how many steps were made; the weights of a step are collected once.
    """
    bounds = list(pairwise([0, *cuts, len(graph.calls)]))
    if mailbox.rank:
        _send(mailbox, stage_variables(graph, *bounds[mailbox.rank]), step)
        return
    for rank in range(1, mailbox.world_size):
        _receive(mailbox, rank, stage_variables(graph, *bounds[rank]), step)


def _send(mailbox: Mailbox, variables: Sequence[Any], step: int) -> None:
    arrays = [np.ascontiguousarray(variable.numpy()) for variable in variables]
    departing = [
        mailbox.send(0, _tag(step, i), array.reshape(-1).view(np.uint8))
        for i, array in enumerate(arrays)
    ]
    for pending in departing:
        pending.wait()


def _receive(mailbox: Mailbox, rank: int, variables: Sequence[Any], step: int) -> None:
    for i, variable in enumerate(variables):
        dtype = np.dtype(getattr(ml_dtypes, variable.dtype, variable.dtype))
        data = np.empty(math.prod(variable.shape) * dtype.itemsize, np.uint8)
        mailbox.receive(rank, _tag(step, i), data).wait()
        set_value(variable, data.view(dtype).reshape(variable.shape))


def _tag(step: int, variable: int) -> int:
    return WEIGHTS | step << VARIABLE_BITS | variable
