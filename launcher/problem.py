"""A problem that a checkup found on a node, and how bad it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["ok", "note", "warn", "fail"]
Check = Literal[
    "answers", "versions", "ports", "clock", "disk", "memory", "cpus", "modules", "paths"
]
CHECKS: tuple[Check, ...] = get_args(Check)
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong on a node, as the rest of a sentence that begins with its name.

    `everywhere`: neither the driver nor any node has it, so it's the script's own affair.
    """

    node: str
    check: Check
    level: Level
    text: str
    everywhere: bool = False


def worst(found: Iterable[Level]) -> Level:
    """The worst of these levels; "ok" if there are none."""
    return max(found, key=LEVELS.index, default="ok")
