"""Cases about the engine itself; each is a function of the Keras module and an `Engine`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Engine:
    parallel: Any
    rank: int
    n: int


CASES = {}
