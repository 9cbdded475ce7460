"""What workers tell each other, and its bytes."""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from launcher.worker.exchange.decentralized.sparse import (
    Form,
    Part,
    PartError,
    Span,
    pack,
    packed_bytes,
    unpack,
)

MARK = 0x4443  # a stream that is out of step is noticed by its headers
MAX_STEP = (1 << 32) - 1
NOTHING = Span(0, np.zeros(0, np.float32))

_HEADER = struct.Struct("!HHBBIIIffIII")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """What a message's entries are."""

    GRADIENT = 1  # of the sender's examples, weighted; to be applied by the receiver's optimizer
    UPDATE = 2  # a change of weights, to be added
    WEIGHTS = 3  # the sender's weights
    REQUEST = 4  # nothing; asks for the receiver's weights
    STANDING = 5  # nothing; how far the sender is
    GREETING = 6  # a few of the sender's weights, so that those who begin alike can tell
    RECEIPT = 7  # nothing; one message more has come
    STOP = 8  # nothing; the receiver should stop, too
    COPY = 9  # nothing; asks for the receiver's weights, to be kept and not merged
    REFUSAL = 10  # nothing; the sender has no weights that are worth having
    ENDED = 11  # nothing; how many `fit`s the sender has ended, as its step
    PLACE = 12  # nothing; the sender's step in its epoch, the epoch in place of what it has heard


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a worker is; every message tells it of its sender.

    Attributes:
        step: steps that it has taken.
        heard: steps that the receiver had taken, as far as the sender knew at that step.
        n_examples: of its last step.
        examples_per_s: its speed; None if not known yet.
        loss: of its recent steps; None if not known yet. Infinite where it has diverged, which
            peers get to know as None, so that they don't want its weights.
    """

    step: int = 0
    heard: int = 0
    n_examples: int = 0
    examples_per_s: float | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """From one worker to another.

    Attributes:
        kind: what for.
        standing: of the sender.
        part: entries of the vector.
    """

    kind: Kind
    standing: Standing
    part: Part = NOTHING

    def packed(self, size: int, generation: int = 0) -> bytes:
        """The message's bytes.

        Args:
            size: of the whole vector.
            generation: counts the models that a script trains, so that they are not mixed up.
        """
        standing, part = self.standing, self.part
        form, body = pack(part, size)
        as_whole = form is Form.SPAN and not isinstance(part, Span)
        n_entries = size if as_whole else len(part.values)
        begin = part.begin if isinstance(part, Span) else 0
        return (
            _HEADER.pack(
                MARK,
                generation,
                self.kind,
                form,
                min(standing.step, MAX_STEP),
                min(standing.heard, MAX_STEP),
                standing.n_examples,
                _or_nan(standing.examples_per_s),
                _or_nan(standing.loss),
                begin,
                n_entries,
                size,
            )
            + body
        )


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that is to be sent.

    Attributes:
        to: the rank of the receiver.
        message: what to send.
    """

    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of a message announce."""

    kind: Kind
    standing: Standing
    form: int
    begin: int
    n_entries: int
    body_bytes: int


def parse_header(data: bytes | bytearray | memoryview, size: int, generation: int = 0) -> Header:
    """Reads `HEADER_BYTES`, and refuses what makes no sense before memory is taken for the rest.

    Args:
        data: the header.
        size: of our whole vector.
        generation: of our model.

    Raises:
        PartError: it is none of ours.
    """
    mark, theirs, kind, form, step, heard, *told, begin, n, whole = _HEADER.unpack(data)
    if mark != MARK or kind not in tuple(Kind):
        raise PartError(f"a header with mark {mark:#x} and kind {kind}")
    if theirs != generation or whole != size:
        raise PartError(f"model {theirs} of {whole} weights instead of {generation} of {size}")
    if kind == Kind.WEIGHTS and (form != Form.SPAN or n != size):
        raise PartError(f"{n} weights instead of {size}")
    n_examples, speed, loss = told
    standing = Standing(step, heard, n_examples, _or_none(speed), _or_none(loss))
    body_bytes = packed_bytes(form, begin, n, size)
    return Header(Kind(kind), standing, form, begin, n, body_bytes)


def parse_body(header: Header, data: bytes | bytearray | memoryview, size: int) -> Message:
    """The message of a header and the `body_bytes` that follow it.

    Raises:
        PartError: they are no entries of our vector.
    """
    part = unpack(header.form, header.begin, header.n_entries, memoryview(data), size)
    return Message(header.kind, header.standing, part)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
