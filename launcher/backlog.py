"""What waits to be written to storage: held in memory, written by a thread, tried again.

Whoever puts something in never waits for storage, which may be slow, full, gone or hang. Of each
kind only the newest is held, so memory is bounded.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from launcher.errors import StorageError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # between two attempts


@dataclass(frozen=True, slots=True)
class Item:
    """A file to be written.

    Attributes:
        kind: of two items of a kind the newer one counts.
        needs: path of another item, without which this one is of no use.
        is_held: whether it stays in memory when it is written, until a newer one comes.
        detail: what to say of it when it is written.
    """

    kind: str
    path: str
    data: bytes
    needs: str | None = None
    is_held: bool = False
    detail: dict[str, Any] = field(default_factory=dict)


class Desk(Protocol):
    """Writes items, and hears what became of them; all calls come from the backlog's thread."""

    def write(self, item: Item) -> None:
        """Write the item's file; raises StorageError."""

    def written(self, item: Item, took_s: float) -> None:
        """It is in storage."""

    def failed(self, error: StorageError) -> bool:
        """An item could not be written; whether to try again at once."""


class Backlog:
    """Items on their way to storage, in the order in which they came."""

    def __init__(self, desk: Desk, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._desk, self._first_pause_s = desk, first_pause_s
        self._items: dict[str, Item] = {}
        self._written: set[str] = set()  # of those items
        self._tried: set[str] = set()  # in vain, since the last pause
        self._error: StorageError | None = None
        self._changed = threading.Condition()
        self._again = threading.Event()
        self._thread = threading.Thread(target=self._run, name="launch-backlog", daemon=True)
        self._thread.start()

    @property
    def error(self) -> StorageError | None:
        """Why the last attempt failed; None if it did not."""
        return self._error

    def put(self, item: Item) -> None:
        """Take an item in; what it replaces is dropped."""
        with self._changed:
            known = self._items.pop(item.path, None)
            if known is None or known.data != item.data:
                self._written.discard(item.path)
            self._items[item.path] = item
            self._drop()
            self._changed.notify_all()

    def newest(self, kind: str) -> Item | None:
        """The newest item of a kind that is still in memory."""
        with self._changed:
            return next((i for i in reversed(self._items.values()) if i.kind == kind), None)

    def item(self, path: str) -> Item | None:
        """An item that is still in memory."""
        return self._items.get(path)

    def paths(self) -> tuple[str, ...]:
        """Of all items in memory."""
        with self._changed:
            return tuple(self._items)

    def waiting(self) -> tuple[Item, ...]:
        """What is not in storage yet."""
        with self._changed:
            return tuple(item for path, item in self._items.items() if path not in self._written)

    def settled(self, path: str, timeout_s: float) -> bool:
        """Wait until an item is written or dropped for a newer one; at once where storage fails.

        Returns:
            Whether that was so in time.
        """
        with self._changed:

            def is_settled() -> bool:
                is_out = path in self._written or path not in self._items
                return is_out or self._error is not None

            return self._changed.wait_for(is_settled, timeout_s)

    def empty(self, timeout_s: float) -> bool:
        """Try again at once, and wait until all is written; whether it is."""
        self._again.set()
        with self._changed:
            return self._changed.wait_for(lambda: not self.waiting(), timeout_s)

    def _run(self) -> None:
        pause_s = self._first_pause_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None)
                item = self._next()
            assert item is not None
            began_s = time.monotonic()
            error = self._attempt(item)
            if error is None:
                self._desk.written(item, time.monotonic() - began_s)
            again = error is not None and self._desk.failed(error)
            self._note(item, error, again)
            if error is None or again:
                pause_s = self._first_pause_s
            elif self._all_tried():
                pause_s = self._pause(pause_s)

    def _pause(self, pause_s: float) -> float:
        """Wait until it is worth another try; the time to wait after that."""
        was_asked = self._again.wait(pause_s)
        self._again.clear()
        with self._changed:
            self._tried.clear()
        return self._first_pause_s if was_asked else min(2 * pause_s, LONGEST_PAUSE_S)

    def _attempt(self, item: Item) -> StorageError | None:
        try:
            self._desk.write(item)
        except StorageError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the thread must live on
            return StorageError(f"{item.path} cannot be written: {error!r}.")
        return None

    def _note(self, item: Item, error: StorageError | None, again: bool) -> None:
        with self._changed:
            if error is not None and again:
                return
            self._error = error
            if error is not None:
                self._tried.add(item.path)
            elif item.path in self._items:
                self._written.add(item.path)
                if not item.is_held:
                    del self._items[item.path]
                    self._written.discard(item.path)
            self._changed.notify_all()

    def _all_tried(self) -> bool:
        with self._changed:
            return self._next() is None

    def _next(self) -> Item | None:
        """The first item that was not tried, and that waits for no other."""
        waiting = {path: item for path, item in self._items.items() if path not in self._written}
        ready = (item for item in waiting.values() if item.needs not in waiting)
        return next((item for item in ready if item.path not in self._tried), None)

    def _drop(self) -> None:
        """Forget what a newer item of its kind replaces, unless another one needs it."""
        newest = {item.kind: path for path, item in self._items.items()}
        needed = {self._items[path].needs for path in newest.values()}
        kept = needed | set(newest.values())
        self._items = {path: item for path, item in self._items.items() if path in kept}
        self._written &= self._items.keys()
