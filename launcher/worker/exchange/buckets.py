"""In which buckets gradients leave while the backward pass still makes the others."""

from collections.abc import Sequence
from typing import Any

MAX_BUCKETS = 8  # of about equal size, where tensors allow
MIN_BUCKET_BYTES = 64 << 10


def buckets_of(
    sizes_bytes: Sequence[int], dtypes: Sequence[Any], least_bytes: int = MIN_BUCKET_BYTES
) -> list[list[int]]:
    """Which tensors travel together, in the order in which the backward pass makes them.

    That is the reverse of the order of variables: last layers first. Each bucket has tensors of
    one dtype, and closes as soon as it is large enough; what is left makes the last one.

    Args:
        sizes_bytes: of the tensors, in the order of variables.
        dtypes: of the tensors.
        least_bytes: size of a bucket that may close.

    Returns:
        Places of tensors by bucket; every place occurs once.
    """
    enough = max(least_bytes, sum(sizes_bytes) // MAX_BUCKETS)
    closed: list[list[int]] = []
    open_by_dtype: dict[Any, list[int]] = {}
    for place in reversed(range(len(sizes_bytes))):
        places = open_by_dtype.setdefault(dtypes[place], [])
        places.append(place)
        if sum(sizes_bytes[p] for p in places) >= enough:
            closed.append(open_by_dtype.pop(dtypes[place]))
    return closed + list(open_by_dtype.values())
