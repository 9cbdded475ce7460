"""What travels on a stream: a header of 40 bytes, and the bytes that it announces."""

import struct
from dataclasses import dataclass
from enum import IntEnum

MARK = 0x4C58  # a stream that is out of step is noticed by its headers
MAX_CHUNK_BYTES = 1 << 20
MAX_REASON_BYTES = 512
MAX_MESSAGE_BYTES = 1 << 40

_HEADER = struct.Struct("!HBxIqQQQ")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """What a frame is for."""

    DATA = 1  # a chunk of a message
    ACK = 2  # the chunk at this offset of this message has come
    BYE = 3  # nothing more will come
    LOST = 4  # the sender has lost a rank, and why


class FrameError(Exception):
    """The peer sent what no peer of this version sends."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A header.

    Args:
        kind: what for.
        tag: the message's tag; for LOST the rank that is lost.
        sequence: number of the message, counted per sender and receiver.
        offset: where the chunk begins in the message, in bytes.
        length: bytes that follow this header.
        total: bytes of the message.
    """

    kind: Kind
    tag: int = 0
    sequence: int = 0
    offset: int = 0
    length: int = 0
    total: int = 0

    def packed(self) -> bytes:
        """The header's bytes."""
        return _HEADER.pack(
            MARK, self.kind, self.length, self.tag, self.sequence, self.offset, self.total
        )


def parse(header: bytes | bytearray) -> Frame:
    """Read a header, and refuse what makes no sense before any memory is taken for it.

    Raises:
        FrameError: it is none of ours.
    """
    mark, kind, length, tag, sequence, offset, total = _HEADER.unpack(header)
    if mark != MARK or not Kind.DATA <= kind <= Kind.LOST:
        raise FrameError(f"a header with mark {mark:#x} and kind {kind}")
    frame = Frame(Kind(kind), tag, sequence, offset, length, total)
    if not _makes_sense(frame):
        raise FrameError(f"a header that makes no sense: {frame}")
    return frame


def _makes_sense(frame: Frame) -> bool:
    if frame.kind in {Kind.ACK, Kind.BYE}:
        return frame.length == 0
    if frame.kind is Kind.LOST:
        return frame.length <= MAX_REASON_BYTES
    fits = frame.length <= MAX_CHUNK_BYTES and frame.total <= MAX_MESSAGE_BYTES
    empty = frame.length == 0 and frame.total > 0
    return fits and frame.offset + frame.length <= frame.total and not empty
