"""Corrections that both generations of Keras share."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from launcher.worker.data_parallel import DataParallel
from launcher.worker.method_patch import wrap_method
from launcher.worker.metric_sums import summed_in_place
from launcher.worker.predictions import gather_rows
from launcher.worker.sharing import Shared

logger = logging.getLogger(__name__)


def count_scalars_as_shares(parallel: DataParallel, mean: type) -> None:
    """Lets a per-batch mean, given to the metric `mean` unweighted, count as this rank's share.

    On one machine it counts once a batch, so over ranks it must count once a batch in sum.
    """

    def update_state(original: Any, metric: Any, values: Any, sample_weight: Any = None) -> Any:
        is_scalar = len(getattr(values, "shape", ())) == 0
        is_mean = hasattr(metric, "count")
        if parallel.in_step and sample_weight is None and is_mean and is_scalar:
            sample_weight = parallel.state.batch_share()
        return original(values, sample_weight=sample_weight)

    wrap_method(mean, "update_state", update_state, subclasses=False, autograph=True)


def keep_state_if_idle(
    parallel: DataParallel, variables: Sequence[Any], update: Callable[[], Any]
) -> Any:
    """Runs an update that has no effect on the variables where this rank has no rows."""
    return _kept_if(parallel, parallel.state.is_idle, variables, update)


def update_metric(
    parallel: DataParallel, metric: Any, update: Callable[[], Any], *, variables: Any
) -> Any:
    """Runs an update of a metric's state, which counts the rows of this rank's step.

    Args:
        parallel: who shares out.
        metric: whose state.
        update: Keras's own.
        variables: of the metric, read when they are needed.
    """
    if parallel.in_keras_step:
        return keep_state_if_idle(parallel, variables(), update)
    if not parallel.own.counts(metric):
        return update()
    parallel.own.share_metric(metric, variables())
    return _kept_if(parallel, parallel.state.is_silent, variables(), update)


def metric_result(parallel: DataParallel, metric: Any, compute: Callable[[], Any]) -> Any:
    """The result of a metric; of all ranks' rows where a script's own loop has updated it."""
    if not parallel.in_keras_step and parallel.own.is_shared(metric):
        with parallel.own.quietly(), summed_in_place(parallel.exchange, list(metric.variables)):
            return compute()
    return parallel.logs.note_result(metric, compute())


def call_metric(parallel: DataParallel, metric: Any, call: Callable[[], Any]) -> Any:
    """A call of a metric; what it returns is of this rank's rows, since it is hardly ever read.

    An exchange for it would cost each step of a script the time of a message.
    """
    del metric
    with parallel.own.quietly():
        return call()


def _kept_if(
    parallel: DataParallel, is_idle: Callable[[], Any], variables: Sequence[Any], update: Any
) -> Any:
    variables = list(variables)
    before = [tf.convert_to_tensor(variable) for variable in variables]
    result = update()
    parallel.state.keep_if(is_idle(), variables, before)
    return result


def numbered_prediction(step: Callable[[Any], Any], data: Any) -> Any:
    """The outputs of a predict_step with each row's place among all rows, −1 if it has none."""
    if not isinstance(data, Shared):
        return step(data)
    n_taken = tf.maximum(data.n_own, 1)
    rows = tf.where(data.n_own > 0, data.first + tf.range(n_taken), -1)
    return {"outputs": step(data.data), "rows": rows}


def install_predict(parallel: DataParallel, model: type, flatten: Any, pack: Any) -> None:
    """Every rank predicts its rows; all rows are gathered at the end.

    A predict_step of the script's own may return anything, so every rank runs it on all rows,
    as it does with a generator, whose stream cannot be shared out.

    Args:
        parallel: who shares out.
        model: Keras's class of models, or of trainers.
        flatten: nested outputs to a list.
        pack: a structure and a list to nested outputs.
    """
    own_step = model.__dict__["predict_step"]

    def predict_step(original: Any, _model: Any, data: Any) -> Any:
        return numbered_prediction(original, data)

    def predict(original: Any, instance: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        step = getattr(type(instance).predict_step, "__wrapped__", None)
        if step is own_step and not hasattr(x, "__next__"):
            with parallel.call("predict"):
                local = original(x, *args, **kwargs)
            outputs = local["outputs"]
            rows = gather_rows(parallel.exchange, flatten(outputs), local["rows"])
            if rows is not None:
                return pack(outputs, rows)
        with parallel.call("whole"):
            return original(x, *args, **kwargs)

    wrap_method(model, "predict_step", predict_step, autograph=True)
    wrap_method(model, "predict", predict)


def mark_calls(parallel: DataParallel, model: type) -> None:
    """Lets the engine know when Keras is running, and of batches that it is given one by one."""

    def fit(original: Any, _model: Any, *args: Any, **kwargs: Any) -> Any:
        with parallel.call("fit"):
            return original(*args, **kwargs)

    def evaluate(original: Any, _model: Any, *args: Any, **kwargs: Any) -> Any:
        with parallel.call("evaluate"):
            return original(*args, **kwargs)

    def whole(original: Any, _model: Any, *args: Any, **kwargs: Any) -> Any:
        with parallel.call("whole"):
            return original(*args, **kwargs)

    def train_on_batch(original: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        with parallel.call("whole"):
            result = original(*args, **kwargs)
        if parallel.running is None:
            parallel.own.elsewhere(instance)
        return result

    wrap_method(model, "fit", fit)
    wrap_method(model, "evaluate", evaluate)
    if not parallel.shares_data:
        wrap_method(model, "predict", whole)
    wrap_method(model, "train_on_batch", train_on_batch)
    wrap_method(model, "test_on_batch", whole)


def follow_train_functions(parallel: DataParallel, model_class: type) -> None:
    """Lets the engine know when an execution of a train function is over."""

    def make_train_function(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        before = model.train_function
        made = original(*args, **kwargs)
        if model.train_function is not before:
            model.train_function = followed(model, model.train_function)
        return None if made is None else model.train_function

    def followed(model: Any, function: Any) -> Any:
        def train_function(iterator: Any) -> Any:
            logs = function(iterator)
            parallel.after_execution(model)
            return logs

        return train_function

    wrap_method(model_class, "make_train_function", make_train_function)


def switch_off_jit(trainer: type, resolve: str | None) -> None:
    """Collectives do not run inside XLA: no compilation by default, and none when asked for."""
    warned: list[bool] = []

    def compile_model(original: Any, _model: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("jit_compile") is True:
            kwargs["jit_compile"] = False
            if not warned:
                logger.warning("jit_compile=True is switched off: workers cannot exchange in XLA")
                warned.append(True)
        return original(*args, **kwargs)

    def never(_original: Any, _model: Any) -> bool:
        return False

    wrap_method(trainer, "compile", compile_model)
    if resolve is not None:
        wrap_method(trainer, resolve, never)
