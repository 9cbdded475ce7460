"""The cgroups that limit this process."""

from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def groups(
    controller: str, cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP
) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's groups and of all groups that those lie in.

    Args:
        controller: such as "cpu".
        cgroups: where the hierarchies are mounted.
        membership: the file that names this process's groups.

    Yields:
        A folder, and whether its files are those of version 2.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = cgroups / controller if controllers else cgroups
        folder = mount / group.strip("/")
        for each in (folder, *folder.parents):
            if each.is_relative_to(mount):
                yield each, not controllers
