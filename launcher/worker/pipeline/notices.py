"""Small messages between all ranks of a pipeline: one rank tells the others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from launcher.worker.exchange.algorithms.mailbox import Mailbox, Pending

NOTICES = 3 << 60  # in the tags of notices, which no other messages have


@dataclass(frozen=True, slots=True, eq=False)
class Notice:
    """Numbers that one rank tells all others, under way."""

    numbers: Any
    pending: tuple[Pending, ...]

    def wait(self) -> Any:
        """The numbers, float64; blocks until they are there."""
        for each in self.pending:
            each.wait()
        return self.numbers


class Notices:
    """Tells numbers; all ranks call it in the same order.

    Args:
        mailbox: between the ranks.
        numbers: of messages, alike on all ranks.
    """

    def __init__(self, mailbox: Mailbox, numbers: Iterator[int]) -> None:
        self._mailbox, self._numbers = mailbox, numbers

    def tell(self, teller: int, numbers: Any) -> Notice:
        """Tell others, or hear from them; returns at once.

        Args:
            teller: the rank that tells.
            numbers: float64, `(n,)`; at other ranks only `n` counts.
        """
        mailbox, tag = self._mailbox, NOTICES | next(self._numbers)
        data = np.array(numbers, np.float64)
        raw = data.view(np.uint8)
        if mailbox.rank != teller:
            return Notice(data, (mailbox.receive(teller, tag, raw),))
        others = (rank for rank in range(mailbox.world_size) if rank != teller)
        return Notice(data, tuple(mailbox.send(rank, tag, raw) for rank in others))
