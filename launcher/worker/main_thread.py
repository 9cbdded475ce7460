"""Let a script do in a worker's thread what Python allows in a program's main thread only."""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

RAY_LOGGERS = ("ray", "ray.train", "ray.data", "ray.serve")


@contextlib.contextmanager
def as_main_program() -> Iterator[None]:
    """While the block runs: `signal.signal` remembers instead of failing, logging is fresh.

    Signals are the launcher's affair in a worker, so a script's handlers are never called; and
    `logging.basicConfig` must find no handlers of Ray's, or it would do nothing.
    """
    with _remembered_signals(), _fresh_logging():
        yield


@contextlib.contextmanager
def _remembered_signals() -> Iterator[None]:
    original = signal.signal
    remembered: dict[int, Any] = {}

    def remember(signalnum: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return original(signalnum, handler)
        before = remembered.get(signalnum, signal.getsignal(signalnum))
        remembered[signalnum] = handler
        return before

    signal.signal = remember
    try:
        yield
    finally:
        signal.signal = original


@contextlib.contextmanager
def _fresh_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    propagate = {name: logging.getLogger(name).propagate for name in RAY_LOGGERS}
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    for name in RAY_LOGGERS:
        logging.getLogger(name).propagate = False
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, value in propagate.items():
            logging.getLogger(name).propagate = value
