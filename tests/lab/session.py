"""Where a lab keeps its files, and the sweep of what dead labs left behind."""

import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cpu_quota import cpu_group, make_group, remove_group

ROOT = Path("/tmp/launch-lab")
GROUPS = "launch-lab"
_LOCK, _OWNED = ".lock", "owned"


@dataclass(frozen=True, slots=True)
class Session:
    """One lab's folder and group, which no other lab shares.

    Args:
        name: `PID-NUMBER` of the owner.
        owned: descriptor of a lock that the kernel lets go of when the owner dies.
    """

    name: str
    owned: int

    @property
    def folder(self) -> Path:
        return ROOT / self.name

    @property
    def group(self) -> Path:
        return cpu_group(f"{GROUPS}/{self.name}")

    def close(self) -> None:
        """Remove folder and group; whatever still runs in the group is killed."""
        with _locked():
            _remove(self.name)
            os.close(self.owned)


def open_session() -> Session:
    """A new session, after a sweep of the ones whose owners are dead."""
    ROOT.mkdir(mode=0o755, exist_ok=True)
    with _locked():
        for name in stale_sessions():
            _remove(name)
        names = (f"{os.getpid()}-{number}" for number in itertools.count(1))
        name = next(name for name in names if not (ROOT / name).exists())
        (ROOT / name).mkdir()
        owned = os.open(ROOT / name / _OWNED, os.O_CREAT | os.O_RDWR)
        fcntl.flock(owned, fcntl.LOCK_EX)
    session = Session(name, owned)
    make_group(session.group)
    return session


def stale_sessions() -> list[str]:
    """Sessions whose owner has let go of its lock, by dying."""
    return [folder.name for folder in ROOT.iterdir() if folder.is_dir() and not _is_owned(folder)]


def _is_owned(folder: Path) -> bool:
    try:
        probe = os.open(folder / _OWNED, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(probe)
    return False


def _remove(name: str) -> None:
    remove_group(cpu_group(f"{GROUPS}/{name}"))
    shutil.rmtree(ROOT / name, ignore_errors=True)


@contextmanager
def _locked() -> Iterator[None]:
    """One lab at a time makes or removes sessions."""
    with (ROOT / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
