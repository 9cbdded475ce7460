"""A node's sentry: a tiny process that tells whether the node lives and what its workers do."""

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from launcher.worker.activity import (
    DUMP_SIGNAL,
    STACK_SUFFIX,
    Activity,
    WorkerFile,
    watch_folder,
)

DUMP_S = 1.0  # for a process to write its stacks
SPEED_S = 0.3  # longer than a period of the kernel's quotas, 0.1 s


class Sentry:
    """Runs as a Ray actor on a node; answers even if the workers there do not.

    Args:
        node_id: of its node.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._watch = ""

    def look(self, watch: str) -> tuple[Activity, ...]:
        """What each worker of a segment does here; those that ended in order are not named."""
        self._watch = watch
        now_s = time.monotonic()
        return tuple(file.activity(now_s) for file in self._files())

    def stacks(self) -> dict[int, str]:
        """What each worker's threads are doing, by rank; see `faulthandler`."""
        files = [file for file in self._files() if file.is_alive]
        sizes = {file.path: _size(file) for file in files}
        for file in files:
            with contextlib.suppress(ProcessLookupError):
                os.kill(file.pid, DUMP_SIGNAL)
        until_s = time.monotonic() + DUMP_S
        while time.monotonic() < until_s and any(
            _size(file) == sizes[file.path] or _is_dumping(file.pid) for file in files
        ):
            time.sleep(0.02)
        return {int(file.path.name): _text(file, sizes[file.path]) for file in files}

    def speed(self) -> float:
        """How many rounds of a fixed piece of work this node does a second, beside its others."""
        began_s, rounds = time.perf_counter(), 0
        while time.perf_counter() - began_s < SPEED_S:
            sum(range(1000))
            rounds += 1
        return rounds / (time.perf_counter() - began_s)

    def end_workers(self) -> None:
        """Kill what still runs of the segment, and remove what it leaves on this machine."""
        for file in self._files():
            if file.is_alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(file.pid, signal.SIGKILL)
            shutil.rmtree(Path(file.folder), ignore_errors=True)
        if self._watch:
            folder = watch_folder(self._watch, self._node_id)
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # other nodes on this machine
                folder.parent.rmdir()

    def _files(self) -> "list[WorkerFile]":
        if not self._watch:
            return []
        folder = watch_folder(self._watch, self._node_id)
        found = (WorkerFile.read(path) for path in _ranks(folder))
        return [file for file in found if file is not None]


def _ranks(folder: Path) -> "Iterable[Path]":
    return sorted(path for path in folder.glob("*") if path.name.isdigit())


def _size(file: WorkerFile) -> int:
    try:
        return file.path.with_suffix(STACK_SUFFIX).stat().st_size
    except OSError:
        return 0


def _is_dumping(pid: int) -> bool:
    """Whether the signal to dump waits, or is blocked as while its handler runs (proc(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = re.findall(r"^(?:SigPnd|ShdPnd|SigBlk):\s*(\w+)", status, re.MULTILINE)
    return any(int(mask, 16) >> (DUMP_SIGNAL - 1) & 1 for mask in masks)


def _text(file: WorkerFile, begin: int) -> str:
    try:
        return file.path.with_suffix(STACK_SUFFIX).read_bytes()[begin:].decode(errors="replace")
    except OSError:
        return ""
