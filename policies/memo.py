"""Remember what a pure function last found, for arguments that are quick to compare."""

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")

# Results that are kept; each may hold arrays of a number for every pair of nodes.
KEPT: Final = 2
# Results that are kept of small ones by the object that they are of.
KEPT_OF_OBJECTS: Final = 4096


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


def remembered_of(function: Callable[[A], T]) -> Callable[[A], T]:
    """The function of one value, which computes nothing anew for an object that it has seen.

    For frozen values that are asked about again and again, and that are slow to compare or to
    hash.
    """
    kept: dict[int, tuple[A, T]] = {}  # holds the object, so that no other has its identity

    @wraps(function)
    def remembering(value: A) -> T:
        found = kept.get(id(value))
        if found is not None:
            return found[1]
        if len(kept) >= KEPT_OF_OBJECTS:
            kept.clear()
        result = function(value)
        kept[id(value)] = (value, result)
        return result

    return remembering
