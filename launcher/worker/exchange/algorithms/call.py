"""What the algorithms have in common: tags, parts, segments, buffers that are used again."""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from launcher.worker.exchange.algorithms.mailbox import Mailbox, Pending

SEGMENT_BYTES = 1 << 20
PHASE_BITS, SEGMENT_BITS, CALL_BITS = 12, 20, 31

Vector = np.ndarray[Any, np.dtype[Any]]


class Scratch:
    """Buffers that are used again from call to call; calls at the same time need one each."""

    def __init__(self) -> None:
        self._buffers: dict[Hashable, np.ndarray] = {}

    def array(self, name: Hashable, size: int, dtype: np.dtype[Any]) -> Vector:
        """An array of `size` elements with arbitrary content, the same memory every time."""
        n_bytes = size * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < n_bytes:
            buffer = self._buffers[name] = np.empty(n_bytes, np.uint8)
        return buffer[:n_bytes].view(dtype)


@dataclass(frozen=True, slots=True)
class Call:
    """One sum or gathering of all ranks.

    Args:
        mailbox: messages.
        number: of the call, in 0 … 2**31 − 1; the same on all ranks, and no two alike.
        scratch: buffers.
        segment_bytes: pieces in which vectors travel, so that adding one overlaps receiving
            the next.
    """

    mailbox: Mailbox
    number: int
    scratch: Scratch
    segment_bytes: int = SEGMENT_BYTES

    def __post_init__(self) -> None:
        if not 0 <= self.number < 1 << CALL_BITS:
            raise ValueError(f"call number {self.number} is not in 0 … 2**{CALL_BITS} − 1")

    @property
    def rank(self) -> int:
        """Our own rank."""
        return self.mailbox.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.mailbox.world_size

    @property
    def peers(self) -> list[int]:
        """The other ranks, beginning with the next one, so that not all send to rank 0 first."""
        return [(self.rank + i) % self.world_size for i in range(1, self.world_size)]

    def tag(self, phase: int, segment: int) -> int:
        """The tag of a message."""
        if not (0 <= phase < 1 << PHASE_BITS and 0 <= segment < 1 << SEGMENT_BITS):
            raise ValueError(f"no tag for phase {phase} and segment {segment}")
        return (self.number << PHASE_BITS | phase) << SEGMENT_BITS | segment

    def send(self, to: int, phase: int, segment: int, data: Vector) -> Pending:
        """Send a segment."""
        return self.mailbox.send(to, self.tag(phase, segment), data.view(np.uint8))

    def receive(self, source: int, phase: int, segment: int, into: Vector) -> Pending:
        """Receive a segment."""
        return self.mailbox.receive(source, self.tag(phase, segment), into.view(np.uint8))

    def segments(self, part: slice, dtype: np.dtype[Any]) -> list[slice]:
        """Cuts a part at multiples of the segment size, counted from the vector's beginning.

        So parts that overlap are cut alike where they do.
        """
        size = max(1, self.segment_bytes // dtype.itemsize)
        first = part.start - part.start % size
        cuts = range(first, part.stop, size)
        return [slice(max(part.start, cut), min(part.stop, cut + size)) for cut in cuts]


def parts(size: int, n_parts: int) -> list[slice]:
    """Cuts `size` elements in parts that differ by one element at most."""
    bounds = [size * i // n_parts for i in range(n_parts + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(bounds)]


def add_in_order(terms: Sequence[Vector], into: Vector) -> None:
    """Adds one term after the other, so that every rank gets the same bits; none may be `into`."""
    if len(terms) == 1:
        into[...] = terms[0]
        return
    np.add(terms[0], terms[1], out=into)
    for term in terms[2:]:
        np.add(into, term, out=into)


def wait_for(pending: Sequence[Pending]) -> None:
    """Blocks until all have left or come."""
    for one in pending:
        one.wait()
