"""Transfer rates between two sockets: the measuring itself, without a cluster."""

import logging
import select
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18

# From this round trip on a path is far: a transfer waits rather than computes.
FAR_S = 0.005

# A rate is steady when so many windows in a row differ by less than this, past slow start. Near,
# a window has two round trips or more, so slow start holds four times the bytes of the one
# before; far, one, to save time, so twice: and slow start may pause there for a round trip.
_STEADY = 0.1
_NEAR_STEADY, _MIN_NEAR = 2, 3
_FAR_STEADY, _MIN_FAR = 3, 5
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
    is_far = rtt_s >= FAR_S
    window_s = max(_MIN_WINDOW_S, rtt_s if is_far else 2 * rtt_s)
    n_steady, n_min = (_FAR_STEADY, _MIN_FAR) if is_far else (_NEAR_STEADY, _MIN_NEAR)
    marks: list[tuple[float, int]] = []
    window_ends: list[tuple[float, int]] = []
    start_s, total = clock(), 0
    try:
        while total < max_bytes and (n := sock.recv_into(buffer)):
            now_s, total = clock(), total + n
            marks.append((now_s, total))
            if now_s - (window_ends[-1][0] if window_ends else marks[0][0]) >= window_s:
                window_ends.append((now_s, total))
                rates = _window_rates(window_ends)
                if not is_shared and len(rates) >= n_min and _are_steady(rates[-n_steady:]):
                    return Received(total, statistics.mean(rates[-n_steady:]))
            if now_s - start_s > max_s:
                break
    except OSError as error:  # what came before counts
        log.debug("the sender went away: %s", error)
    rates = _window_rates(window_ends)
    rate = _last_rate(rates, grew=total >= max_bytes) if len(rates) > 1 else _late_rate(marks)
    return Received(total, rate)


def _window_rates(window_ends: list[tuple[float, int]]) -> list[float]:
    return [(b1 - b0) / (t1 - t0) for (t0, b0), (t1, b1) in pairwise(window_ends)]


def _are_steady(rates: list[float]) -> bool:
    return max(rates) - min(rates) <= _STEADY * max(rates)


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
