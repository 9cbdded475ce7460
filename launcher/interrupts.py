"""Ctrl-C, SIGTERM and a lost terminal."""

import signal
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
        if not self._counting:
            raise KeyboardInterrupt
