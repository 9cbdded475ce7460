"""Linear algebra on one thread, since threads wait longer for each other than small sums take."""

from contextlib import AbstractContextManager
from functools import lru_cache

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[object]:
    """Keep BLAS and LAPACK to one thread inside a `with` block.

    A fit of ten records took 9 ms so, and 80 ms on two threads of a machine that was busy.
    """
    limited: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limited


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Of the libraries that are loaded, which takes a while to find out."""
    return ThreadpoolController()
