"""Says how far a fetch is, now and then."""

import time
from collections.abc import Callable

from policies.wording import size


class Shown:
    """Says how far it is: twice a second on a terminal, seldom elsewhere.

    Args:
        what: is going on.
        stage: takes the text.
    """

    def __init__(self, what: str, stage: Callable[[str], None], *, is_tty: bool) -> None:
        self._what, self._stage, self._every_s = what, stage, 0.5 if is_tty else 30.0
        self._shown_at_s = time.monotonic()

    def tell(self, n_there: int, n_bytes: int) -> None:
        """See `Fetching`."""
        if time.monotonic() - self._shown_at_s >= self._every_s:
            self._shown_at_s = time.monotonic()
            self._stage(f"{self._what}: {size(n_there)} of {size(n_bytes)}")
