"""How many CPUs the operating system lets this process use: its affinity and cgroup quotas."""

import os
from collections.abc import Iterator
from pathlib import Path

from launcher.worker.cgroups import CGROUPS, MEMBERSHIP, groups


def allowed_cpus(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """The smallest limit that holds here; None where the system does not tell.

    Args:
        cgroups: where the hierarchies are mounted.
        membership: the file that names this process's groups.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    limits = [] if affinity is None else [float(len(affinity(0)))]
    limits += _quotas(cgroups, membership)
    return min(limits, default=None)


def _quotas(cgroups: Path, membership: Path) -> Iterator[float]:
    for folder, is_v2 in groups("cpu", cgroups, membership):
        quota = _quota_v2(folder) if is_v2 else _quota_v1(folder)
        if quota is not None:
            yield quota


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else float(quota) / float(period)


def _number(file: Path) -> float | None:
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return None
