"""Lets Keras 3's `fit`, `evaluate`, callbacks and saving work on a model in stages."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
from keras.src.backend.common import KerasVariable
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.saving import saving_lib

from launcher.worker import spool
from launcher.worker.fits import steps_per_execution
from launcher.worker.method_patch import wrap_method
from launcher.worker.pipeline.keras_graph import build_deferred

if TYPE_CHECKING:
    from launcher.worker.model_parallel import ModelParallel

Trainer = tf_trainer.TensorFlowTrainer
WHOLE = ("predict", "predict_on_batch", "test_on_batch")
WEIGHTS = ("save_weights", "load_weights", "export")


def install(parallel: "ModelParallel") -> None:
    """Patches Keras 3 for the process."""
    _install_functions(parallel)
    _install_calls(parallel)
    _install_reading(parallel)


def _install_functions(parallel: "ModelParallel") -> None:
    """In a `fit`, batches are trained and evaluated in stages."""

    def make_train_function(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        before = model.train_function
        original(*args, **kwargs)
        if parallel.running is None or parallel.running.kind != "fit":
            return model.train_function
        is_new = model.train_function is not before
        in_stages = parallel.split(model, again=is_new)
        if is_new:
            whole = model.train_function
            model.train_function = _train_function(parallel, model, whole, in_stages=in_stages)
        return model.train_function

    def make_test_function(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        before = model.test_function
        original(*args, **kwargs)
        if model.test_function is not before:
            model.test_function = _test_function(parallel, model, model.test_function)
        return model.test_function

    _wrap(Trainer, "make_train_function", make_train_function)
    _wrap(Trainer, "make_test_function", make_test_function)


def _train_function(
    parallel: "ModelParallel", model: Any, whole: Callable[[Any], Any], *, in_stages: bool
) -> Callable[[Any], Any]:
    def train_function(iterator: Any) -> Any:
        if in_stages:
            return parallel.train(model, iterator, steps_per_execution(model))
        return parallel.whole_step(lambda: whole(iterator))

    return train_function


def _test_function(
    parallel: "ModelParallel", model: Any, whole: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def test_function(iterator: Any) -> Any:
        if parallel.fits(model):
            return parallel.test(model, iterator, steps_per_execution(model))
        return whole(iterator)

    return test_function


def _install_calls(parallel: "ModelParallel") -> None:
    """What uses a model as a whole, in a callback say, finds it whole."""

    def fit(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        build_deferred(model, kwargs.get("x", args[0] if args else None))
        history = original(*args, **kwargs)
        parallel.end_fit(model)
        return history

    def whole(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        parallel.look_at_model(model)
        return original(*args, **kwargs)

    def save(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        with parallel.saving(model):
            return original(*args, **kwargs)

    def train_on_batch(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        parallel.refuse_one_batch(model)
        return original(*args, **kwargs)

    _wrap(Trainer, "fit", fit)
    _wrap(Trainer, "train_on_batch", train_on_batch)
    for name in WHOLE:
        _wrap(Trainer, name, whole)
    for name in WEIGHTS:
        _wrap(keras.Model, name, whole)
    _wrap(keras.Model, "save", save)
    _write_large_models_by_file()


def _write_large_models_by_file() -> None:
    """Keras goes by the machine's memory, of which this process may be allowed a part only."""
    has_room = saving_lib.is_memory_sufficient

    def is_memory_sufficient(model: Any) -> bool:
        n_bytes = saving_lib.weight_memory_size(model.variables)
        return n_bytes <= spool.FROM_BYTES and bool(has_room(model))

    saving_lib.is_memory_sufficient = is_memory_sufficient


def _install_reading(parallel: "ModelParallel") -> None:
    """Whoever reads or sets a weight of the model gets it as it is on the rank that trains it."""
    read = KerasVariable.value

    def value(variable: Any) -> Any:
        parallel.look_at(variable)
        return read.fget(variable)

    def assign(original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        parallel.look_at(variable)
        return original(*args, **kwargs)

    def save_own_variables(original: Any, optimizer: Any, store: Any) -> None:
        whole = parallel.optimizers.whole(optimizer)
        if whole is None:
            original(store)
            return
        for number, array in enumerate(whole):
            store[str(number)] = array

    KerasVariable.value = property(value)
    _wrap(KerasVariable, "assign", assign)
    wrap_method(BaseOptimizer, "save_own_variables", save_own_variables)


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Wraps a method that may have been wrapped before, where it is defined."""
    wrap_method(owner, name, around, subclasses=False)
