"""A Keras 3 model as a sequence of layer calls: every private name of it that splitting touches."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.backend import KerasTensor, compute_output_spec, get_keras_mask, standardize_dtype
from keras.src.models import Functional


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a layer, or of a function of `keras.ops`.

    Attributes:
        layer: what is called.
        inputs: the symbolic tensors that it takes.
        outputs: and those that it gives.
    """

    layer: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The layer's name."""
        return str(self.layer.name)

    @property
    def variables(self) -> list[Any]:
        """The layer's weights, and the state of its random numbers."""
        return list(getattr(self.layer, "variables", []))


class Graph:
    """A model's calls in an order in which they can be made.

    A *cut* is a number from 0 to the number of calls: it lies before that call.

    Args:
        model: a sequential or functional model whose input shapes are known.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.inputs = _distinct(tree.flatten(model.inputs))
        self.outputs = _distinct(tree.flatten(model.outputs))
        self.calls = _ordered_calls(self.inputs, self.outputs)
        self._last_use = self._last_uses()
        self._made_at = {id(tensor): 0 for tensor in self.inputs}
        for number, call in enumerate(self.calls):
            self._made_at.update((id(tensor), number + 1) for tensor in call.outputs)

    def _last_uses(self) -> dict[int, int]:
        """By tensor: the number of the last call that takes it; for outputs, after all of them."""
        uses = {
            id(tensor): number for number, call in enumerate(self.calls) for tensor in call.inputs
        }
        return uses | {id(tensor): len(self.calls) for tensor in self.outputs}

    def crossing(self, cut: int) -> tuple[Any, ...]:
        """The tensors that are made before a cut, or are inputs, and used after it, in order."""
        if cut == len(self.calls):
            return self.outputs
        made = [*self.inputs, *(tensor for call in self.calls[:cut] for tensor in call.outputs)]
        return tuple(t for t in made if self._last_use.get(id(t), -1) >= cut)

    def why_not(self, cut: int) -> str | None:
        """Why the model cannot be cut here; None where it can."""
        for tensor in self.crossing(cut):
            name = self._maker(tensor)
            if get_keras_mask(tensor) is not None:
                return f"what {name} gives has a mask, which does not travel"
            if any(size is None for size in tensor.shape[1:]):
                return f"what {name} gives differs in size from batch to batch"
            if getattr(tensor, "sparse", False):
                return f"what {name} gives is sparse"
        if shared := self._shared_across(cut):
            return f"{shared} is used on both sides of the cut"
        return None

    def _maker(self, tensor: Any) -> str:
        made_at = self._made_at[id(tensor)]
        return self.calls[made_at - 1].name if made_at else "an input"

    def _shared_across(self, cut: int) -> str | None:
        """A layer whose variables are used on both sides of a cut."""
        before = {id(variable) for call in self.calls[:cut] for variable in call.variables}
        for call in self.calls[cut:]:
            if any(id(variable) in before for variable in call.variables):
                return call.name
        return None

    @property
    def has_masked_output(self) -> bool:
        """Whether some of an output's elements do not count in the loss."""
        return any(get_keras_mask(tensor) is not None for tensor in self.outputs)

    def stage_model(self, first: int, stop: int) -> Any:
        """A model of the calls from `first` to before `stop`, which shares the layers' weights.

        It takes, and gives, lists of tensors: those of `used_inputs` and `made_outputs`.
        """
        return keras.Model(
            list(self.used_inputs(first, stop)), list(self.made_outputs(first, stop))
        )

    def used_inputs(self, first: int, stop: int) -> tuple[Any, ...]:
        """The tensors that come over the cut before `first` and are used before `stop`."""
        used = {id(tensor) for call in self.calls[first:stop] for tensor in call.inputs}
        return tuple(tensor for tensor in self.crossing(first) if id(tensor) in used)

    def made_outputs(self, first: int, stop: int) -> tuple[Any, ...]:
        """The tensors that go over the cut before `stop` and are made from `first` on."""
        return tuple(t for t in self.crossing(stop) if self._made_at[id(t)] > first)


def _ordered_calls(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Call, ...]:
    """The calls that lead to the outputs, each after those whose results it takes.

    A branch is finished before the next one is begun, so that few tensors are alive at a time.
    """
    given = {id(tensor) for tensor in inputs}
    calls: dict[int, Call] = {}
    stack = [(tensor, False) for tensor in reversed(outputs)]
    while stack:
        tensor, is_ready = stack.pop()
        if id(tensor) in given:
            continue
        layer, node_index, _ = tensor._keras_history
        node = layer._inbound_nodes[node_index]
        if id(node) in calls:
            continue
        if is_ready:
            calls[id(node)] = Call(layer, _distinct(node.input_tensors), tuple(node.outputs))
            continue
        stack.append((tensor, True))
        stack += [(needed, False) for needed in reversed(node.input_tensors)]
    return tuple(calls.values())


def _distinct(tensors: Sequence[Any]) -> tuple[Any, ...]:
    return tuple({id(tensor): tensor for tensor in tensors}.values())


def is_functional(model: Any) -> bool:
    """Whether the model tells how its layers follow each other."""
    return isinstance(model, (Functional, keras.Sequential))


def has_known_input(model: Any) -> bool:
    """Whether the shapes of the model's inputs are known already."""
    return not isinstance(model, keras.Sequential) or model._functional is not None


def build_deferred(model: Any, inputs: Any) -> None:
    """Builds a sequential model that does not begin with an Input by what `fit` is given."""
    if not isinstance(model, keras.Sequential) or has_known_input(model):
        return
    if isinstance(inputs, tf.data.Dataset):
        spec = inputs.element_spec
        inputs = spec[0] if isinstance(spec, tuple) else spec
    shape = getattr(inputs, "shape", None)
    if shape is not None and len(shape) > 1:
        model.build((None, *shape[1:]))


def inner_layers(layer: Any) -> list[Any]:
    """A layer, or model, and all that it is made of; nothing for a function of `keras.ops`."""
    return list(layer._flatten_layers()) if isinstance(layer, keras.Layer) else []


def compile_loss(model: Any, targets: Any, outputs: Any, sample_weight: Any, share: Any) -> Any:
    """The loss that `compile` was given, without what layers add to it.

    Where there are several outputs, `fit` also shows the mean of each one's loss over the batches;
    there, a micro-batch counts as its share of a batch.
    """
    with contextlib.ExitStack() as stack:
        for metric in model._compile_loss.metrics:
            stack.enter_context(_counted_as(share, metric))
        return model._compile_loss(targets, outputs, sample_weight)


@contextlib.contextmanager
def _counted_as(share: Any, metric: Any) -> Iterator[None]:
    original = metric.update_state

    def update_state(values: Any, sample_weight: Any = None) -> Any:  # noqa: ARG001
        return original(values, sample_weight=share)

    object.__setattr__(metric, "update_state", update_state)
    try:
        yield
    finally:
        object.__delattr__(metric, "update_state")


def count_loss(model: Any, loss: Any, n_rows: Any) -> None:
    """Counts a loss in the mean that an epoch's `loss` is."""
    model._loss_tracker.update_state(loss, sample_weight=n_rows)


def build_loss_and_metrics(model: Any, targets: Any, sample_weight: Any) -> None:
    """Creates the variables of loss and metrics, which must not happen inside a function.

    Args:
        model: compiled.
        targets: of any batch.
        sample_weight: of the same.
    """
    given = tree.map_structure(_symbolic, (targets, sample_weight))
    outputs = tree.map_structure(lambda t: KerasTensor(t.shape, t.dtype), _outputs_struct(model))

    def evaluate(targets: Any, sample_weight: Any, outputs: Any) -> Any:
        model._compile_loss(targets, outputs, sample_weight)
        return model.compute_metrics(None, targets, outputs, sample_weight=sample_weight)

    compute_output_spec(evaluate, *given, outputs)


def _symbolic(value: Any) -> Any:
    if value is None:
        return None
    return KerasTensor((None, *value.shape[1:]), standardize_dtype(value.dtype))


def as_model_outputs(model: Any, by_tensor: dict[int, Any]) -> Any:
    """Outputs in the structure in which the model gives them, which `by_tensor` has by identity."""
    return tree.map_structure(lambda tensor: by_tensor[id(tensor)], _outputs_struct(model))


def _outputs_struct(model: Any) -> Any:
    return (getattr(model, "_functional", None) or model)._outputs_struct


def unpacked(model: Any, data: Any) -> tuple[list[Any], Any, Any]:
    """Inputs in order, targets and sample weights of a batch that `fit` has drawn."""
    data = tree.map_structure(
        lambda x: None if isinstance(x, tf.experimental.Optional) else x, data
    )
    x, targets, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return _flat_inputs(model, x), targets, sample_weight


def _flat_inputs(model: Any, inputs: Any) -> list[Any]:
    """What `fit` was given as the model's inputs, as tensors in the order of `model.inputs`."""
    return list((getattr(model, "_functional", None) or model)._standardize_inputs(inputs))


def drop_value(variable: Any) -> None:
    """Frees a variable's memory; it has no value until `set_value`.

    It stays the same variable of TensorFlow, since functions that were traced before hold on to it.
    """
    _put(variable, tf.zeros([0], variable.value.dtype))


def set_value(variable: Any, value: Any) -> None:
    """Gives a variable a value, whether it has one or not."""
    _put(variable, tf.convert_to_tensor(value, variable.value.dtype))


def _put(variable: Any, tensor: Any) -> None:
    """Assigns a tensor of any shape, which `tf.Variable.assign` would not do."""
    tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=tensor, validate_shape=False)
