"""Corrections that both generations of Keras share."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from launcher.worker.data_parallel import DataParallel
from launcher.worker.method_patch import wrap_method
from launcher.worker.sharing import Shared

logger = logging.getLogger(__name__)


def count_scalar_as_share(
    parallel: DataParallel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of `Mean.update_state` in which a per-batch mean counts as this rank's share."""
    values = args[0] if args else kwargs.get("values")
    weight = args[1] if len(args) > 1 else kwargs.get("sample_weight")
    if weight is not None or values is None or len(getattr(values, "shape", ())) > 0:
        return args, kwargs
    return (), {"values": values, "sample_weight": parallel.state.batch_share()}


def keep_state_if_idle(
    parallel: DataParallel, variables: Sequence[Any], update: Callable[[], Any]
) -> Any:
    """Runs an update that has no effect on the variables where this rank has no rows."""
    variables = list(variables)
    before = [tf.convert_to_tensor(variable) for variable in variables]
    result = update()
    parallel.state.keep_if_idle(variables, before)
    return result


def numbered_prediction(step: Callable[[Any], Any], data: Any) -> Any:
    """The outputs of a predict_step with each row's place among all rows, −1 if it has none."""
    if not isinstance(data, Shared):
        return step(data)
    n_taken = tf.maximum(data.n_own, 1)
    rows = tf.where(data.n_own > 0, data.first + tf.range(n_taken), -1)
    return {"outputs": step(data.data), "rows": rows}


def switch_off_jit(trainer: type, resolve: str | None) -> None:
    """Collectives do not run inside XLA: no compilation by default, and none when asked for."""
    warned: list[bool] = []

    def compile_model(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("jit_compile") is True:
            kwargs["jit_compile"] = False
            if not warned:
                logger.warning("jit_compile=True is switched off: workers cannot exchange in XLA")
                warned.append(True)
        return original(*args, **kwargs)

    def never(original: Any, model: Any) -> bool:
        return False

    wrap_method(trainer, "compile", compile_model)
    if resolve is not None:
        wrap_method(trainer, resolve, never)
