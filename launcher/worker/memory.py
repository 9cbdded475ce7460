"""How much memory this process may still take, as its cgroups and the machine have it."""

from collections.abc import Iterator
from pathlib import Path

from launcher.worker.cgroups import CGROUPS, MEMBERSHIP, groups


def free_bytes(
    cgroups: Path = CGROUPS,
    membership: Path = MEMBERSHIP,
    machine: Path = Path("/proc/meminfo"),
) -> int | None:
    """The least of what all limits that hold here leave; None where the system does not tell.

    Args:
        cgroups: where the hierarchies are mounted.
        membership: the file that names this process's groups.
        machine: the file that tells of the whole machine.
    """
    return min([*_machine(machine), *_groups(cgroups, membership)], default=None)


def _machine(file: Path) -> Iterator[int]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1])


def _groups(cgroups: Path, membership: Path) -> Iterator[int]:
    """What is left in this process's groups, and in all groups that those lie in."""
    for folder, is_v2 in groups("memory", cgroups, membership):
        if is_v2:
            yield from _left(folder, "memory.max", "memory.current")
        else:
            yield from _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(folder: Path, limit_name: str, used_name: str) -> Iterator[int]:
    """What a group's limit leaves; files that it has in memory can be given up."""
    limit, used = _number(folder / limit_name), _number(folder / used_name)
    if limit is not None and used is not None:
        yield max(0, limit - used + _files_in_memory(folder / "memory.stat"))


def _files_in_memory(file: Path) -> int:
    try:
        fields = dict(line.split() for line in file.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(fields.get("inactive_file", 0))


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
