"""Measures, in the profiler's process, what training a script's model in stages would take."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from launcher.worker.exchange.algorithms.call import parts
from launcher.worker.fits import FitCall
from launcher.worker.memory import free_bytes
from launcher.worker.model_facts import item_bytes
from launcher.worker.pipeline.costs import LayerProfile
from launcher.worker.pipeline.keras_graph import Graph, build_deferred
from launcher.worker.pipeline.layer_times import measured_cost
from launcher.worker.pipeline.optimizer_state import places
from launcher.worker.pipeline.part import Batch
from launcher.worker.pipeline.refusals import UnsplittableError, differences, readable_graph
from launcher.worker.sharing import Shared

Train = Callable[[], Any]
Apart = Callable[[Callable[[], LayerProfile]], LayerProfile]

MICRO_BATCHES = 8
# As `policies.parallelism` has it: what makes stages worth a look, and what a process leaves free.
FAR_LARGER, USABLE = 4.0, 0.85


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of a script's first `fit`.

    Attributes:
        rows: of a batch; 0 where none was drawn.
        steps: of an epoch, where the data tell.
    """

    profile: LayerProfile
    rows: int = 0
    steps: int | None = None


class _DrawnError(BaseException):
    """Ends a `fit` at its first batch."""

    def __init__(self, data: Any, steps: int | None) -> None:
        super().__init__()
        self.data, self.steps = data, steps


def layer_profile(
    call: FitCall,
    train: Train,
    apart: Apart,
    *,
    is_asked: bool,
) -> Found:
    """What each layer of the model takes.

    Args:
        call: the script's `fit`; its model is left as it was.
        train: carries it out, as far as to its first batch.
        apart: does something that is no part of the script's training.
        is_asked: whether the model is to be split in any case; else only where it may pay.

    Raises:
        UnsplittableError: it is asked for, and the model cannot be split.
    """
    try:
        return _found(call, train, apart, is_asked=is_asked)
    except UnsplittableError as error:
        if is_asked:
            raise
        return Found(LayerProfile(refusal=error.reason))


def _found(call: FitCall, train: Train, apart: Apart, *, is_asked: bool) -> Found:
    build_deferred(call.model, call.arguments.get("x"))
    graph = readable_graph(call.model)
    places(call.model.optimizer, call.model.trainable_variables)
    drawn = _first_batch(call, train)
    batch = Batch.drawn(call.model, drawn.data)
    profile = apart(lambda: _measured(graph, batch, is_asked=is_asked))
    return Found(profile, batch.n_rows, drawn.steps)


def _measured(graph: Graph, batch: Batch, *, is_asked: bool) -> LayerProfile:
    model, n_rows = graph.model, batch.n_rows
    n_micro = min(MICRO_BATCHES, n_rows)
    weights = sum(_bytes(variable) for variable in model.variables)
    free = free_bytes()
    memory = None if free is None else free + weights
    fits_here = memory is None or _whole_bytes(graph, n_rows) <= USABLE * memory
    if not is_asked and fits_here and not _may_pay(graph, n_rows):
        text = "its gradients are not far larger than what would cross a cut"
        return LayerProfile(memory_bytes=memory, refusal=text)
    rows = parts(n_rows, n_micro)[-1]  # the largest
    answers = batch.answers(rows)
    inputs = [x[rows] for x in batch.inputs]
    cost = measured_cost(graph, inputs, answers.targets, answers.sample_weight)
    return LayerProfile(cost, n_micro, memory, differences(graph), None, is_only=not fits_here)


def _first_batch(call: FitCall, train: Train) -> _DrawnError:
    """The first batch that the `fit` draws, and how many there are."""

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            steps.append((self.params or {}).get("steps"))

    def grab(iterator: Any) -> Any:
        data = next(iterator)
        raise _DrawnError(data.data if isinstance(data, Shared) else data, steps[-1])

    steps: list[int | None] = [None]

    before, call.model.train_function = call.model.train_function, grab
    callbacks = call.arguments.get("callbacks")
    call.arguments["callbacks"] = [Watch()]
    try:
        train()
    except _DrawnError as drawn:
        return drawn
    finally:
        call.model.train_function = before
        call.arguments["callbacks"] = callbacks
    raise UnsplittableError("its data are empty")


def _whole_bytes(graph: Graph, n_rows: int) -> int:
    """What training the whole of the model takes: states, gradients, and all activations."""
    trained = list(graph.model.trainable_variables)
    kept = places(graph.model.optimizer, trained)
    states = sum(_bytes(trained[place.weight]) for place in kept if place.weight is not None)
    weights = sum(_bytes(v) for v in graph.model.variables) + sum(map(_bytes, trained))
    rows = sum(_row_bytes(t) for call in graph.calls for t in (*call.inputs, *call.outputs))
    return weights + states + n_rows * rows


def _may_pay(graph: Graph, n_rows: int) -> bool:
    """Whether gradients are far larger than what crosses some cut in a step, there and back."""
    payload = sum(map(_bytes, graph.model.trainable_variables))
    cuts = [cut for cut in range(1, len(graph.calls)) if graph.why_not(cut) is None]
    least = min((sum(map(_row_bytes, graph.crossing(cut))) for cut in cuts), default=None)
    return least is not None and payload >= FAR_LARGER * 2 * n_rows * least


def _bytes(variable: Any) -> int:
    return int(item_bytes(variable) * math.prod(variable.shape))


def _row_bytes(tensor: Any) -> int:
    return int(item_bytes(tensor) * math.prod(size or 1 for size in tensor.shape[1:]))
