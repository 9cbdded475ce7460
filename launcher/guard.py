"""A thread beside a driver: shows that it lives, and passes on a request to stop it."""

import logging
import signal
import threading
from collections.abc import Callable
from types import TracebackType

from launcher.errors import StorageError, TakenOverError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


class Guard:
    """Looks after a run while its driver is busy, in a `with` block.

    Args:
        beat: renews the heartbeat where it is due; raises TakenOverError where that is over.
        is_asked_to_stop: whether someone has left a request.
        stop: asks the driver to stop at a checkpoint; called once.
    """

    def __init__(
        self,
        beat: Callable[[], None],
        is_asked_to_stop: Callable[[], bool],
        stop: Callable[[], None],
        *,
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._beat, self._is_asked_to_stop, self._stop = beat, is_asked_to_stop, stop
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="launch-guard", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()  # storage may hang: nobody waits for the thread

    def _look(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._beat()
                if self._is_asked_to_stop():
                    logger.info("asked to stop through storage")
                    break
            except TakenOverError as error:
                logger.warning("%s", error)
                break
            except StorageError as error:
                logger.debug("%s", error)
        else:
            return
        if not self._over.is_set():
            self._stop()


def interrupt_main_thread() -> None:
    """Do as SIGTERM from outside would, where this process takes it as a request to stop."""
    number = threading.main_thread().ident
    if number is not None and callable(signal.getsignal(signal.SIGTERM)):
        signal.pthread_kill(number, signal.SIGTERM)
