"""Messages from one peer: chunks go straight into the buffer of whoever waits for them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from launcher.errors import LauncherError, TrainingFailedError
from launcher.worker.exchange.transport.frame import Frame, FrameError

OVERHEAD_BYTES = 512  # what a message takes besides its own bytes


class Writer(Protocol):
    """A stream that writes a chunk into a message."""

    def abandon(self, reason: str) -> None:
        """Stop, the peer has given this stream up."""
        ...


class Arrival:
    """A message that is waited for."""

    def __init__(self, rank: int, tag: int, into: memoryview) -> None:
        self.rank, self.tag, self.into = rank, tag, into
        self._over = threading.Event()
        self._early: memoryview | None = None
        self._error: LauncherError | None = None

    @property
    def is_over(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._over.is_set()

    def wait(self) -> None:
        """Block until the buffer is filled.

        Raises:
            PeerLostError: a worker is gone.
            TrainingFailedError: the peer sent a message of another size.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error
        if self._early is not None:
            self.into[:], self._early = self._early, None

    def finish(self, early: memoryview | None = None) -> None:
        """The message is complete; `early` holds it if it came before it was waited for."""
        self._early = early
        self._over.set()

    def fail(self, error: LauncherError) -> None:
        """The message will not come."""
        if not self._over.is_set():
            self._error = error
            self._over.set()


@dataclass(slots=True)
class _Message:
    """A message of which some chunks have come."""

    sequence: int
    tag: int
    buffer: memoryview
    arrival: Arrival | None
    n_missing: int
    received: set[int] = field(default_factory=set)
    writers: list[tuple[int, Writer]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """All is there, and no stream writes any more."""
        return self.n_missing == 0 and bool(self.received) and not self.writers


class Inbox:
    """What one peer sent, what is waited for, and what came too early.

    Args:
        rank: the peer.
        max_early_bytes: memory for messages that nobody waits for yet; beyond it, streams wait.
    """

    def __init__(self, rank: int, max_early_bytes: int) -> None:
        self.rank, self._max_early_bytes = rank, max_early_bytes
        self._changed = threading.Condition()
        self._posted: dict[int, Arrival] = {}
        self._messages: dict[int, _Message] = {}
        self._unposted: dict[int, _Message] = {}
        self._early_bytes = 0
        self._n_settled = 0  # all messages before this number are done
        self._settled: set[int] = set()  # and these later ones
        self._misfits: set[int] = set()  # and these have another size than is waited for
        self._error: LauncherError | None = None

    def post(self, tag: int, into: memoryview) -> Arrival:
        """Wait for the message of this tag; it goes to `into`.

        Raises:
            ValueError: it is waited for already.
        """
        arrival = Arrival(self.rank, tag, into)
        with self._changed:
            if tag in self._posted:
                raise ValueError(f"tag {tag} of rank {self.rank} is waited for already")
            message = self._unposted.pop(tag, None)
            if message is not None:
                self._match(message, arrival)
            else:
                self._posted[tag] = arrival
            if self._error is not None:
                arrival.fail(self._error)
            self._changed.notify_all()
        return arrival

    def begin(self, frame: Frame, writer: Writer) -> memoryview | None:
        """Where a chunk goes; None if it is there already. Blocks while there is no room.

        Raises:
            FrameError: the chunk does not fit the message.
            LauncherError: the mesh has failed meanwhile.
        """
        with self._changed:
            message = self._message_of(frame)
            if message is None or frame.offset in message.received:
                return None
            if message.tag != frame.tag or len(message.buffer) != frame.total:
                raise FrameError(f"a chunk of another message: {frame}")
            message.writers.append((frame.offset, writer))
            return message.buffer[frame.offset : frame.offset + frame.length]

    def end(self, frame: Frame, writer: Writer, *, complete: bool) -> None:
        """A stream has written the chunk that it began, or part of it only."""
        given_up: list[Writer] = []
        with self._changed:
            message = self._messages[frame.sequence]
            message.writers.remove((frame.offset, writer))
            if complete and frame.offset not in message.received:
                message.received.add(frame.offset)
                message.n_missing -= frame.length
            if message.is_complete:
                self._complete(message)
            elif message.n_missing == 0:
                # The same chunk came over another path: the peer has given this one up. The
                # buffer is not handed over before that stream has stopped writing to it.
                given_up = [other for _, other in message.writers]
        for other in given_up:
            other.abandon("its chunk came over another path")

    def fail(self, make_error: Callable[[], LauncherError]) -> None:
        """Nothing more will come: all who wait are told."""
        with self._changed:
            if self._error is None:
                self._error = make_error()
            for arrival in self._posted.values():
                arrival.fail(self._error)
            for message in self._messages.values():
                if message.arrival is not None:
                    message.arrival.fail(self._error)
            self._changed.notify_all()

    def _message_of(self, frame: Frame) -> _Message | None:
        """The message that the chunk belongs to; None if that is complete already."""
        while not self._is_settled(frame.sequence) and frame.sequence not in self._misfits:
            if (message := self._messages.get(frame.sequence)) is not None:
                return message
            arrival = self._posted.get(frame.tag)
            if arrival is not None:
                del self._posted[frame.tag]
                if self._is_misfit(arrival, frame.total):
                    self._misfits.add(frame.sequence)
                    return None
                return self._open(frame, arrival.into, arrival)
            if self._early_bytes + frame.total + OVERHEAD_BYTES <= self._max_early_bytes:
                return self._open_early(frame)
            if self._error is not None:
                raise self._error
            self._changed.wait()
        return None

    def _is_settled(self, sequence: int) -> bool:
        return sequence < self._n_settled or sequence in self._settled

    def _open(self, frame: Frame, buffer: memoryview, arrival: Arrival | None) -> _Message:
        message = _Message(frame.sequence, frame.tag, buffer, arrival, frame.total)
        self._messages[frame.sequence] = message
        return message

    def _open_early(self, frame: Frame) -> _Message:
        if frame.tag in self._unposted:
            raise FrameError(f"a second message of tag {frame.tag}")
        message = self._open(frame, memoryview(bytearray(frame.total)), None)
        self._unposted[frame.tag] = message
        self._early_bytes += frame.total + OVERHEAD_BYTES
        return message

    def _is_misfit(self, arrival: Arrival, total: int) -> bool:
        """Whether the message has another size than is waited for, which fails the wait."""
        if len(arrival.into) == total:
            return False
        arrival.fail(
            TrainingFailedError(
                f"rank {self.rank} sent {total:,} bytes where {len(arrival.into):,} were "
                f"expected (tag {arrival.tag:#x}). The workers do not do the same steps: look "
                "for what differs between them, such as files, environment or random numbers."
            )
        )
        return True

    def _match(self, message: _Message, arrival: Arrival) -> None:
        """Somebody waits for a message of which some has come already."""
        message.arrival = arrival
        self._early_bytes -= len(message.buffer) + OVERHEAD_BYTES
        if self._is_misfit(arrival, len(message.buffer)):
            return
        if self._is_settled(message.sequence):
            arrival.finish(message.buffer)

    def _complete(self, message: _Message) -> None:
        del self._messages[message.sequence]
        self._settled.add(message.sequence)
        while self._n_settled in self._settled:
            self._settled.remove(self._n_settled)
            self._n_settled += 1
        if (arrival := message.arrival) is not None and not arrival.is_over:
            arrival.finish(None if message.buffer is arrival.into else message.buffer)
