"""Where a segment of training begins: at the newest checkpoint, in memory or in storage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.storage import Storage
from launcher.stored import newest_checkpoint


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A position, and references to what workers need to go on from it.

    Attributes:
        position: empty at the very beginning.
        checkpoint: reference to its bytes, or None.
        files: reference to the script's files of that moment, zipped; or None.
    """

    position: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Any = None
    files: Any = None

    @property
    def steps_done(self) -> int:
        """Steps that need not be trained again."""
        return int(self.position.get("total_steps", 0))


def start_point(
    keeper: Any,
    folder: Storage,
    warn: Callable[[str], None],
    *,
    get: Callable[[Any], Any] | None = None,
    put: Callable[[bytes], Any] | None = None,
) -> StartPoint:
    """The newest checkpoint that the keeper holds in memory, or else the newest in storage.

    Args:
        keeper: handle of the keeper actor, or None before there is one.
        get: waits for the answer of a call; Ray's where left out.
        put: makes a reference to a value; Ray's where left out.

    Raises:
        StorageError: storage must be read, and cannot be.
    """
    import ray

    get, put = get or ray.get, put or ray.put
    newest = get(keeper.newest.remote()) if keeper is not None else None
    if newest is not None:
        position, has_files = newest
        files = keeper.newest_files.remote() if has_files else None
        return StartPoint(position, keeper.newest_checkpoint.remote(), files)
    found = newest_checkpoint(folder, warn)
    if found is None:
        return StartPoint()
    files = None if found.files is None else put(found.files)
    return StartPoint(found.position, put(found.data), files)
