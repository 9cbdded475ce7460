"""The variables of this process, read while other threads set theirs."""

import os
from contextlib import suppress


def environment() -> dict[str, str]:
    """A copy, for a child process.

    Imports of other threads set variables: a child without a copy may find the memory moved
    (EFAULT), and copying may find another number of them than before, so it is tried again.
    """
    while True:
        with suppress(RuntimeError, KeyError):
            return dict(os.environ)
