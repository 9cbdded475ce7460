"""Wrap a framework's `fit` and training step, so that a watcher hears of them.

Keras's public names only: `Model.fit`, `Model.make_train_function`, `Callback`, `CallbackList`,
`History`.
"""

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class FitCall:
    """A call of `fit`.

    Attributes:
        arguments: by name, as the script gave them; may be changed before training.
    """

    framework: Any
    model: Any
    arguments: dict[str, Any]

    @property
    def callbacks(self) -> list[Any]:
        """The script's own callbacks, flat."""
        return flat_callbacks(self.arguments.get("callbacks"))

    def add_callback(self, callback: Any) -> None:
        """Put a callback behind the script's own."""
        given = self.arguments.get("callbacks")
        if isinstance(given, self.framework.callbacks.CallbackList):
            given.callbacks.append(callback)
            callback.set_model(self.model)  # Keras does so only in a list that it makes itself
            callback.set_params(getattr(given, "params", None) or {})
        else:
            self.arguments["callbacks"] = [*flat_callbacks(given), callback]


class Watcher(Protocol):
    """Hears of every `fit` and every execution of the training function in it."""

    def run_fit(self, call: FitCall, train: Callable[[], Any]) -> Any:
        """Carry out a `fit`; `train` does what Keras would do."""

    def run_step(self, model: Any, execute: Callable[[], Any]) -> Any:
        """Carry out an execution of the training function of the model being fitted."""


def watch(framework: Any, watcher: Watcher) -> None:
    """Patch a framework's `Model`; once per process and framework."""
    fitted: list[Any] = []
    owner = _defining_class(framework.Model, "fit")
    owner.fit = _watched_fit(owner.fit, framework, watcher, fitted)
    owner = _defining_class(framework.Model, "make_train_function")
    owner.make_train_function = _watched_maker(owner.make_train_function, watcher, fitted)


def _watched_fit(
    fit: Callable[..., Any], framework: Any, watcher: Watcher, fitted: list[Any]
) -> Callable[..., Any]:
    signature = inspect.signature(fit)

    def watched_fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        if fitted:  # a fit inside a callback of another fit is the script's own affair
            return fit(model, *args, **kwargs)
        bound = signature.bind(model, *args, **kwargs)
        fitted.append(model)
        try:
            call = FitCall(framework, model, bound.arguments)
            return watcher.run_fit(call, lambda: fit(*bound.args, **bound.kwargs))
        finally:
            fitted.clear()

    watched_fit.__signature__ = signature  # type: ignore[attr-defined]
    watched_fit.__doc__ = fit.__doc__
    return watched_fit


def _watched_maker(
    make: Callable[..., Any], watcher: Watcher, fitted: list[Any]
) -> Callable[..., Any]:
    def make_train_function(model: Any, force: bool = False) -> Any:
        made = make(model, force)
        function = model.train_function
        if function is not None and not getattr(function, "is_watched", False):
            model.train_function = _watched_step(model, function, watcher, fitted)
        return None if made is None else model.train_function

    return make_train_function


def _watched_step(
    model: Any, function: Callable[[Any], Any], watcher: Watcher, fitted: list[Any]
) -> Callable[[Any], Any]:
    def train_function(iterator: Any) -> Any:
        if not fitted or fitted[0] is not model:
            return function(iterator)  # train_on_batch
        return watcher.run_step(model, lambda: function(iterator))

    train_function.is_watched = True  # type: ignore[attr-defined]
    return train_function


def steps_per_execution(model: Any) -> int:
    """How many steps one execution of the training function makes."""
    value: Any = getattr(model, "steps_per_execution", None)
    if value is None:
        value = getattr(model, "_steps_per_execution", None)
    if hasattr(value, "numpy"):  # a variable, of any distribution
        value = value.numpy()
    return int(1 if value is None else value)


def flat_callbacks(callbacks: Any) -> list[Any]:
    """The callbacks in a list, nested lists, a `CallbackList` or a single callback."""
    if callbacks is None:
        return []
    if isinstance(callbacks, (list, tuple)):
        return [item for entry in callbacks for item in flat_callbacks(entry)]
    inner = getattr(callbacks, "callbacks", None)  # a CallbackList
    return flat_callbacks(inner) if isinstance(inner, list) else [callbacks]


def build(model: Any, arguments: dict[str, Any]) -> None:
    """Create the model's variables from the shape of its data, if they do not exist yet."""
    if getattr(model, "built", False) and model.variables:
        return
    import tensorflow as tf

    x: Any = arguments.get("x")
    if isinstance(x, tf.data.Dataset):
        spec = x.element_spec
        x = tf.nest.map_structure(_zeros, spec[0] if isinstance(spec, tuple) else spec)
    elif hasattr(x, "__getitem__") and not hasattr(x, "shape") and not isinstance(x, (dict, list)):
        batch = x[0]  # a PyDataset
        x = batch[0] if isinstance(batch, tuple) else batch
    else:
        x = tf.nest.map_structure(lambda array: tf.convert_to_tensor(array[:1]), x)
    with contextlib.suppress(NotImplementedError):  # no `call`: its parts have the variables
        model(x)


def _zeros(spec: Any) -> Any:
    import tensorflow as tf

    return tf.zeros([1 if size is None else size for size in spec.shape], spec.dtype)


def _defining_class(owner: type, name: str) -> Any:
    return next(cls for cls in owner.__mro__ if name in vars(cls))
