"""Read and write the state of training: weights, optimizer, callbacks, random generators."""

import contextlib
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from launcher.errors import RecordError
from launcher.worker.other_optimizers import other_optimizers, places
from launcher.worker.snapshot import is_plain

# Attributes of a callback that belong to the process, not to the training. Keras 3 turns the
# sign of `min_delta` when it finds `monitor_op`, which cannot be kept: it will do so again.
NOT_STATE = {
    "model", "_model", "params", "_params", "validation_data", "append_header", "min_delta",
}  # fmt: skip
LARGE_BYTES = 1 << 20  # of data that a callback was given; less is not worth a look
# Callbacks that find their own way (their files are restored as artifacts).
STATELESS = {"CSVLogger", "BackupAndRestore", "ProgbarLogger", "TensorBoard"}


def model_state(model: Any) -> dict[str, Any]:
    """Weights and optimizer state as NumPy arrays; creates no variable."""
    optimizer = getattr(model, "optimizer", None)
    return {
        "model": [np.asarray(variable) for variable in model.variables],
        "optimizer": [np.asarray(variable) for variable in _optimizer_variables(optimizer)],
        "learning_rate": learning_rate(optimizer),
        "others": _other_states(model),
    }


def _other_states(model: Any) -> list[dict[str, Any]]:
    """The optimizers that a `train_step` of the script's own applies."""
    found = [(name, each, places(each, model)) for name, each in other_optimizers(model).items()]
    return [
        {
            "name": name,
            "trained": trained,
            "variables": [np.asarray(variable) for variable in _optimizer_variables(optimizer)],
            "learning_rate": learning_rate(optimizer),
        }
        for name, optimizer, trained in found
        if trained is not None
    ]


def load_model_state(model: Any, state: dict[str, Any]) -> None:
    """Write what `model_state` read into a built model.

    Raises:
        RecordError: the script's model is not the one that was kept.
    """
    optimizer: Any = getattr(model, "optimizer", None)
    if len(state["optimizer"]) > len(_optimizer_variables(optimizer)) and _can_be_built(optimizer):
        optimizer.build(model.trainable_variables)
    _assign(model.variables, state["model"], "weights")
    _assign(_optimizer_variables(optimizer), state["optimizer"], "optimizer variables")
    _set_learning_rate(optimizer, state["learning_rate"])
    others = other_optimizers(model)
    for kept in state.get("others", ()):  # earlier versions kept none
        _load_other(others.get(kept["name"]), kept, model)


def _load_other(optimizer: Any, kept: dict[str, Any], model: Any) -> None:
    if optimizer is not None and _can_be_built(optimizer):
        optimizer.build([model.variables[place] for place in kept["trained"]])
    _assign(_optimizer_variables(optimizer), kept["variables"], f"variables of {kept['name']}")
    _set_learning_rate(optimizer, kept["learning_rate"])


def _set_learning_rate(optimizer: Any, rate: float | None) -> None:
    if rate is not None and learning_rate(optimizer) not in (None, rate):
        assert optimizer is not None
        with contextlib.suppress(TypeError):  # legacy Keras: a schedule decides
            optimizer.learning_rate = rate


def given_data(callbacks: Sequence[Any]) -> dict[tuple[int, str], int]:
    """Checksums of the large data that the script has given to its callbacks, before a `fit`.

    Such as what a callback is to predict at each epoch's end. The script will give it again, so
    no checkpoint needs it as long as it does not change.

    Returns:
        By the callback's `id` and the attribute's name.
    """
    return {
        (id(callback), name): _checksum(value)
        for callback in callbacks
        for name, value in vars(callback).items()
        if _is_large(value)
    }


def callback_states(
    callbacks: Sequence[Any], given: Mapping[tuple[int, str], int] | None = None
) -> list[dict[str, Any]]:
    """Copies of the plain attributes of each callback (counters, best values, lists of arrays).

    Args:
        given: what `given_data` has found, of which only what has changed is kept.
    """
    here = str(Path.cwd())

    def is_as_given(callback: Any, name: str, value: Any) -> bool:
        checksum = (given or {}).get((id(callback), name))
        return checksum is not None and _is_large(value) and _checksum(value) == checksum

    return [
        {
            "class": type(callback).__name__,
            "attributes": {
                name: _copied(value)
                for name, value in vars(callback).items()
                if name not in NOT_STATE
                and is_plain(value)
                and not _names(value, here)
                and not is_as_given(callback, name, value)
            },
        }
        for callback in callbacks
        if type(callback).__name__ not in STATELESS
    ]


def load_callback_states(callbacks: Sequence[Any], states: Sequence[dict[str, Any]]) -> None:
    """Write the attributes back into callbacks of the same classes, in the same order."""
    left = list(states)
    for callback in callbacks:
        if type(callback).__name__ in STATELESS:
            continue
        if not left or left[0]["class"] != type(callback).__name__:
            return
        for name, value in left.pop(0)["attributes"].items():
            current = getattr(callback, name, None)
            if isinstance(current, list) and isinstance(value, list):
                current[:] = value  # lists may be shared with the script
            elif isinstance(current, dict) and isinstance(value, dict):
                current.clear()
                current.update(value)
            else:
                setattr(callback, name, value)


def random_state() -> dict[str, Any]:
    """The states of Python's and NumPy's global generators."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def load_random_state(state: dict[str, Any]) -> None:
    """Set Python's and NumPy's global generators."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def is_random_state(state: dict[str, Any]) -> bool:
    """Whether the global generators are in this state."""
    now = random_state()
    pairs = zip(now["numpy"], state["numpy"], strict=True)
    return now["python"] == state["python"] and all(np.array_equal(a, b) for a, b in pairs)


def _copied(value: Any) -> Any:
    """A copy that does not change when the callback goes on."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_copied(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _is_large(value: Any) -> bool:
    return is_plain(value) and sum(array.nbytes for array in _arrays(value)) >= LARGE_BYTES


def _checksum(value: Any) -> int:
    """CRC-32 of the arrays in a plain value, and of all else in it."""
    checksum = zlib.crc32(repr(_without_arrays(value)).encode(errors="backslashreplace"))
    for array in _arrays(value):
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        checksum = zlib.crc32(data.data, checksum)
    return checksum


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """The arrays in a plain value, in order."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _arrays(item)


def _without_arrays(value: Any) -> Any:
    """A plain value with the shape and type of each array in its place."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    if isinstance(value, dict):
        return {key: _without_arrays(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_arrays(item) for item in value]
    return value


def _names(value: Any, folder: str) -> bool:
    """Whether a value holds a path in this process's private folder, which the next lacks."""
    if isinstance(value, dict):
        return any(_names(item, folder) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_names(item, folder) for item in value)
    return isinstance(value, str) and folder in value


def _optimizer_variables(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(
        variables() if callable(variables) and not isinstance(variables, list) else variables
    )


def _can_be_built(optimizer: Any) -> bool:
    is_built = getattr(optimizer, "built", False) or getattr(optimizer, "_built", False)
    return hasattr(optimizer, "build") and not is_built


def learning_rate(optimizer: Any) -> float | None:
    """The optimizer's rate, or None where a schedule decides."""
    rate = getattr(optimizer, "learning_rate", None)
    try:
        return float(np.asarray(rate)) if rate is not None else None
    except (TypeError, ValueError):
        return None


def check_shapes(variables: Sequence[Any], arrays: Sequence[Any], what: str) -> None:
    """Refuses arrays that were kept of another model.

    Raises:
        RecordError: there are more, fewer or others.
    """
    shapes = [tuple(variable.shape) for variable in variables]
    kept = [np.shape(array) for array in arrays]
    if shapes != kept:
        raise RecordError(
            f"The checkpoint holds {len(kept)} {what}, the script's model has {len(shapes)} "
            "(or other shapes): the script has changed. Start a new run."
        )


def _assign(variables: Sequence[Any], arrays: Sequence[Any], what: str) -> None:
    check_shapes(variables, arrays, what)
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
