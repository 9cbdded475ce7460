"""One connection to one peer over one path: a thread that reads and a thread that writes."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from launcher.errors import LauncherError
from launcher.worker.exchange.transport.frame import (
    HEADER_BYTES,
    MAX_CHUNK_BYTES,
    Frame,
    FrameError,
    Kind,
    parse,
)
from launcher.worker.exchange.transport.inbox import Inbox
from launcher.worker.exchange.transport.outbox import Lane, Outbox
from launcher.worker.exchange.transport.tcp_info import Unanswered, tcp_info

NOT_SENT_BYTES = 128 << 10  # what may wait in the kernel where paths share the work
_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
UNANSWERED_S = 4.0


class Owner(Protocol):
    """Whoever is told what happens to a stream."""

    def said_bye(self) -> None:
        """The peer will send nothing more."""
        ...

    def told_loss(self, rank: int, reason: str) -> None:
        """The peer has lost a rank."""
        ...

    def stream_ended(self, stream: "Stream", reason: str) -> None:
        """The stream is of no more use; called once, from one of its threads."""
        ...


class Stream:
    """Carries frames both ways until either side ends it.

    Args:
        connection: connected, authenticated and blocking.
        path: index of its path.
        rtt_s: round-trip time in seconds, where the kernel tells none.
        inbox: takes what comes.
        outbox: gives what is to be sent.
        acknowledged: whether to acknowledge chunks, which is so where there are several paths.
        owner: is told of the end.
    """

    def __init__(
        self,
        connection: socket.socket,
        path: int,
        rtt_s: float,
        *,
        inbox: Inbox,
        outbox: Outbox,
        acknowledged: bool,
        owner: Owner,
    ) -> None:
        self._connection, self.path, self._owner = connection, path, owner
        self._inbox, self._outbox, self._acknowledged = inbox, outbox, acknowledged
        _tune(connection, few_in_kernel=acknowledged)
        info = tcp_info(connection)
        self.lane = Lane(path, (info and info.min_rtt_s) or rtt_s, self._send_now)
        self._unanswered = Unanswered(UNANSWERED_S)
        self.received_bytes = 0
        self.heard_bye = False
        self._ending = threading.Lock()
        self._has_ended = False
        self._n_running = 2
        self._discarded: memoryview | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"exchange-{name}", daemon=True)
            for work, name in ((self._read_all, "reader"), (self._write_all, "writer"))
        ]

    def start(self) -> None:
        """Begin to carry."""
        self._outbox.attach(self.lane)
        for thread in self._threads:
            thread.start()

    def abandon(self, reason: str) -> None:
        """End it at once, from any thread."""
        with self._ending:
            first, self._has_ended = not self._has_ended, True
        self._outbox.detach(self.lane)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if first:
            self._owner.stream_ended(self, reason)

    def check(self) -> None:
        """Give it up if its packets vanish; to be called often."""
        info = tcp_info(self._connection)
        if info is not None and self._unanswered.judge(info, time.monotonic()):
            self.abandon(f"its packets were not acknowledged for {info.since_ack_s:.1f} s")

    def join(self, deadline_s: float) -> bool:
        """Wait for its threads; whether they have ended."""
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, work: Callable[[], str | None]) -> None:
        try:
            reason = work()
        except (OSError, FrameError, LauncherError) as error:
            reason = str(error) if isinstance(error, FrameError) else _plain(error)
        if reason is not None:
            self.abandon(reason)
        with self._ending:
            self._n_running -= 1
            if self._n_running == 0:
                self._connection.close()

    def _read_all(self) -> str:
        header = memoryview(bytearray(HEADER_BYTES))
        while self._fill(header):
            frame = parse(header.obj)  # type: ignore[arg-type]
            if frame.kind is Kind.DATA:
                self._read_chunk(frame)
            elif frame.kind is Kind.ACK:
                self._outbox.acknowledge(self.lane, frame)
            elif frame.kind is Kind.BYE:
                self.heard_bye = True
                self._owner.said_bye()
            else:
                self._read_loss(frame)
        return "the connection was closed"

    def _read_chunk(self, frame: Frame) -> None:
        into = self._inbox.begin(frame, self)
        if into is None:
            self._fill_fully(self._discard(frame.length))
            self.received_bytes += frame.length
        else:
            complete = False
            try:
                self._fill_fully(into)
                self.received_bytes += frame.length
                complete = True
            finally:
                self._inbox.end(frame, self, complete=complete)
        if self._acknowledged:
            ack = Frame(Kind.ACK, frame.tag, frame.sequence, frame.offset)
            self._outbox.reply(self.lane, ack.packed())

    def _read_loss(self, frame: Frame) -> None:
        reason = memoryview(bytearray(frame.length))
        self._fill_fully(reason)
        self._owner.told_loss(frame.tag, bytes(reason).decode("utf-8", "replace"))

    def _fill_fully(self, into: memoryview) -> None:
        if len(into) and not self._fill(into):
            raise ConnectionResetError("the connection was closed")

    def _fill(self, into: memoryview) -> bool:
        """Read until full; whether anything came before the end of the stream."""
        filled = 0
        while filled < len(into):
            n_read = self._connection.recv_into(into[filled:], 0, socket.MSG_WAITALL)
            if n_read == 0:
                if filled:
                    raise ConnectionResetError("the connection was closed")
                return False
            filled += n_read
        return True

    def _discard(self, n_bytes: int) -> memoryview:
        if self._discarded is None:
            self._discarded = memoryview(bytearray(MAX_CHUNK_BYTES))
        return self._discarded[:n_bytes]

    def _write_all(self) -> str | None:
        """Writes what the outbox has; None if the peer may still have something to say."""
        while (item := self._outbox.take(self.lane)) is not None:
            parts, chunk = item
            begin_s = time.monotonic()
            self._write(parts)
            if chunk is not None:
                self._outbox.written(self.lane, chunk, time.monotonic() - begin_s)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        return None

    def _write(self, parts: list[bytes | memoryview]) -> None:
        n_bytes = sum(len(part) for part in parts)
        n_written = self._connection.sendmsg(parts)
        while n_written < n_bytes:  # a signal may cut a call short
            rest = memoryview(b"".join(parts))[n_written:]
            self._connection.sendall(rest)
            n_written = n_bytes

    def _send_now(self, data: bytes) -> int:
        try:
            return self._connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0


def _tune(connection: socket.socket, *, few_in_kernel: bool) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if few_in_kernel:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, NOT_SENT_BYTES)


def _plain(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]
