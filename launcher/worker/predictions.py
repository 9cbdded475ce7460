"""Puts the ranks' predictions together, all rows in order on every rank."""

import pickle
import zlib
from typing import Any

import numpy as np

from launcher.worker.exchange import Exchange


def gather_rows(exchange: Exchange, leaves: list[Any], rows: np.ndarray) -> list[Any] | None:
    """All ranks' rows of every output; collective.

    Args:
        exchange: sums over ranks.
        leaves: this rank's outputs, arrays or ragged tensors, first dimension `len(rows)`.
        rows: int64 `(n,)`, place of each of this rank's rows; -1 for one that does not count.

    Returns:
        The outputs with all rows, or None (on every rank) where an output does not have one
        entry a row.
    """
    by_row = all(hasattr(leaf, "shape") and len(leaf.shape) > 0 for leaf in leaves)
    by_row = by_row and all(int(leaf.shape[0]) == len(rows) for leaf in leaves)
    dense = all(isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" for leaf in leaves)
    forms = [(str(leaf.dtype), tuple(leaf.shape[1:])) for leaf in leaves] if by_row else []
    form = zlib.crc32(repr(forms).encode())
    facts = np.zeros((exchange.world_size, 4), np.int64)
    facts[exchange.rank] = [int(by_row), int(dense), form, int(np.count_nonzero(rows >= 0))]
    (facts,) = exchange.sum_arrays([facts], "form of predictions")
    if not facts[:, 0].all():
        return None
    n_rows = int(facts[:, 3].sum())
    if facts[:, 1].all() and len(set(facts[:, 2].tolist())) == 1:
        return exchange.sum_arrays([_placed(leaf, rows, n_rows) for leaf in leaves], "predictions")
    return _gather_any(exchange, leaves, rows, n_rows)


def _placed(leaf: np.ndarray, rows: np.ndarray, n_rows: int) -> np.ndarray:
    """This rank's rows at their places among `n_rows` rows of zeros."""
    placed = np.zeros((n_rows, *leaf.shape[1:]), leaf.dtype)
    placed[rows[rows >= 0]] = leaf[rows >= 0]
    return placed


def _gather_any(exchange: Exchange, leaves: list[Any], rows: np.ndarray, n_rows: int) -> list[Any]:
    """As `gather_rows`, for strings and rows of unequal shapes."""
    own = [{int(row): _row(leaf, i) for i, row in enumerate(rows) if row >= 0} for leaf in leaves]
    ranks = [pickle.loads(part) for part in gather_bytes(exchange, pickle.dumps(own))]
    gathered = []
    for i in range(len(leaves)):
        by_row = {row: value for rank in ranks for row, value in rank[i].items()}
        gathered.append(_stacked([by_row[row] for row in range(n_rows)]))
    return gathered


def _row(leaf: Any, i: int) -> Any:
    value = leaf[i]
    return value.numpy() if hasattr(value, "numpy") else value


def _stacked(values: list[Any]) -> Any:
    if len({np.shape(value) for value in values}) <= 1:
        return np.stack(values)
    import tensorflow as tf

    return tf.ragged.stack(values)


def gather_bytes(exchange: Exchange, payload: bytes) -> list[bytes]:
    """Every rank's payload, in rank order, on every rank; collective."""
    sizes = np.zeros(exchange.world_size, np.int64)
    sizes[exchange.rank] = len(payload)
    (sizes,) = exchange.sum_arrays([sizes], "sizes of payloads")
    ends = np.cumsum(sizes)
    packed = np.zeros(int(ends[-1]), np.uint8)
    packed[ends[exchange.rank] - len(payload) : ends[exchange.rank]] = np.frombuffer(
        payload, np.uint8
    )
    (packed,) = exchange.sum_arrays([packed], "payloads")
    return [packed[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)]
