"""The weights of a model whose stages are in different processes: where they are, whole again."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from launcher.worker import spool
from launcher.worker.exchange.algorithms.mailbox import Mailbox, Pending
from launcher.worker.pipeline.keras_graph import Graph, drop_value, set_value

WEIGHTS = 1 << 62  # in the tags of messages with weights, which no step's messages have
VARIABLE_BITS = 20
IN_FLIGHT_BYTES = 64 << 20  # copies of weights that are on their way to another rank


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
    for rank, theirs in enumerate(variables):
        if rank:
            send_some(mailbox, rank, map(_array, theirs), step)


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


def send_some(mailbox: Mailbox, to: int, arrays: Iterable[Any], step: int) -> None:
    """Sends arrays to a rank, a few at a time; blocks until all have left.

    Args:
        mailbox: to the other ranks.
        to: a rank.
        arrays: each is made when it is its turn, and let go of when it has left.
        step: a number that no other transfer of weights has.
    """
    departing: deque[tuple[Pending, int]] = deque()
    in_flight_bytes = 0
    for i, array in enumerate(arrays):
        data = array.reshape(-1).view(np.uint8)
        departing.append((mailbox.send(to, _tag(step, i), data), data.nbytes))
        in_flight_bytes += data.nbytes
        while in_flight_bytes > IN_FLIGHT_BYTES:
            pending, n_bytes = departing.popleft()
            pending.wait()
            in_flight_bytes -= n_bytes
    for pending, _ in departing:
        pending.wait()


def receive(
    mailbox: Mailbox,
    source: int,
    like: Sequence[Any],
    step: int,
    rooms: Sequence[Any] | None = None,
) -> Iterator[Any]:
    """Arrays from a rank, of the shapes and dtypes of some variables; blocks for each.

    Args:
        mailbox: to the other ranks.
        source: a rank.
        like: the variables.
        step: a number that no other transfer of weights has.
        rooms: bytes for each of them; new memory where they are not given.
    """
    for i, variable in enumerate(like):
        data = np.empty(_n_bytes(variable), np.uint8) if rooms is None else rooms[i]
        mailbox.receive(source, _tag(step, i), data).wait()
        yield _typed(data, variable)


def received(mailbox: Mailbox, source: int, like: Sequence[Any], step: int) -> list[Any]:
    """As `receive`, all of them, to be kept: in a file where they are large."""
    return list(receive(mailbox, source, like, step, spool.rooms(list(map(_n_bytes, like)))))


def copies(variables: Sequence[Any]) -> list[Any]:
    """Copies of variables' values, in a file where they are large."""
    rooms = spool.rooms(list(map(_n_bytes, variables)))
    found = [_typed(room, variable) for room, variable in zip(rooms, variables, strict=True)]
    for array, variable in zip(found, variables, strict=True):
        array[...] = variable.numpy()
    return found


def receive_into(mailbox: Mailbox, source: int, variables: Sequence[Any], step: int) -> None:
    """Sets variables to what a rank sends; blocks until all has come."""
    for variable, value in zip(variables, receive(mailbox, source, variables, step), strict=True):
        set_value(variable, value)


def _arrays(variables: Sequence[Any]) -> list[Any]:
    return list(map(_array, variables))


def _array(variable: Any) -> Any:
    return np.ascontiguousarray(variable.numpy())


def _dtype(variable: Any) -> Any:
    return np.dtype(getattr(ml_dtypes, variable.dtype, variable.dtype))


def _n_bytes(variable: Any) -> int:
    return int(math.prod(variable.shape) * _dtype(variable).itemsize)


def _typed(data: Any, like: Any) -> Any:
    """Bytes as an array of a variable's shape and dtype."""
    return data.view(_dtype(like)).reshape(like.shape)


def _tag(step: int, variable: int) -> int:
    return WEIGHTS | step << VARIABLE_BITS | variable
