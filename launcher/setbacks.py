"""Counts how often training failed at one place."""

from dataclasses import dataclass
from typing import Final

MOST: Final = 3


@dataclass(slots=True)
class Setbacks:
    """Failures in a row from which no later checkpoint came out."""

    _step: int = -1
    _n: int = 0

    def count(self, step: int) -> None:
        """Note a failure whose newest checkpoint is at this step."""
        self._n = self._n + 1 if step <= self._step else 1
        self._step = max(step, self._step)

    @property
    def is_enough(self) -> bool:
        """Whether trying again is of no use."""
        return self._n >= MOST
