"""The optimizers that a model with a `train_step` of its own holds besides the compiled one."""

from collections.abc import Iterable, Iterator
from typing import Any


def other_optimizers(model: Any) -> dict[str, Any]:
    """By the attribute in which the model holds them, such as `d_optimizer` of a GAN."""
    seen = {id(getattr(model, "optimizer", None))}
    found = {}
    for name, value in _held(model):
        if hasattr(type(value), "apply_gradients") and id(value) not in seen:
            seen.add(id(value))
            found[name] = value
    return found


def places(optimizer: Any, model: Any) -> list[int] | None:
    """The numbers of the model's variables that an optimizer trains, in the optimizer's order.

    None if it has none yet, or others besides.
    """
    order = getattr(optimizer, "_trainable_variables_indices", None)  # Keras 3
    order = getattr(optimizer, "_index_dict", order)  # legacy Keras
    if not order:
        return None
    keys = [optimizer._var_key(variable) for variable in model.variables]
    place_by_index = {order[key]: place for place, key in enumerate(keys) if key in order}
    if len(place_by_index) < len(order):
        return None
    return [place_by_index[index] for index in range(len(order))]


def _held(model: Any) -> Iterator[tuple[str, Any]]:
    """What a model's attributes are, and what those hold that are lists or dicts."""
    for name, value in list(vars(model).items()):
        yield name, value
        inside: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            inside = value.items()
        elif isinstance(value, (list, tuple)):
            inside = enumerate(value)
        for key, item in inside:
            yield f"{name}.{key}", item
