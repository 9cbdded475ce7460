"""What goes from stage to stage: tensors packed into one message, over any mailbox."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from launcher.worker.exchange.algorithms.mailbox import Mailbox, Pending

Array = np.ndarray[Any, Any]

MICRO_BATCH_BITS = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """What a message holds for each row of a micro-batch.

    Attributes:
        shapes: of each tensor, without the rows.
        dtypes: of each tensor, as NumPy names them.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes for each row."""
        sizes = zip(self.shapes, self.dtypes, strict=True)
        return sum(int(np.prod(shape)) * _dtype(name).itemsize for shape, name in sizes)

    @property
    def gradients(self) -> "Layout":
        """The gradients of those tensors that can have one."""
        named = zip(self.shapes, self.dtypes, strict=True)
        pairs = [(shape, name) for shape, name in named if "float" in name]
        return Layout(tuple(shape for shape, _ in pairs), tuple(name for _, name in pairs))

    def message(self, n_rows: int) -> "Message":
        """An empty message for so many rows."""
        return Message(self, n_rows, np.empty(8 + self.row_bytes * n_rows, np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """Tensors of one micro-batch and a number, in one stretch of memory."""

    layout: Layout
    n_rows: int
    data: Array

    @property
    def number(self) -> Array:
        """The number, an array of one element."""
        return self.data[:8].view(np.float64)

    @property
    def arrays(self) -> list[Array]:
        """The tensors, which share the message's memory."""
        found, at = [], 8
        for shape, name in zip(self.layout.shapes, self.layout.dtypes, strict=True):
            whole = (self.n_rows, *shape)
            n_bytes = int(np.prod(whole)) * _dtype(name).itemsize
            found.append(self.data[at : at + n_bytes].view(_dtype(name)).reshape(whole))
            at += n_bytes
        return found

    def fill(self, arrays: Sequence[Array], number: float = 0.0) -> "Message":
        """Puts tensors and a number in."""
        self.number[0] = number
        for own, array in zip(self.arrays, arrays, strict=True):
            own[...] = array
        return self


def _dtype(name: str) -> np.dtype[Any]:
    """A NumPy type by name; NumPy itself has no bfloat16."""
    return np.dtype(getattr(ml_dtypes, name, name))


class Neighbour:
    """The stage before or after ours.

    Args:
        mailbox: messages between ranks; stage k is rank k.
        rank: the neighbour's.
    """

    def __init__(self, mailbox: Mailbox, rank: int) -> None:
        self._mailbox, self._rank = mailbox, rank
        self._departing: list[tuple[Pending, Message]] = []  # the memory must stay until it left

    def send(self, step: int, micro_batch: int, message: Message) -> None:
        """Send a micro-batch's message; returns at once."""
        pending = self._mailbox.send(self._rank, _tag(step, micro_batch), message.data)
        self._departing.append((pending, message))

    def receive(self, step: int, micro_batch: int, message: Message) -> Pending:
        """Wait for a micro-batch's message; returns at once."""
        return self._mailbox.receive(self._rank, _tag(step, micro_batch), message.data)

    def flush(self) -> None:
        """Blocks until all messages have left."""
        for pending, _ in self._departing:
            pending.wait()
        self._departing.clear()


def _tag(step: int, micro_batch: int) -> int:
    return step << MICRO_BATCH_BITS | micro_batch
