"""Some entries of a vector, and their shortest form on the wire."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

VALUE_BYTES = 4
INDEX_BYTES = 4

Vector = np.ndarray
"""Flat, float32, shape `(d,)`: all trainable variables of a model one after another."""


class Form(IntEnum):
    """How entries are written."""

    SPAN = 1  # values of consecutive entries
    MASK = 2  # a bit for every entry of the vector, then values
    INDEX = 3  # indices, then values


class PartError(ValueError):
    """What a peer sent is no part of our vector."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive entries.

    Attributes:
        begin: index of the first.
        values: float32, shape `(k,)`.
    """

    begin: int
    values: Vector

    def add_to(self, total: Vector) -> None:
        """Adds the entries to a whole vector in place."""
        total[self.begin : self.begin + len(self.values)] += self.values


@dataclass(frozen=True, slots=True)
class Entries:
    """Scattered entries.

    Attributes:
        indices: ascending, each once, shape `(k,)`.
        values: float32, shape `(k,)`.
    """

    indices: np.ndarray
    values: Vector

    def add_to(self, total: Vector) -> None:
        """Adds the entries to a whole vector in place."""
        total[self.indices] += self.values


Part = Span | Entries


def is_finite(vector: Vector) -> bool:
    """Whether all entries are, and so are sums of many such vectors: its norm is below 1e19."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(vector, vector)))


def size_bytes(n_entries: int, size: int) -> int:
    """Bytes of `n_entries` scattered entries of a vector of `size`, in the shortest form."""
    return min(
        VALUE_BYTES * size,
        _mask_bytes(size) + VALUE_BYTES * n_entries,
        (INDEX_BYTES + VALUE_BYTES) * n_entries,
    )


def n_entries_in(n_bytes: int, size: int) -> int:
    """The most scattered entries of a vector of `size` that fit, see `size_bytes`."""
    if n_bytes >= VALUE_BYTES * size:
        return size
    by_mask = (n_bytes - _mask_bytes(size)) // VALUE_BYTES
    by_index = n_bytes // (INDEX_BYTES + VALUE_BYTES)
    return max(0, by_mask, by_index)


def pack(part: Part, size: int) -> tuple[Form, bytes]:
    """The shortest form of some entries of a vector of `size`, and its bytes."""
    values = np.ascontiguousarray(part.values, "<f4")
    if isinstance(part, Span):
        return Form.SPAN, values.tobytes()
    if size_bytes(len(values), size) == VALUE_BYTES * size:
        whole = np.zeros(size, "<f4")
        whole[part.indices] = values
        return Form.SPAN, whole.tobytes()
    if _mask_bytes(size) < INDEX_BYTES * len(values):
        mask = np.zeros(size, np.bool_)
        mask[part.indices] = True
        return Form.MASK, np.packbits(mask).tobytes() + values.tobytes()
    return Form.INDEX, part.indices.astype("<u4").tobytes() + values.tobytes()


def unpack(form: int, begin: int, n_entries: int, data: memoryview, size: int) -> Part:
    """Entries of a vector of `size` from what came over the wire.

    Args:
        form: one of `Form`.
        begin: index of the first entry of a span.
        n_entries: how many there should be.
        data: their bytes, `packed_bytes` of them.
        size: of the whole vector.

    Raises:
        PartError: they are no such entries.
    """
    if len(data) != packed_bytes(form, begin, n_entries, size):
        raise PartError(f"{len(data)} bytes cannot be {n_entries} entries in form {form}")
    values = np.frombuffer(data[len(data) - VALUE_BYTES * n_entries :], "<f4")
    if not np.isfinite(values).all():
        raise PartError("values that are not finite")
    if form == Form.SPAN:
        return Span(begin, values)
    if form == Form.MASK:
        bits = np.frombuffer(data[: _mask_bytes(size)], np.uint8)
        indices = np.flatnonzero(np.unpackbits(bits))
    else:
        indices = np.frombuffer(data[: INDEX_BYTES * n_entries], "<u4").astype(np.int64)
    if len(indices) != n_entries or (np.diff(indices) <= 0).any():
        raise PartError(f"{len(indices)} indices for {n_entries} entries, or not in order")
    if n_entries and indices[-1] >= size:
        raise PartError(f"index {indices[-1]} in a vector of {size}")
    return Entries(indices, values)


def packed_bytes(form: int, begin: int, n_entries: int, size: int) -> int:
    """How many bytes such entries have, known before any memory is taken for them.

    Raises:
        PartError: there cannot be such entries.
    """
    if form not in tuple(Form) or not 0 <= begin <= begin + n_entries <= size:
        raise PartError(f"{n_entries} entries from {begin} in form {form} of a vector of {size}")
    heads = {Form.SPAN: 0, Form.MASK: _mask_bytes(size), Form.INDEX: INDEX_BYTES * n_entries}
    return heads[Form(form)] + VALUE_BYTES * n_entries


def _mask_bytes(size: int) -> int:
    return (size + 7) // 8
