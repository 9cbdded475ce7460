"""A run's record and its one writer."""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

from launcher.record import RunRecord, Segment
from launcher.runs import RunStore

HEARTBEAT_S = 10.0


class Book:
    """The run's record and its one writer."""

    def __init__(self, store: RunStore | None, record: RunRecord) -> None:
        self._store, self.record = store, record
        self._saved_at_s = 0.0
        self._lock = threading.Lock()

    def write(self, record: RunRecord) -> None:
        """Take a new version of the record and keep it."""
        with self._lock:
            self.record = record.beaten(now())
            self._saved_at_s = time.monotonic()
            if self._store is not None:
                self._store.save(self.record)

    def segment(self, segment: Segment) -> None:
        """Replace the last segment."""
        self.write(replace(self.record, segments=(*self.record.segments[:-1], segment)))

    def beat(self) -> None:
        """Show that the writer lives, every `HEARTBEAT_S`."""
        if time.monotonic() - self._saved_at_s > HEARTBEAT_S:
            self.write(self.record)


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)
