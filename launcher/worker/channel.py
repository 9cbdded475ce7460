"""The line from rank 0 to the keeper: events go out, orders come back."""

import threading
import time
from collections.abc import Callable
from typing import Any

import ray

from launcher.errors import LauncherError
from launcher.worker.job import ORDER_NONE, Event

FLUSH_S = 0.2


class Channel:
    """Collects events, sends them every `FLUSH_S`, and passes new orders on.

    Args:
        keeper: handle of the keeper actor, or None to drop everything (ranks other than 0).
        get: waits for the answer of a call.
    """

    def __init__(self, keeper: Any, get: Callable[[Any], Any] = ray.get) -> None:
        self._keeper, self._get = keeper, get
        self._on_order: Callable[[int], None] | None = None
        self._before_closing: list[Callable[[], None]] = []
        self._events: list[Event] = []
        self._lock, self._send_lock = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._order = ORDER_NONE
        self._thread = threading.Thread(target=self._run, name="launch-channel", daemon=True)
        if keeper is not None:
            self._thread.start()

    def obey(self, on_order: Callable[[int], None]) -> None:
        """Call `on_order` with each new order, an earlier one too; it must not flush."""
        with self._send_lock:
            self._on_order = on_order
            if self._order != ORDER_NONE:
                on_order(self._order)

    def before_closing(self, action: Callable[[], None]) -> None:
        """Call `action` before the channel closes."""
        self._before_closing.append(action)

    def emit(self, kind: str, **detail: Any) -> None:
        """Queue an event."""
        if self._keeper is None:
            return
        with self._lock:
            last = self._events[-1] if self._events else None
            if kind == "output" and last is not None and _same_stream(last, detail):
                last.detail["text"] += detail["text"]
            else:
                self._events.append(Event(kind, time.time(), detail))

    def text(self, stream: str, text: str) -> None:
        """Queue a piece of the script's output."""
        self.emit("output", stream=stream, text=text)

    def call(self, method: str, *args: Any, wait: bool) -> None:
        """Call a method of the keeper, after what was emitted before.

        Raises:
            StorageError: the keeper could not write, and was waited for.
        """
        if self._keeper is None:
            return
        self.flush()
        reference = getattr(self._keeper, method).remote(*args)
        if wait:
            try:
                self._get(reference)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, LauncherError):
                    raise error.cause from None
                raise

    def flush(self) -> None:
        """Send what is queued and wait until it has arrived."""
        if self._keeper is None:
            return
        with self._send_lock:  # keeps the order of events, and of orders
            with self._lock:
                events, self._events = self._events, []
            order = self._get(self._keeper.tell.remote(events))
            if order != self._order:
                self._order = order
                if self._on_order is not None:
                    self._on_order(order)

    def close(self) -> None:
        """Send what is left and end the thread."""
        for action in self._before_closing:
            action()
        self._closed.set()
        if self._keeper is not None:
            self._thread.join()
            self.flush()

    def _run(self) -> None:
        while not self._closed.wait(FLUSH_S):
            try:
                self.flush()
            except ray.exceptions.RayError:
                return  # the keeper is gone: the driver has ended, and this process will


def _same_stream(last: Event, detail: dict[str, Any]) -> bool:
    return last.kind == "output" and last.detail["stream"] == detail["stream"]
