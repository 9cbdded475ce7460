"""What the driver asks of a node about data, and what the node answers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from launcher.errors import LauncherError
from launcher.worker.staging.cache import Cache
from launcher.worker.staging.manifest import Manifest

DEFAULT_CACHE: Final = ".launch/data"  # in the home folder of the node's user


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node is to have.

    Attributes:
        cache: folder for copies; None: the default.
        limit_bytes: what the cache may take; None: what the disk has.
        through_driver: indices of sources that are read through the driver's machine.
    """

    manifest: Manifest
    cache: str | None = None
    limit_bytes: int | None = None
    through_driver: frozenset[int] = frozenset()

    def open_cache(self) -> Cache:
        """This node's cache.

        Raises:
            DataError: it cannot be made.
        """
        folder = Path(self.cache).expanduser() if self.cache else Path.home() / DEFAULT_CACHE
        return Cache(folder, self.limit_bytes)


@dataclass(frozen=True, slots=True)
class DataPlace:
    """Where a node's processes find the data; `lock` is held while they use a copy."""

    folder: str
    lock: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a node has: how much is to come, and which local sources it does not see."""

    missing_bytes: int
    absent: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Report:
    """How far a node is.

    Attributes:
        there_bytes: of the data: found, or brought.
        fetched_bytes: that came over the network for this.
        is_waiting: whether another launch brings them just now.
        place: set at the end.
        digest: then, of the `n_copied` files that are copies.
        error: why it ended without.
    """

    there_bytes: int = 0
    fetched_bytes: int = 0
    is_waiting: bool = False
    place: DataPlace | None = None
    digest: str = ""
    n_copied: int = 0
    error: LauncherError | None = field(default=None, compare=False)

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens."""
        return self.place is not None or self.error is not None
