"""A host's share of the machine's CPUs, by control groups of version 1 or 2."""

import contextlib
import errno
import os
import signal
import time
from pathlib import Path

V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
# Long periods stall a process for most of one (93 ms at the usual 100 ms and a small quota).
PERIOD_US = 20_000
MIN_QUOTA_US = 1_000  # the kernel's
REMOVAL_S = 60.0


def cpu_group(name: str) -> Path:
    """Where the group of this name lies (made or not); names may be nested with '/'."""
    return (V1 if V1.is_dir() else V2) / name


def make_group(group: Path) -> Path:
    """Make the group, and those that it lies in; version 2 must be told to hand the CPU down."""
    for folder in (*reversed(group.parents), group):
        if folder.exists():
            continue
        if not V1.is_dir():
            (folder.parent / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir()
    return group


def set_quota(group: Path, cpus: float | None) -> None:
    """Cap what all processes of the group may use together; None is no cap."""
    quota_us = None if cpus is None else max(MIN_QUOTA_US, round(cpus * PERIOD_US))
    if V1.is_dir():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))
    else:
        (group / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {PERIOD_US}")


def quota(group: Path) -> float | None:
    """The cap in cores, or None where there is none."""
    if V1.is_dir():
        words = [(group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
    else:
        words = (group / "cpu.max").read_text().split()
    return None if words[0].strip() in {"-1", "max"} else int(words[0]) / int(words[1])


def processes(group: Path) -> list[int]:
    """The processes of this group and of those inside it."""
    return [
        int(word) for listing in group.rglob("cgroup.procs") for word in listing.read_text().split()
    ]


def remove_group(group: Path) -> None:
    """Kill what is left in the group, and remove it and those inside it."""
    if not group.is_dir():
        return
    until = time.monotonic() + REMOVAL_S
    while (left := processes(group)) and time.monotonic() < until:
        for pid in left:
            _kill(pid)
        time.sleep(0.01)  # a killed process leaves its group a moment later
    folders = [folder for folder in group.rglob("*") if folder.is_dir()]
    for folder in (*sorted(folders, reverse=True), group):
        _remove(folder, until)


def _remove(folder: Path, until: float) -> None:
    while True:
        try:
            return folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
