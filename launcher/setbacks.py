"""Counts how often training failed at one place."""

from dataclasses import dataclass
from typing import Final

MOST: Final = 3


@dataclass(slots=True)
class Setbacks:
    """Failures in a row from which no later checkpoint came out."""

    n: int = 0
    _step: int = -1

    def count(self, step: int) -> None:
        """Note a failure whose newest checkpoint is at this step."""
        self.n = self.n + 1 if step <= self._step else 1
        self._step = max(step, self._step)

    @property
    def is_enough(self) -> bool:
        """Whether trying again is of no use."""
        return self.n >= MOST
