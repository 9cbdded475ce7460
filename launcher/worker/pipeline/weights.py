"""The weights of a model whose stages are in different processes: where they are, whole again."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from launcher.worker.exchange.algorithms.mailbox import Mailbox, Pending
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
        step: a number that no other transfer of weights has.
    """
    _transfer(mailbox, graph, cuts, step, to=[0])


def exchange(mailbox: Mailbox, graph: Graph, cuts: Sequence[int], step: int) -> None:
    """Makes all ranks' models whole, as `collect` does it for rank 0."""
    _transfer(mailbox, graph, cuts, step, to=range(mailbox.world_size))


def _transfer(
    mailbox: Mailbox, graph: Graph, cuts: Sequence[int], step: int, to: Sequence[int]
) -> None:
    variables = variables_by_rank(graph, cuts)
    own = _arrays(variables[mailbox.rank])
    departing = [
        pending for rank in to if rank != mailbox.rank for pending in send(mailbox, rank, own, step)
    ]
    if mailbox.rank in to:
        for rank, wanted in enumerate(variables):
            if rank != mailbox.rank:
                receive_into(mailbox, rank, wanted, step)
    for pending in departing:
        pending.wait()


def spread(mailbox: Mailbox, graph: Graph, cuts: Sequence[int], step: int) -> None:
    """Gives each rank what rank 0, whose model is whole, has of its stage; collective."""
    variables = variables_by_rank(graph, cuts)
    if mailbox.rank:
        receive_into(mailbox, 0, variables[mailbox.rank], step)
        return
    departing = [
        pending
        for rank, theirs in enumerate(variables)
        if rank
        for pending in send(mailbox, rank, _arrays(theirs), step)
    ]
    for pending in departing:
        pending.wait()


def variables_by_rank(graph: Graph, cuts: Sequence[int]) -> list[list[Any]]:
    """The variables of each rank's stage."""
    bounds = pairwise([0, *cuts, len(graph.calls)])
    return [stage_variables(graph, first, stop) for first, stop in bounds]


def send(mailbox: Mailbox, to: int, arrays: Sequence[Any], step: int) -> list[Pending]:
    """Sends arrays to a rank; returns at once, with what is to be waited for."""
    return [
        mailbox.send(to, _tag(step, i), array.reshape(-1).view(np.uint8))
        for i, array in enumerate(arrays)
    ]


def receive(mailbox: Mailbox, source: int, like: Sequence[Any], step: int) -> Iterator[Any]:
    """Arrays from a rank, of the shapes and dtypes of some variables; blocks for each."""
    for i, variable in enumerate(like):
        dtype = np.dtype(getattr(ml_dtypes, variable.dtype, variable.dtype))
        data = np.empty(math.prod(variable.shape) * dtype.itemsize, np.uint8)
        mailbox.receive(source, _tag(step, i), data).wait()
        yield data.view(dtype).reshape(variable.shape)


def receive_into(mailbox: Mailbox, source: int, variables: Sequence[Any], step: int) -> None:
    """Sets variables to what a rank sends; blocks until all has come."""
    for variable, value in zip(variables, receive(mailbox, source, variables, step), strict=True):
        set_value(variable, value)


def _arrays(variables: Sequence[Any]) -> list[Any]:
    return [np.ascontiguousarray(variable.numpy()) for variable in variables]


def _tag(step: int, variable: int) -> int:
    return WEIGHTS | step << VARIABLE_BITS | variable
