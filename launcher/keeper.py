"""The keeper: an actor beside the driver that takes what workers report and keeps their files.

It is the one place that writes a run's checkpoints, artifacts and model, so the cluster needs
no shared file system. The driver reads its events; rank 0 gets the driver's orders as the
answer to what it reports. The newest checkpoint stays in its memory, so training can go on from
it whatever storage does.
"""

import errno
import io
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from launcher.backlog import Backlog, Item
from launcher.errors import StorageError
from launcher.worker.job import ORDER_NONE, ORDER_STOP, Event

KEEP_CHECKPOINTS = 3
# A driver asks several times a second; one that is frozen watches neither money nor workers.
ALONE_S = (2.0, 30.0)  # for how long training goes on without it: at least, at most
HELD_BYTES = 1 << 30  # larger ones are not held once they are in storage
PATIENCE_S = 20.0  # for storage to take a checkpoint, before training goes on regardless
FULL = (errno.ENOSPC, errno.EDQUOT)

ALONE = {
    "text": "This launcher did not react for a while (suspended?), so training was stopped at a "
    "checkpoint."
}

FOLDER = "checkpoints"
OWNER_FILE = "owner"  # in every run's folder, so its absence shows that the folder is gone
T = TypeVar("T")
_CHECKPOINT = re.compile(r"(\d{20})(?:-([0-9a-f]+))?\.npz")
_FILES = re.compile(r"files-([0-9a-f]+)\.zip")
_UNFINISHED = re.compile(r"\..*\.part")


def files_path(key: str) -> str:
    """Where the script's files lie that belong to a checkpoint."""
    return f"{FOLDER}/files-{key}.zip"


def files_key(path: str) -> str | None:
    """The key of the files that belong to a checkpoint, as its path tells."""
    match = _CHECKPOINT.fullmatch(path.rpartition("/")[2])
    return match[2] if match else None


def checkpoint_paths(names: tuple[str, ...]) -> list[str]:
    """Those of a folder's files that are checkpoints, oldest first."""
    return [f"{FOLDER}/{name}" for name in sorted(names) if _CHECKPOINT.fullmatch(name)]


class Keeper:
    """Runs as a threaded Ray actor (`max_concurrency` > 1) on the driver's node.

    Args:
        storage: URI or path of the storage.
        run: the run's name.
        term: of the driver; once a later one holds the run, nothing is written any more.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, storage: str, run: str, term: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from launcher.ownership import Ownership
        from launcher.storage import Storage

        self._events: list[Event] = []
        self._order = ORDER_NONE
        self._clock = clock
        self._alone_at_s = math.inf  # when the driver has been silent for too long
        self._arrived = threading.Condition()
        folder = Storage.open(storage).folder(f"runs/{run}")
        ownership = Ownership(folder, run)
        self._shelf = Shelf(folder, self._say, lambda: ownership.require(term))
        self._backlog = Backlog(self._shelf)
        self._pieces = ("", io.BytesIO())  # the name and the beginning of what comes in pieces
        self._shelf.needed = self._backlog.paths
        self._last_ns = self._shelf.last_ns

    # ------------------------------------------------------------------ events and orders

    def tell(self, events: list[Event]) -> int:
        """Take events from a worker; answer with the driver's order.

        In place of a driver that has not been heard of for long, it is to stop at a checkpoint.
        """
        with self._arrived:
            if self._clock() > self._alone_at_s and self._order != ORDER_STOP:
                self._order = ORDER_STOP
                self._events.append(replace(Event("warning", time.time()), detail=ALONE))
            self._events.extend(events)
            if events:
                self._arrived.notify_all()
            return self._order

    def drain(self, timeout_s: float, alone_s: float = math.inf) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` for the first.

        If there is no other call for `alone_s`, but within `ALONE_S`, training is to stop.
        """
        with self._arrived:
            if not self._events:
                self._arrived.wait(timeout_s)
            at_least_s, at_most_s = ALONE_S
            self._alone_at_s = self._clock() + min(max(alone_s, at_least_s), at_most_s)
            events, self._events = self._events, []
            return events

    def order(self, code: int) -> None:
        """Leave an order for rank 0."""
        with self._arrived:
            self._alone_at_s = self._clock() + ALONE_S[1]
            self._order = code

    def _say(self, kind: str, **detail: Any) -> None:
        self.tell([replace(Event(kind, time.time()), detail=detail)])

    # ------------------------------------------------------------------ what rank 0 hands over

    def keep_piece(self, name: str, data: bytes) -> None:
        """Take the next piece of what is too large for one message.

        Args:
            name: of the whole, which another call gets in place of its bytes. What came of
                another whole before is dropped.
            data: the piece.
        """
        if self._pieces[0] != name:
            self._pieces = name, io.BytesIO()
        self._pieces[1].write(data)

    def _whole(self, data: bytes | str) -> bytes:
        """Bytes, or those that came in pieces under a name."""
        if isinstance(data, bytes):
            return data
        name, pieces = self._pieces
        if name != data:
            raise StorageError(
                "A file came in part only: a worker from before was still sending one. Resume "
                "the run."
            )
        self._pieces = "", io.BytesIO()
        return pieces.getvalue()

    def keep_checkpoint(
        self, position: dict[str, int], data: bytes | str, files: str = "", took_s: float = 0.0
    ) -> None:
        """Take a checkpoint, and wait for a while until it is in storage.

        Args:
            position: where training stood.
            data: a snapshot, or the name under which its pieces came.
            files: key of the script's files that belong to it, handed over before.
            took_s: what the last one took from its copy to storage, for the driver's reserve.
        """
        data = self._whole(data)
        self._last_ns = max(time.time_ns(), self._last_ns + 1)  # a clock may have been set back
        path = f"{FOLDER}/{self._last_ns:020d}{'-' * bool(files)}{files}.npz"
        needs = files_path(files) if files else None
        detail = {"position": position, "path": path, "bytes": len(data), "took_s": took_s}
        is_held = len(data) <= HELD_BYTES
        self._backlog.put(Item("checkpoint", path, data, needs, is_held, detail))
        self._wait_for(path)

    def keep_files(self, key: str, data: bytes, n_files: int, wait: bool = True) -> None:
        """Take the zipped files that rank 0 has left; `wait` for storage for a while."""
        path = files_path(key)
        detail = {"path": path, "files": n_files, "bytes": len(data)}
        is_held = len(data) <= HELD_BYTES
        self._backlog.put(Item("artifacts", path, data, None, is_held, detail))
        if wait:
            self._wait_for(path)

    def keep_model(self, name: str, data: bytes | str) -> None:
        """Take a trained model or its pieces, and wait for a while until it is in storage."""
        data = self._whole(data)
        kind = f"model {name}"  # one does not replace another
        self._backlog.put(Item(kind, name, data, detail={"path": name, "bytes": len(data)}))
        self._wait_for(name)

    def _wait_for(self, path: str) -> None:
        if not self._backlog.settled(path, PATIENCE_S):
            self._shelf.complain(
                f"Storage has not taken {path} for {PATIENCE_S:.0f} s. Is it slow, or does it hang?"
            )

    # ------------------------------------------------------------------ what the driver asks

    def newest(self) -> tuple[dict[str, int], bool] | None:
        """Position of the newest checkpoint if it is in memory, and whether files belong to it.

        What is large is forgotten as soon as it is in storage.
        """
        item = self._backlog.newest("checkpoint")
        if item is None or (item.needs is not None and self._backlog.item(item.needs) is None):
            return None
        return item.detail["position"], item.needs is not None

    def newest_checkpoint(self) -> bytes:
        """The newest checkpoint in memory. There must be one."""
        item = self._backlog.newest("checkpoint")
        assert item is not None
        return item.data

    def newest_files(self) -> bytes:
        """The files that belong to it. There must be some."""
        item = self._backlog.newest("checkpoint")
        files = self._backlog.item(item.needs) if item is not None and item.needs else None
        assert files is not None
        return files.data

    def unwritten(self, timeout_s: float) -> tuple[tuple[str, ...], str]:
        """Try once more; paths of what is not in storage after `timeout_s`, and why."""
        self._backlog.empty(timeout_s)
        paths = tuple(item.path for item in self._backlog.waiting())
        return paths, str(self._backlog.error or "Storage does not answer.")

    def content(self, path: str) -> bytes:
        """What is to be written to `path`."""
        item = self._backlog.item(path)
        assert item is not None
        return item.data


class Shelf:
    """Writes to the run's folder, keeps the last few checkpoints, and says how it goes.

    Args:
        folder: the run's, a `Storage`.
        say: takes the kind of an event and its details.
        require: raises where the folder is someone else's by now.
    """

    def __init__(
        self, folder: Any, say: Callable[..., None], require: Callable[[], None] = lambda: None
    ) -> None:
        self._folder, self._say, self._require = folder, say, require
        self._is_failing = False
        self._kept: list[str] = []
        names: tuple[str, ...] = self._looked(lambda: tuple(folder.list(FOLDER)), ())
        self._kept = checkpoint_paths(names)
        self._files = {match[1] for name in names if (match := _FILES.fullmatch(name))}
        self._old = [f"{FOLDER}/{name}" for name in names if _UNFINISHED.fullmatch(name)]
        self._has_owner = self._looked(lambda: bool(folder.exists(OWNER_FILE)), False)
        self.needed: Callable[[], tuple[str, ...]] = tuple  # paths not to be cleared away

    def _looked(self, call: Callable[[], T], otherwise: T) -> T:
        """What a look at the folder finds; `otherwise` where it fails or hangs."""
        from launcher.storage import in_time

        try:
            return in_time(f"{self._folder.path()} cannot be read", call, PATIENCE_S)
        except StorageError as error:
            self.complain(str(error))
            return otherwise

    @property
    def last_ns(self) -> int:
        """The number of the newest checkpoint; 0 if there is none."""
        return int(self._kept[-1].rpartition("/")[2][:20]) if self._kept else 0

    def complain(self, text: str) -> None:
        """Say that storage fails, once until it works again."""
        if not self._is_failing:
            newest = "none" if not self._kept else self._kept[-1].rpartition("/")[2]
            self._say(
                "warning",
                text=f"{text} Training goes on: the newest checkpoint is held in memory and tried "
                f"again until storage works. The newest in storage: {newest}.",
            )
        self._is_failing = True

    def write(self, item: Item) -> None:
        """Write the item's file."""
        self._require()
        if self._has_owner and not self._folder.exists(OWNER_FILE):
            raise StorageError(
                f"{item.path} cannot be written: {self._folder.path()} has vanished. Is the "
                "storage mounted?"
            )
        self._folder.write(item.path, item.data)

    def written(self, item: Item, took_s: float) -> None:
        """Tell the driver; clear away what is too old."""
        if self._is_failing:
            self._say("stage", text=f"storage works again: {item.path} is written")
        self._is_failing = False
        if item.kind == "checkpoint":
            self._kept.append(item.path)
            self._clear_away(KEEP_CHECKPOINTS)
        elif (match := _FILES.fullmatch(item.path.rpartition("/")[2])) is not None:
            self._files.add(match[1])
        self._say(item.kind.partition(" ")[0], **_with_time(item.detail, took_s))

    def failed(self, error: StorageError) -> bool:
        """Say it; where there is no room any more, make some and try at once."""
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in FULL and len(self._kept) > 1:
            n_kept = len(self._kept)
            self._clear_away(n_kept - 1)
            if len(self._kept) < n_kept and not self._old:
                return True
        self.complain(str(error))
        return False

    def _clear_away(self, n_kept: int) -> None:
        """Delete all but the last few checkpoints, and files that belong to none."""
        self._old += self._kept[:-n_kept]
        self._kept = self._kept[-n_kept:]
        used = {files_key(path) for path in self._kept}
        needed = self.needed()
        unused = {key for key in self._files - used if files_path(key) not in needed}
        self._files -= unused
        self._old += [files_path(key) for key in sorted(unused)]
        self._old = [path for path in self._old if not self._deleted(path)]

    def _deleted(self, path: str) -> bool:
        try:
            self._folder.delete(path)
        except StorageError:
            return False  # tried again next time
        return True


def _with_time(detail: dict[str, Any], took_s: float) -> dict[str, Any]:
    """With what it took, of a checkpoint the longer of that and of the whole way of the last."""
    if "took_s" not in detail:
        return detail
    return detail | {"took_s": max(took_s, detail["took_s"])}
