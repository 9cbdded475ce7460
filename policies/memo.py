"""Remember what a pure function last found, for arguments that are quick to compare."""

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Results that are kept; each may hold arrays of a number for every pair of nodes.
KEPT: Final = 2


def remembered(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which computes nothing anew for the arguments of its last calls.

    Values of frozen dataclasses and tuples are compared, which is quick where they are the same
    objects; `functools.lru_cache` would hash every link of a network at every call.
    """
    kept: list[tuple[tuple[object, ...], T]] = []

    @wraps(function)
    def remembering(*args: P.args, **kwargs: P.kwargs) -> T:
        key = (*args, *kwargs.items())
        for known, result in list(kept):
            if known == key:
                return result
        result = function(*args, **kwargs)
        kept.insert(0, (key, result))
        del kept[KEPT:]
        return result

    return remembering
