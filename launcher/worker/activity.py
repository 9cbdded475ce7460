"""What a training process is doing, in a small file that outlives it: for the node's sentry.

Writing to it is a store to memory, and reading it needs nothing of the process, which may hang,
be stopped or be dead.
"""

import contextlib
import enum
import faulthandler
import mmap
import os
import signal
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

DUMP_SIGNAL = signal.SIGUSR2
STACK_SUFFIX = ".stack"
_BYTES = 4096
# process id, its start in clock ticks since boot, phase, ticks, seconds of the monotonic clock
_HEADER = struct.Struct("<qqqqd")
_LENGTH = struct.Struct("<q")


class Phase(enum.IntEnum):
    """What a worker is at; how long each may take without a sign of progress differs."""

    STARTING = 0  # TensorFlow, the exchange
    SCRIPT = 1  # the script's lines outside of `fit`
    COMPILING = 2  # the first step of a `fit`
    STEP = 3
    BETWEEN = 4  # callbacks of the script, reading of data
    EVALUATING = 5
    SAVING = 6


@dataclass(frozen=True, slots=True)
class Activity:
    """What a worker was doing when its node's sentry looked.

    Attributes:
        ticks: counts everything that is progress: steps, batches of an evaluation, phases.
        idle_s: since the last of them.
        is_alive: whether the process is there.
        is_stopped: whether it is stopped (SIGSTOP, a debugger).
        pid: the process, by its own machine's numbers.
    """

    rank: int
    phase: Phase
    ticks: int
    idle_s: float
    is_alive: bool = True
    is_stopped: bool = False
    pid: int = 0


class ActivityFile:
    """The file of this process; removed at an orderly end.

    Args:
        path: to be made; its name is the rank.
        folder: the rank's private folder, which a sentry removes if this process cannot.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._stack = path.with_suffix(STACK_SUFFIX).open("w")
        # Also dumps while a thread keeps the interpreter to itself.
        faulthandler.register(DUMP_SIGNAL, self._stack, all_threads=True)
        made = path.with_suffix(".new")
        text = str(folder).encode()
        made.write_bytes(
            (_HEADER.pack(0, 0, 0, 0, 0.0) + _LENGTH.pack(len(text)) + text).ljust(_BYTES, b"\0")
        )
        with made.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)
        self._pid, self._started = os.getpid(), _started(os.getpid()) or 0
        self.phase, self._ticks = Phase.STARTING, 0
        self.tick()
        made.rename(path)

    @classmethod
    def of_rank(cls, watch: str, node_id: str, rank: int, folder: Path) -> Self:
        """The file where the sentry of this node looks for it."""
        return cls(watch_folder(watch, node_id) / str(rank), folder)

    def tick(self) -> None:
        """Note progress."""
        self._ticks += 1
        _HEADER.pack_into(
            self._memory, 0, self._pid, self._started, self.phase, self._ticks, time.monotonic()
        )

    def enter(self, phase: Phase) -> None:
        """Note that another phase has begun."""
        self.phase = phase
        self.tick()

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """The phase while the block runs; afterwards it is as before."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def close(self) -> None:
        """The process has done its part: nothing is to be watched any more."""
        faulthandler.unregister(DUMP_SIGNAL)
        self._path.unlink(missing_ok=True)
        self._path.with_suffix(STACK_SUFFIX).unlink(missing_ok=True)
        self._stack.close()
        self._memory.close()
        with contextlib.suppress(OSError):  # others are still there
            self._path.parent.rmdir()
            self._path.parent.parent.rmdir()


class Attended:
    """Stands for `target`, and notes the time that its `write…` methods take as saving."""

    def __init__(self, target: Any, activity: ActivityFile) -> None:
        self._target, self._activity = target, activity

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not name.startswith("write"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._activity.during(Phase.SAVING):
                return found(*args, **kwargs)

        return call


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """A worker's file, as another process reads it."""

    path: Path
    pid: int
    started: int
    phase: Phase
    ticks: int
    changed_s: float
    folder: str

    @classmethod
    def read(cls, path: Path) -> "WorkerFile | None":
        """What the file says; None if it is gone."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        pid, started, phase, ticks, changed_s = _HEADER.unpack_from(data)
        (length,) = _LENGTH.unpack_from(data, _HEADER.size)
        begin = _HEADER.size + _LENGTH.size
        folder = data[begin : begin + length].decode()
        return cls(path, pid, started, Phase(phase), ticks, changed_s, folder)

    @property
    def is_alive(self) -> bool:
        """Whether that very process is there."""
        return _started(self.pid) == self.started

    def activity(self, now_s: float) -> Activity:
        """What the worker is doing at this moment of the monotonic clock."""
        return Activity(
            int(self.path.name),
            self.phase,
            self.ticks,
            max(0.0, now_s - self.changed_s),
            self.is_alive,
            _state(self.pid) in ("T", "t"),
            self.pid,
        )


def watch_folder(watch: str, node_id: str) -> Path:
    """Where the workers of a segment on a node have their files."""
    return Path(tempfile.gettempdir()) / f"launch-watch-{os.getuid()}" / watch / node_id[:16]


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none (proc(5))."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


def _state(pid: int) -> str | None:
    fields = _stat(pid)
    return None if fields is None else fields[0]


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
