"""Ctrl-C, SIGTERM and a lost terminal."""

import errno
import os
import signal
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Ctrl-C, SIGTERM and a lost terminal: an exception at first, a count while training.

    Training needs time to stop at a checkpoint, so there the signals are only counted.
    """

    def __init__(self) -> None:
        self.count = 0
        self._counting = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Take the signals while the block runs; afterwards handlers are as before.

        A lost terminal that is ignored stays so: that is what `nohup` is for.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._take) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count signals instead of raising `KeyboardInterrupt`."""
        self._counting = True
        try:
            yield
        finally:
            self._counting = False

    def _take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.count += 1
        if number == signal.SIGHUP:
            _leave_terminal()
        if not self._counting:
            raise KeyboardInterrupt


def _leave_terminal() -> None:
    """Put nothing in the place of a terminal that is gone: to write to it would be an error."""
    for descriptor in (0, 1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, descriptor)
                os.close(null)
