"""An exchange between threads of one process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

TIMEOUT_S = 60


class Board:
    """Where ranks lay down what they send and pick up what the others sent."""

    def __init__(self, n: int) -> None:
        self.sent: list[Any] = [None] * n
        self.barrier = threading.Barrier(n, timeout=TIMEOUT_S)

    def share(self, rank: int, value: Any) -> list[Any]:
        self.sent[rank] = value
        self.barrier.wait()
        values = list(self.sent)
        self.barrier.wait()
        return values


class ThreadExchange:
    """Sums over threads, eagerly; checks that all ranks exchange the same thing."""

    waits = None

    def __init__(self, board: Board, rank: int, world_size: int) -> None:
        self._board, self.rank, self.world_size = board, rank, world_size

    def sum_tensors(self, tensors, purpose):
        import tensorflow as tf

        return [tf.constant(t) for t in self.sum_arrays([t.numpy() for t in tensors], purpose)]

    def sum_arrays(self, arrays, purpose):
        sent = self._board.share(self.rank, (purpose, [np.asarray(a) for a in arrays]))
        assert len({what for what, _ in sent}) == 1
        return [sum(parts[1:], parts[0]) for parts in zip(*(a for _, a in sent), strict=True)]

    def gather_rows(self, tensors, purpose):
        import tensorflow as tf

        sent = self._board.share(self.rank, (purpose, [t.numpy() for t in tensors]))
        return [tf.concat(parts, 0) for parts in zip(*(a for _, a in sent), strict=True)]


def on_ranks(n: int, work: Callable[[ThreadExchange], Any]) -> list[Any]:
    """Runs `work` as every rank of `n`; the results by rank."""
    board = Board(n)
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, [ThreadExchange(board, rank, n) for rank in range(n)]))
