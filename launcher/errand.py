"""Something slow that is done in the background while training goes on."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from launcher.errors import LauncherError

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What an errand brought, or why it brought nothing."""

    result: T | None
    error: str | None = None


class Errands(Protocol):
    """Sends errands: to threads, or at once in tests."""

    def __call__(
        self, action: Callable[[], Any], limit_s: float, clock: Callable[[], float]
    ) -> "UnderWay":
        """Send one."""


class UnderWay(Protocol):
    """An errand that was sent."""

    def outcome(self) -> Outcome[Any] | None:
        """What came of it; None while it is under way."""


class Errand(Generic[T]):
    """Runs `action` in a thread; whoever sent it asks now and then whether it is done.

    Args:
        limit_s: after so long it counts as failed, whatever becomes of it.
        clock: monotonic seconds.
    """

    def __init__(self, action: Callable[[], T], limit_s: float, clock: Callable[[], float]) -> None:
        self._future: Future[T] = Future()
        self._clock, self._until_s, self._limit_s = clock, clock() + limit_s, limit_s
        threading.Thread(
            target=self._run, args=(action,), name="launch-errand", daemon=True
        ).start()

    def outcome(self) -> Outcome[T] | None:
        """What came of it; None while it is under way."""
        if not self._future.done():
            if self._clock() < self._until_s:
                return None
            return Outcome(None, f"it took more than {self._limit_s:g} s")
        error = self._future.exception()
        if error is None:
            return Outcome(self._future.result())
        if not isinstance(error, LauncherError):
            logger.warning("an errand failed", exc_info=error)
        return Outcome(None, " ".join(str(error).split()) or type(error).__name__)

    def _run(self, action: Callable[[], T]) -> None:
        try:
            self._future.set_result(action())
        except BaseException as error:  # noqa: BLE001 - told to whoever asks
            self._future.set_exception(error)
