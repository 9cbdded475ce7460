"""Transfer rates between two sockets: the measuring itself, without a cluster."""

import logging
import select
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18

# From this round trip on a path is far: a transfer waits rather than computes.
FAR_S = 0.005

# How many windows in a row, of how many at least, differ by less than which part when a rate is
# steady, past slow start.
# Near, a window has two round trips or more, so slow start holds four times the bytes of the one
# before; far, one, to save time, so twice: and slow start may pause there for a round trip. But as
# long as a path isn't full, what a round trip brings comes in one piece, and then nothing: quarters
# of a round trip that are alike, five in a row, tell a full path sooner.
_NEAR = 2, 3, 0.1
_FAR = 3, 5, 0.1
_FAR_QUARTERS = 5, 12, 0.2
_MIN_WINDOW_S = 0.005
_FULL = 0.8  # of the usual rate: from the first such window on the path is full


class Stream(Protocol):
    """The receiving end of a stream; a connected socket is one."""

    def recv_into(self, buffer: bytearray, /) -> int:
        """Read what is there, or wait for it; 0 at the end."""


@dataclass(frozen=True, slots=True)
class Received:
    """What arrived: all bytes, and the steady rate in bytes per second (None: too little)."""

    n_bytes: int
    bytes_per_s: float | None


def send(sock: socket.socket, *, max_bytes: int, max_s: float) -> int:
    """Send as fast as the path takes it, until a limit or until the receiver speaks or hangs up.

    Returns:
        The bytes that were handed to the stream; some may still wait in it.
    """
    chunk = memoryview(bytes(CHUNK_BYTES))
    poll = select.poll()
    poll.register(sock, select.POLLIN)  # the receiver has spoken or hung up
    deadline_s = time.perf_counter() + max_s
    sent = 0
    try:
        while sent < max_bytes and time.perf_counter() < deadline_s and not poll.poll(0):
            sent += sock.send(chunk[: max_bytes - sent])
        sock.shutdown(socket.SHUT_WR)
    except OSError as error:  # the receiver has seen enough, or its link died: it knows which
        log.debug("the receiver ended the transfer: %s", error)
    return sent


def receive(
    sock: Stream,
    *,
    max_bytes: int,
    max_s: float,
    rtt_s: float,
    is_shared: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Received:
    """Receive until the rate is steady, or a limit or the sender's end is reached.

    Where it doesn't become steady (others share the path, or packets are lost and what arrives in
    order comes in gusts), the mean since the path was full; cut off by the bytes while the rate
    still grew, the faster of the last two windows. Too short a transfer for windows has the rate
    of the second half of its time.

    Args:
        sock: a connected stream whose other end sends.
        max_bytes: at most this much is read.
        max_s: at most this long, in seconds.
        rtt_s: the path's round trip, which sets the window over which rates are compared.
        is_shared: whether others send over it, whose queues hide its true pace for a while: take
            all the time there is.
        clock: tells the time, in seconds.
    """
    buffer = bytearray(CHUNK_BYTES)
    rulers = _rulers(rtt_s)
    marks: list[tuple[float, int]] = []
    start_s, total = clock(), 0
    try:
        while total < max_bytes and (n := sock.recv_into(buffer)):
            now_s, total = clock(), total + n
            marks.append((now_s, total))
            for ruler in rulers:
                ruler.mark(now_s, total)
                if not is_shared and (rate := ruler.steady_rate) is not None:
                    return Received(total, rate)
            if now_s - start_s > max_s:
                break
    except OSError as error:  # what came before counts
        log.debug("the sender went away: %s", error)
    rates = rulers[0].rates
    rate = _last_rate(rates, grew=total >= max_bytes) if len(rates) > 1 else _late_rate(marks)
    return Received(total, rate)


@dataclass(slots=True)
class _Ruler:
    """The rates of windows of at least a length.

    They are steady when the last `n_steady` differ by less than a part of the fastest, of at least
    `n_min` in all.
    """

    window_s: float
    n_steady: int
    n_min: int
    tolerance: float
    rates: list[float] = field(default_factory=list)
    _began: tuple[float, int] | None = None
    _is_new: bool = False

    def mark(self, now_s: float, total: int) -> None:
        """So many bytes have arrived by now."""
        began_s, before = self._began or (now_s, total)
        self._is_new = now_s - began_s >= self.window_s
        if self._is_new:
            self.rates.append((total - before) / (now_s - began_s))
        if self._is_new or self._began is None:
            self._began = now_s, total

    @property
    def steady_rate(self) -> float | None:
        """The rate, if a window has just ended and it is steady now."""
        if not self._is_new or len(self.rates) < self.n_min:
            return None
        last = self.rates[-self.n_steady :]
        is_steady = max(last) - min(last) <= self.tolerance * max(last)
        return statistics.mean(last) if is_steady else None


def _rulers(rtt_s: float) -> tuple[_Ruler, ...]:
    """How rates are compared on a path, the one that counts where none becomes steady first."""
    if rtt_s < FAR_S:
        return (_Ruler(max(_MIN_WINDOW_S, 2 * rtt_s), *_NEAR),)
    quarter_s = max(_MIN_WINDOW_S, rtt_s / 4)
    return (_Ruler(max(_MIN_WINDOW_S, rtt_s), *_FAR), _Ruler(quarter_s, *_FAR_QUARTERS))


def _last_rate(rates: list[float], *, grew: bool) -> float:
    """The rate that windows tell which don't agree."""
    if grew:
        return max(rates[-2:])
    usual = statistics.median(rates[len(rates) // 2 :])
    first = next(at for at, rate in enumerate(rates) if rate >= _FULL * usual)
    return statistics.mean(rates[first:])


def _late_rate(marks: list[tuple[float, int]]) -> float | None:
    """Bytes per second over the second half of the time between first and last mark."""
    if len(marks) < 2:
        return None
    middle_s = (marks[0][0] + marks[-1][0]) / 2
    t0, b0 = max((m for m in marks if m[0] <= middle_s), key=lambda m: m[0])
    t1, b1 = marks[-1]
    return (b1 - b0) / (t1 - t0) if t1 > t0 else None
