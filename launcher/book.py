"""A run's record and its one writer, which storage never holds up for long."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from launcher.errors import LauncherError, StorageError
from launcher.record import RunRecord, Segment
from launcher.runs import RunStore

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
PATIENCE_S = 2.0  # for storage to take a version, once; then nobody waits until it works again
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # between two attempts


class Book:
    """The run's record and its one writer.

    Versions are written by a thread, the newest only. While storage works, `write` returns when
    its version is there; while it fails or hangs, the run goes on, and writing is tried again.

    Args:
        store: where to; None keeps the record in memory only.
        warn: told once when storage fails, and when it works again; from the thread that writes
            the record, never from the book's own.
    """

    def __init__(
        self,
        store: RunStore | None,
        record: RunRecord,
        warn: Callable[[str], None] = logger.warning,
        *,
        patience_s: float = PATIENCE_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._store, self.record, self.warn = store, record, warn
        self._patience_s, self._first_pause_s = patience_s, first_pause_s
        self._stamped_at_s = 0.0
        self._changed = threading.Condition()
        self._wanted = self._writing = self._saved = 0  # versions
        self._is_closed = False
        self._is_late = False
        self._again = threading.Event()
        self._notices: list[str] = []
        self._error: StorageError | None = None
        self._fatal: LauncherError | None = None
        self._thread: threading.Thread | None = None

    def write(self, record: RunRecord) -> None:
        """Take a new version of the record and keep it; blocks for at most `patience_s`.

        Raises:
            TakenOverError: this process must not write the record any more.
        """
        with self._changed:
            self.record = record
            self._stamp()
        if self._store is not None:
            self._await()
            self._tell()

    def segment(self, segment: Segment) -> None:
        """Replace the last segment."""
        self.write(replace(self.record, segments=(*self.record.segments[:-1], segment)))

    def beat(self) -> None:
        """Show that the writer lives, every `HEARTBEAT_S`; never waits.

        Raises:
            TakenOverError: this process must not write the record any more.
        """
        if time.monotonic() - self._stamped_at_s > HEARTBEAT_S:
            with self._changed:
                self._stamp()
        self._check()

    def settle(self, timeout_s: float) -> str | None:
        """Try at once, and wait until the newest version is in storage; if it is not, why."""
        if self._store is None or self._saved == self._wanted:
            return None
        self._again.set()
        with self._changed:
            self._changed.wait_for(self._is_through, timeout_s)
        self._check()
        self._tell()
        return None if self._is_through() else str(self._error or "Storage does not answer.")

    def close(self) -> None:
        """Write nothing any more; what is being written now is waited for, for `patience_s`."""
        with self._changed:
            self._is_closed = True
            self._wanted = max(self._saved, self._writing)
            self._changed.notify_all()
            self._changed.wait_for(self._is_through, self._patience_s)

    # ------------------------------------------------------------------ on the caller's thread

    def _stamp(self) -> None:
        """Make the record the newest version, to be written; with the lock held."""
        self.record = self.record.beaten(now())
        self._stamped_at_s = time.monotonic()
        if self._store is None or self._is_closed:
            return
        self._wanted += 1
        self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="launch-book", daemon=True)
            self._thread.start()

    def _await(self) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._is_through() or self._is_late, self._patience_s
            ):
                self._is_late = True
                self._notices.append(
                    f"Storage has not taken the run's record for {self._patience_s:.0f} s. The "
                    "run goes on, and it is tried again."
                )
        self._check()

    def _is_through(self) -> bool:
        return self._saved == self._wanted or self._fatal is not None

    def _check(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def _tell(self) -> None:
        with self._changed:
            notices, self._notices = self._notices, []
        for notice in notices:
            self.warn(notice)

    # ------------------------------------------------------------------ on the book's thread

    def _run(self) -> None:
        pause_s = self._first_pause_s
        while self._fatal is None:
            with self._changed:
                self._changed.wait_for(lambda: self._saved < self._wanted)
                version, record = self._wanted, self.record
                self._writing = version
            try:
                self._save(record)
            except StorageError as error:
                self._note_failure(error)
                was_asked = self._again.wait(pause_s)
                self._again.clear()
                pause_s = self._first_pause_s if was_asked else min(2 * pause_s, LONGEST_PAUSE_S)
            except LauncherError as error:
                self._note_end(error)
            else:
                self._note_success(version)
                pause_s = self._first_pause_s

    def _save(self, record: RunRecord) -> None:
        assert self._store is not None
        try:
            self._store.save(record)
        except LauncherError:
            raise
        except Exception as error:
            raise StorageError(f"The run's record cannot be written: {error!r}.") from error

    def _note_failure(self, error: StorageError) -> None:
        with self._changed:
            if self._error is None:
                self._notices.append(
                    f"{error} The run's record is held in memory, and tried again until storage "
                    "works."
                )
            self._error, self._is_late, self._writing = error, True, self._saved
            if self._is_closed:
                self._wanted = self._saved
            self._changed.notify_all()

    def _note_success(self, version: int) -> None:
        with self._changed:
            if self._is_late:
                self._notices.append("Storage works again: the run's record is written.")
            self._saved, self._error, self._is_late = version, None, False
            self._changed.notify_all()

    def _note_end(self, error: LauncherError) -> None:
        with self._changed:
            self._fatal = error
            self._changed.notify_all()


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)
