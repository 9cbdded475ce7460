"""TensorFlow's threads and GPUs, set before the script runs, and kept set while it does."""

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

# What scripts call first thing, and what TensorFlow refuses once anything has run.
SETTINGS = (
    ("config.threading", "set_intra_op_parallelism_threads"),
    ("config.threading", "set_inter_op_parallelism_threads"),
    ("config.experimental", "set_memory_growth"),
    ("config", "set_logical_device_configuration"),
    ("config.experimental", "set_virtual_device_configuration"),
    ("config", "set_visible_devices"),
    ("config.experimental", "set_visible_devices"),
)


def set_up_devices(threads: int) -> None:
    """Give TensorFlow its threads and let GPU memory grow; before any operation runs.

    Args:
        threads: of one worker; 0 lets TensorFlow choose.
    """
    import tensorflow as tf

    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    for place, name in SETTINGS:
        module: Any = functools.reduce(getattr, place.split("."), tf)
        setattr(module, name, _tolerant(getattr(module, name)))


def _tolerant(setting: Callable[..., Any]) -> Callable[..., Any]:
    """The setting, which no longer fails when TensorFlow says that it comes too late."""

    @functools.wraps(setting)
    def tolerant(*args: Any, **kwargs: Any) -> Any:
        try:
            return setting(*args, **kwargs)
        except RuntimeError as error:
            logger.debug("%s is launch's affair in a worker: %s", setting.__name__, error)
            return None

    return tolerant
