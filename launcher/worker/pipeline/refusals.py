"""Which models cannot be trained in stages, and why."""

from collections.abc import Iterator
from typing import Any

import keras
from keras.src import tree

from launcher.errors import ScriptError
from launcher.worker.pipeline.keras_graph import (
    Graph,
    has_known_input,
    inner_layers,
    is_functional,
)

MEANS = ("mean", "sum_over_batch_size")
OVER_THE_BATCH = ("dice", "tversky", "circle")  # losses that weigh a batch's rows together
OWN_STEPS = ("train_step", "compute_loss", "call")


class UnsplittableError(ScriptError):
    """The model cannot be cut into stages, or not trained that way.

    Args:
        reason: what stands in the way.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"The model cannot be split into stages on several nodes: {self.reason}. "
            "Train it data-parallel (--parallelism data)."
        )


def readable_graph(model: Any) -> Graph:
    """The model's layers in order.

    Raises:
        UnsplittableError: the model does not tell how its layers follow each other, or is trained
            in a way that needs the whole of it in one place.
    """
    for reason in (*_unknown_structure(model), *_unknown_training(model)):
        raise UnsplittableError(reason)
    graph = Graph(model)
    for reason in _undivided(graph):
        raise UnsplittableError(reason)
    return graph


def _unknown_structure(model: Any) -> Iterator[str]:
    if not isinstance(model, keras.Model):
        yield f"{type(model).__module__}.{type(model).__name__} is no model of Keras 3"
    elif not is_functional(model):
        yield f"the order of its layers is known to the code of {type(model).__name__} only"
    elif not has_known_input(model):
        yield "its input's shape is not known before the first batch; begin it with keras.Input"
    for name in OWN_STEPS:
        own = getattr(type(model), name, None)
        if own is not None and not own.__module__.startswith("keras."):
            yield f"{type(model).__name__} has a {name} of its own"


def _unknown_training(model: Any) -> Iterator[str]:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or getattr(model, "loss", None) is None:
        yield "it was not compiled with a loss and an optimizer"
        return
    if optimizer.global_clipnorm is not None:
        yield "global_clipnorm needs the gradients of all stages before any is applied"
    if optimizer.use_ema:
        yield "use_ema keeps averages that are put in place when fit ends"
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor:
        yield "a scaled loss (float16) has to skip steps in all stages at once"
    for loss in tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", MEANS[0])
        if reduction not in MEANS:
            yield f"the loss {loss.name} is no mean over the batch (reduction {reduction!r})"
        elif getattr(loss, "ignore_class", None) is not None:
            yield f"the loss {loss.name} ignores a class, so rows count for more or less than one"
        elif _loss_name(loss) in OVER_THE_BATCH:
            yield f"the loss {_loss_name(loss)} is no mean over the batch's rows"


def _loss_name(loss: Any) -> str:
    """The name of a loss that is a text, a function or an object of a class."""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return str(name).lower()


def _undivided(graph: Graph) -> Iterator[str]:
    if graph.has_masked_output:
        yield "its output has a mask, so micro-batches count for more or less than their rows"
    for call in graph.calls:
        if getattr(call.layer, "stateful", False):
            yield f"{call.name} is stateful, so batches cannot be cut into micro-batches"
    known = {id(variable) for call in graph.calls for variable in call.variables}
    for variable in graph.model.trainable_variables:
        if id(variable) not in known:
            yield f"the weight {variable.path} belongs to none of its layers"


def differences(graph: Graph) -> tuple[str, ...]:
    """What makes the curve of a split model another one than one machine's."""
    found: dict[str, None] = {}
    for layer in (inner for call in graph.calls for inner in inner_layers(call.layer)):
        kind = type(layer).__name__
        if "BatchNormalization" in kind and layer.trainable:
            found["BatchNormalization takes its statistics from a micro-batch"] = None
        if "Dropout" in kind or getattr(layer, "dropout", None):
            found["each micro-batch draws dropout of its own"] = None
        if kind.startswith("Random") or "Noise" in kind:
            found["each micro-batch draws augmentation of its own"] = None
    return tuple(found)
