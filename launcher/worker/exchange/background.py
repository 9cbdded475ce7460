"""Sums of vectors that go on in the background, several at a time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from launcher.worker.exchange.algorithms.call import Call, Scratch, Vector
from launcher.worker.exchange.algorithms.mailbox import Mailbox
from launcher.worker.exchange.buckets import MAX_BUCKETS

AllReduce = Callable[[Call, Vector, Vector], None]


class Background:
    """Runs sums on threads of its own, in the order in which they were begun.

    All ranks begin the same sums in the same order, so the oldest one runs on all of them.

    Args:
        mailbox: messages between ranks.
        all_reduce: sums a vector over ranks.
    """

    def __init__(self, mailbox: Mailbox, all_reduce: AllReduce) -> None:
        self._mailbox, self._all_reduce = mailbox, all_reduce
        self._pool = ThreadPoolExecutor(MAX_BUCKETS, thread_name_prefix="launch-exchange")
        self._totals: dict[int, Future[Vector]] = {}
        self._scratch_by_slot: dict[int, Scratch] = {}

    def begin(self, number: int, slot: int, vector: Vector) -> None:
        """Begin a sum; returns at once.

        Args:
            number: of the call, see `Call`.
            slot: whose buffers to use; sums at the same time have different ones.
            vector: must not change until the sum has ended.
        """
        scratch = self._scratch_by_slot.setdefault(slot, Scratch())
        call = Call(self._mailbox, number, scratch)
        self._totals[number] = self._pool.submit(self._sum, call, vector)

    def end(self, number: int) -> Vector:
        """Wait for a sum that was begun.

        Raises:
            PeerLostError: a peer was lost meanwhile.
        """
        return self._totals.pop(number).result()

    def close(self) -> None:
        """Begin nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _sum(self, call: Call, vector: Vector) -> Vector:
        total = np.empty_like(vector)
        self._all_reduce(call, vector, total)
        return total
