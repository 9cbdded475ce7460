"""Room for large arrays in a file instead of memory.

Under a limit on memory (a cgroup's), pages of a file can be written out; other memory cannot.
"""

import itertools
import logging
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

FROM_BYTES = 64 << 20  # less than this is in memory
ALIGNED = 64


def rooms(sizes: Sequence[int]) -> list[Array]:
    """Arrays of so many bytes each, for anything; together in a file where they are large.

    The file has no name, and is gone with the last of them.
    """
    steps = [-(-size // ALIGNED) * ALIGNED for size in sizes]
    whole = _in_file(sum(steps)) if sum(steps) > FROM_BYTES else None
    if whole is None:
        return [np.empty(size, np.uint8) for size in sizes]
    starts = itertools.accumulate(steps, initial=0)
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def _in_file(n_bytes: int) -> Array | None:
    """Bytes in a file; None, with a warning, where there is no room for it."""
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, n_bytes)  # or a full disk would end the process
            return np.frombuffer(mmap.mmap(file.fileno(), n_bytes), np.uint8)
    except OSError as error:
        logger.warning(
            "%.1f GB are kept in memory: there is no room in %s (%s)",
            n_bytes / 1e9, tempfile.gettempdir(), error,
        )  # fmt: skip
        return None
