"""What each layer of a model takes: time, memory, and what goes over a cut after it."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from launcher.worker.model_facts import item_bytes
from launcher.worker.pipeline.costs import LayerCost, ModelCost
from launcher.worker.pipeline.keras_graph import Graph
from launcher.worker.pipeline.stage import Answers, Stage

# A process with a quota of a processor works for some of each tenth of a second, and waits for the
# rest of it: so the mean over several of them counts.
N_REPEATS, MEASURED_S = 5, 0.3
ALL_S = 8.0  # for all layers together, where there are many


def measured_cost(
    graph: Graph, inputs: Sequence[Any], targets: Any, sample_weight: Any = None
) -> ModelCost:
    """Runs each layer a few times on one micro-batch, alone; no weight is changed by that.

    What the first layers give is what the next ones get, so layers see data as in training. States
    that a forward pass changes (moving averages, metrics) are put back. A layer alone pays for
    being started, which layers in one stage pay once; so that is told apart.

    Args:
        graph: the model.
        inputs: a micro-batch of the model's inputs.
        targets: its targets.
        sample_weight: its rows' weights, if they have any.
    """
    states = [variable for variable in graph.model.variables if not variable.trainable]
    before = [variable.numpy() for variable in states]
    found, tensors = [], list(inputs)
    for number in range(len(graph.calls)):
        stage = Stage(graph, number, number + 1)
        answers = Answers(targets, sample_weight) if stage.is_last else None
        given = tensors if number else stage.chosen(inputs)
        measured_s = min(MEASURED_S, ALL_S / len(graph.calls))
        compute_s, tensors = _timed(stage, given, answers, measured_s)
        found.append(_cost(graph, number, stage, len(inputs[0]), compute_s))
    for variable, value in zip(states, before, strict=True):
        variable.assign(value)
    graph.model.reset_metrics()
    pass_s = min(cost.compute_s for cost in found)
    layers = [replace(cost, compute_s=cost.compute_s - pass_s) for cost in found]
    return ModelCost(tuple(layers), pass_s)


def _timed(
    stage: Stage, inputs: Sequence[Any], answers: Answers | None, measured_s: float
) -> tuple[float, list[Any]]:
    """Mean time of a forward and backward pass, and what goes over the cut behind."""
    given = _both_passes(stage, inputs, answers)  # compiles
    begun, n_passes = time.perf_counter(), 0
    while n_passes < N_REPEATS or time.perf_counter() - begun < measured_s:
        given = _both_passes(stage, inputs, answers)
        n_passes += 1
    return (time.perf_counter() - begun) / n_passes, given


def _both_passes(stage: Stage, inputs: Sequence[Any], answers: Answers | None) -> list[Any]:
    """A forward and a backward pass; returns what goes over the cut behind."""
    passed = stage.forward(inputs, 1.0, answers=answers)
    floats = [output for output in passed.outputs if output.dtype.is_floating]
    gradients = stage.backward(passed, [np.ones_like(output) for output in floats])
    _ = [gradient.numpy() for gradient in gradients]
    stage.forget()
    return passed.outputs


def _update_s(stage: Stage) -> float:
    """Mean time of changing the weights; they are put back."""
    if not stage.variables:
        return 0.0
    before = [variable.numpy() for variable in stage.variables]
    stage.update_by([np.zeros_like(value) for value in before])  # compiles
    begun = time.perf_counter()
    for _ in range(N_REPEATS):
        stage.update_by([np.zeros_like(value) for value in before])
    update_s = (time.perf_counter() - begun) / N_REPEATS
    for variable, value in zip(stage.variables, before, strict=True):
        variable.assign(value)
    return update_s


def _cost(graph: Graph, number: int, stage: Stage, n_rows: int, compute_s: float) -> LayerCost:
    call, cut = graph.calls[number], number + 1
    return LayerCost(
        call.name,
        compute_s,
        _update_s(stage),
        stage.state_bytes,
        n_rows * _row_bytes([*call.inputs, *call.outputs]),
        n_rows * _row_bytes(graph.crossing(cut)),
        graph.why_not(cut) if cut < len(graph.calls) else None,
    )


def _row_bytes(tensors: Sequence[Any]) -> int:
    """Bytes of an example; sizes that are not known count once."""
    return sum(
        item_bytes(tensor) * math.prod(size or 1 for size in tensor.shape[1:]) for tensor in tensors
    )
