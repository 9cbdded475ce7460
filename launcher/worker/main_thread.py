"""Let a script do in a worker's thread what Python allows in a program's main thread only."""

import atexit
import contextlib
import logging
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

RAY_LOGGERS = ("ray", "ray.train", "ray.data", "ray.serve")


@contextlib.contextmanager
def as_main_program() -> Iterator[None]:
    """While the block runs: `signal.signal` remembers instead of failing, logging is fresh.

    Signals are the launcher's affair in a worker, so a script's handlers are never called; and
    `logging.basicConfig` must find no handlers of Ray's, or it would do nothing. What it makes of
    warnings, such as errors, holds for the script alone.
    """
    with _remembered_signals(), _fresh_logging(), warnings.catch_warnings():
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


class ExitHandlers:
    """What a script asks Python to call when the program ends, which a worker does not.

    Only calls of `atexit.register` in the script's own files are taken: what libraries register
    is of the process, and the worker still needs it.

    Args:
        folder: where the script's files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._handlers: list[partial[Any]] = []

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """While the block runs, the script's handlers come here."""
        register, unregister = atexit.register, atexit.unregister

        def take(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__file__")
            if not str(caller or "").startswith(self._folder):
                return register(function, *args, **kwargs)
            self._handlers.append(partial(function, *args, **kwargs))
            return function

        def drop(function: Callable[..., Any]) -> None:
            self._handlers = [each for each in self._handlers if each.func != function]
            unregister(function)

        atexit.register, atexit.unregister = take, drop  # type: ignore[assignment] # fewer types
        try:
            yield
        finally:
            atexit.register, atexit.unregister = register, unregister

    def call(self) -> None:
        """Call them, the last one first; an error in one is printed, as Python does."""
        while self._handlers:
            handler = self._handlers.pop()
            try:
                handler()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the script fails no more
                traceback.print_exception(error, chain=False)
