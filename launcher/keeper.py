"""The keeper: an actor beside the driver that takes what workers report and keeps their files.

It is the one place that writes a run's checkpoints, artifacts and model, so the cluster needs
no shared file system. The driver reads its events; rank 0 gets the driver's orders as the
answer to what it reports.
"""

import threading
import time
from dataclasses import replace
from typing import Any

from launcher.errors import StorageError
from launcher.worker.job import ORDER_NONE, Event

KEEP_CHECKPOINTS = 3


class Keeper:
    """Runs as a threaded Ray actor (`max_concurrency` > 1) on the driver's node.

    Args:
        storage: URI or path of the storage.
        run: the run's name.
    """

    def __init__(self, storage: str, run: str) -> None:
        from launcher.storage import Storage

        self._folder = Storage.open(storage).folder(f"runs/{run}")
        self._events: list[Event] = []
        self._order = ORDER_NONE
        self._arrived = threading.Condition()
        self._writing = threading.Lock()
        self._kept = sorted(f"checkpoints/{name}" for name in self._folder.list("checkpoints"))
        self._is_failing = False

    def tell(self, events: list[Event]) -> int:
        """Take events from a worker; answer with the driver's order."""
        with self._arrived:
            self._events.extend(events)
            if events:
                self._arrived.notify_all()
            return self._order

    def drain(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` for the first."""
        with self._arrived:
            if not self._events:
                self._arrived.wait(timeout_s)
            events, self._events = self._events, []
            return events

    def order(self, code: int) -> None:
        """Leave an order for rank 0."""
        with self._arrived:
            self._order = code

    def keep_checkpoint(self, position: dict[str, int], data: bytes) -> None:
        """Write a checkpoint, then tell the driver; keep the last few."""
        started_s = time.monotonic()
        with self._writing:
            path = f"checkpoints/{time.time_ns():020d}.npz"
            self._write(path, data)
            self._kept.append(path)
            for old in self._kept[:-KEEP_CHECKPOINTS]:
                self._folder.delete(old)
            self._kept = self._kept[-KEEP_CHECKPOINTS:]
        took_s = time.monotonic() - started_s
        self._say("checkpoint", position=position, path=path, bytes=len(data), took_s=took_s)

    def keep_artifacts(self, data: bytes, n_files: int) -> None:
        """Write the zipped files that rank 0 has left."""
        path = "artifacts.zip"
        with self._writing:
            self._write(path, data)
        self._say("artifacts", path=path, files=n_files, bytes=len(data))

    def keep_model(self, name: str, data: bytes) -> None:
        """Write the trained model."""
        path = name
        with self._writing:
            self._write(path, data)
        self._say("model", path=path, bytes=len(data))

    def _write(self, path: str, data: bytes) -> None:
        """Write a file; that storage fails is told once, since not every caller waits."""
        try:
            self._folder.write(path, data)
        except StorageError as error:
            if not self._is_failing:
                self._say(
                    "warning", text=f"{error} No new checkpoint is kept until it works again."
                )
            self._is_failing = True
            raise
        self._is_failing = False

    def _say(self, kind: str, **detail: Any) -> None:
        self.tell([replace(Event(kind, time.time()), detail=detail)])
