"""The connection to one peer, which may break and come again."""

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from launcher.worker.exchange.decentralized.budget import LinkBudget
from launcher.worker.exchange.decentralized.message import (
    HEADER_BYTES,
    Kind,
    Message,
    Standing,
    parse_body,
    parse_header,
)
from launcher.worker.exchange.decentralized.sparse import PartError

LEAST_BYTES = 2048  # per step, on a link that is idle
MEASURED_BYTES = 4096  # shorter messages tell the latency, longer ones the rate
SILENT_S = 15  # after which a connection over which nothing gets through is given up

_log = logging.getLogger(__name__)


class Hearer(Protocol):
    """Whoever is told what comes over links; called from the links' threads."""

    def hear(self, source: int, message: Message) -> None:
        """A message has come."""
        ...

    def link_is_up(self, peer: int) -> None:
        """Messages can be sent."""
        ...

    def link_is_down(self, peer: int) -> None:
        """What was on its way is lost."""
        ...


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message without receipt yet."""

    n_bytes: int
    at_s: float
    found_idle: bool


class Link:
    """Sends messages in order, and measures what the connection carries by their receipts.

    Args:
        peer: the rank at the other end.
        size: of the model's vector.
        hearer: is told of all that happens.
        generation: of the model, see `Message.packed`.
    """

    def __init__(self, peer: int, size: int, hearer: Hearer, generation: int = 0) -> None:
        self.peer, self._hearer = peer, hearer
        self._size, self._generation = size, generation
        self._changed = threading.Condition()
        self._connection: socket.socket | None = None
        self._budget = LinkBudget(least_bytes=LEAST_BYTES)
        self._rtt_s = float("inf")
        self._is_closed = False
        self.sent_bytes = 0
        self._forget()

    def _forget(self) -> None:
        self._queue: deque[tuple[Kind, bytes]] = deque()
        self._unanswered: deque[_Sent] = deque()
        self._waiting_bytes = 0
        self._answered_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether there is a connection."""
        with self._changed:
            return self._connection is not None

    def attach(self, connection: socket.socket, rtt_s: float) -> None:
        """Uses a connection that has proven where it comes from; an older one is given up."""
        with self._changed:
            old = self._connection
        if old is not None:
            self._break(old, "the peer connected again")
        with self._changed:
            if self._is_closed:
                connection.close()
                return
            connection.settimeout(None)
            notice_silence(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = connection
            self._rtt_s = min(self._rtt_s, rtt_s or self._rtt_s)
            self._forget()
        self._hearer.link_is_up(self.peer)  # before anything is heard of it
        for work, name in ((self._write_all, "writer"), (self._read_all, "reader")):
            thread = threading.Thread(
                target=self._run, args=(work, connection), name=f"link-{name}", daemon=True
            )
            thread.start()

    def send(self, message: Message) -> None:
        """Sends a message, after those before it; returns at once, and forgets it if down.

        Greetings go first: peers make nothing of what comes before them.
        """
        packed = message.packed(self._size, self._generation)
        with self._changed:
            if self._connection is not None:
                is_first = message.kind is Kind.GREETING
                add = self._queue.appendleft if is_first else self._queue.append
                add((message.kind, packed))
                self._waiting_bytes += len(packed)
                self.sent_bytes += len(packed)
                self._changed.notify_all()

    def capacity_bytes(self, step_s: float | None) -> int:
        """What the link carries until the next step, less what it holds too much already.

        Args:
            step_s: how long a step takes; None if not known yet.
        """
        with self._changed:
            if self._connection is None:
                return 0
            rate, rtt_s = self._budget.rate_bytes_per_s, self._rtt_s
            travelling = rate * rtt_s if rate and rtt_s < float("inf") else 0.0
            queued = max(0, self._waiting_bytes - int(travelling))
            return self._budget.capacity_bytes(step_s, queued)

    @property
    def rate_bytes_per_s(self) -> float | None:
        """What the link carries, as measured; None if not known yet."""
        with self._changed:
            return self._budget.rate_bytes_per_s

    def drain(self, timeout_s: float) -> bool:
        """Waits until all has arrived; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting_bytes, timeout_s)

    def close(self) -> None:
        """Ends the connection for good."""
        with self._changed:
            self._is_closed, connection = True, self._connection
        if connection is not None:
            self._break(connection, "the exchange is closed")

    def _run(self, work: "Work", connection: socket.socket) -> None:
        try:
            work(connection)
        except (OSError, PartError) as error:
            self._break(connection, str(error))
        except Exception as error:  # noqa: BLE001 - or half a link would be left, which looks whole
            _log.exception("the link to rank %d fails", self.peer)
            self._break(connection, repr(error))
        else:
            self._break(connection, "the connection was closed")

    def _break(self, connection: socket.socket, reason: str) -> None:
        with self._changed:
            if self._connection is not connection:
                return
            self._connection = None
            self._forget()
            self._changed.notify_all()
        _log.info("the link to rank %d is down: %s", self.peer, reason)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        self._hearer.link_is_down(self.peer)

    def _write_all(self, connection: socket.socket) -> None:
        while (packed := self._next(connection)) is not None:
            connection.sendall(packed)

    def _next(self, connection: socket.socket) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._connection is not connection)
            if self._connection is not connection:
                return None
            kind, packed = self._queue.popleft()
            if kind is not Kind.RECEIPT:
                sent = _Sent(len(packed), time.monotonic(), not self._unanswered)
                self._unanswered.append(sent)
            else:
                self._waiting_bytes -= len(packed)
            self._changed.notify_all()
            return packed

    def _read_all(self, connection: socket.socket) -> None:
        head = bytearray(HEADER_BYTES)
        while _fill(connection, head):
            header = parse_header(head, self._size, self._generation)
            body = bytearray(header.body_bytes)
            if body and not _fill(connection, body):
                raise ConnectionResetError("the connection was closed")
            if header.kind is Kind.RECEIPT:
                self._note_receipt(time.monotonic())
            else:
                self.send(Message(Kind.RECEIPT, Standing()))
                self._hearer.hear(self.peer, parse_body(header, body, self._size))

    def _note_receipt(self, now_s: float) -> None:
        """A message has arrived: it took its latency, and its bytes after the ones before it."""
        with self._changed:
            if not self._unanswered:
                raise PartError("a receipt of nothing")
            sent = self._unanswered.popleft()
            self._waiting_bytes -= sent.n_bytes
            since_s = now_s - (sent.at_s if sent.found_idle else self._answered_s)
            self._answered_s = now_s
            if sent.found_idle and sent.n_bytes < MEASURED_BYTES:
                self._rtt_s = min(self._rtt_s, since_s)
            if sent.n_bytes >= MEASURED_BYTES:
                latency_s = min(self._rtt_s, 0.9 * since_s) if sent.found_idle else 0.0
                self._budget.note_transfer(sent.n_bytes, since_s - latency_s)
            self._changed.notify_all()


class Work(Protocol):
    """What a thread of a link does with a connection until it ends."""

    def __call__(self, connection: socket.socket) -> None:
        """Does it."""
        ...


def notice_silence(connection: socket.socket) -> None:
    """Lets the system give a connection up after `SILENT_S` of silence, as of a host cut off."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, SILENT_S // 3),
        (socket.TCP_KEEPINTVL, SILENT_S // 3),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, 1000 * SILENT_S),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _fill(connection: socket.socket, into: bytearray) -> bool:
    """Reads until full; False where the stream ends before the first byte."""
    view, filled = memoryview(into), 0
    while filled < len(into):
        n_read = connection.recv_into(view[filled:])
        if n_read == 0:
            if filled:
                raise ConnectionResetError("the connection was closed")
            return False
        filled += n_read
    return True
