"""A process, told apart from others of its number on other machines and at other times."""

import getpass
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat after the name, from 0


@dataclass(frozen=True, slots=True)
class Process:
    """A process of some machine.

    Attributes:
        space: of process numbers: the boot of a kernel and the container; empty where not known.
        started: when, in ticks since that boot; empty where not known.
    """

    user: str
    host: str
    pid: int
    space: str = ""
    started: str = ""

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.pid}"

    @property
    def is_here(self) -> bool:
        """Whether its number means something to this process."""
        return bool(self.space) and self.space == _space()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, or could go on; only for one that is here."""
        stat = _stat(self.pid)
        return bool(stat) and stat[_STARTED] == self.started and stat[_STATE] not in "ZX"

    @property
    def is_stopped(self) -> bool:
        """Whether it is suspended, as by Ctrl-Z; only for one that is here."""
        stat = _stat(self.pid)
        return bool(stat) and stat[_STATE] in "Tt"

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            if self.is_alive:
                os.kill(self.pid, number)


def process(pid: int | None = None) -> Process:
    """The process of that number on this machine; this one if none is given."""
    number = os.getpid() if pid is None else pid
    stat = _stat(number)
    started = stat[_STARTED] if stat else ""
    return Process(getpass.getuser(), socket.gethostname(), number, _space(), started)


def _space() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none where there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
