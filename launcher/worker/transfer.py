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

# Near: steady when two windows in a row differ by less than this, past slow start, where a
# window of two round trips would hold four times the bytes of the one before.
_STEADY = 0.1
_MIN_WINDOW_S = 0.005
_MIN_WINDOWS = 4
# Far: windows of one round trip, each twice the one before in slow start, which may pause; it
# may end in losses, and then what arrives in order comes in gusts. So the rate is what this
# many windows came near to, in a row or not.
_N_HIGHEST = 3
_MIN_FAR_WINDOWS = 6


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
    clock: Callable[[], float] = time.perf_counter,
) -> Received:
    """Receive until the rate is steady, or a limit or the sender's end is reached.

    Cut off by the bytes while it still grew: the fastest of the last windows; cut off by the
    time: the median of the last ones. Too short a transfer for windows has the rate of the
    second half of its time.

    Args:
        sock: a connected stream whose other end sends.
        max_bytes: at most this much is read.
        max_s: at most this long, in seconds.
        rtt_s: the path's round trip, which sets the window over which rates are compared.
        clock: tells the time, in seconds.
    """
    buffer = bytearray(CHUNK_BYTES)
    is_far = rtt_s >= FAR_S
    window_s = max(_MIN_WINDOW_S, rtt_s if is_far else 2 * rtt_s)
    settled = _far_rate if is_far else _near_rate
    marks: list[tuple[float, int]] = []
    window_ends: list[tuple[float, int]] = []
    start_s, total = clock(), 0
    try:
        while total < max_bytes and (n := sock.recv_into(buffer)):
            now_s, total = clock(), total + n
            marks.append((now_s, total))
            if now_s - (window_ends[-1][0] if window_ends else marks[0][0]) >= window_s:
                window_ends.append((now_s, total))
                if (rate := settled(_window_rates(window_ends))) is not None:
                    return Received(total, rate)
            if now_s - start_s > max_s:
                break
    except OSError as error:  # what came before counts
        log.debug("the sender went away: %s", error)
    rates = _window_rates(window_ends)
    rate = _last_rate(rates, grew=total >= max_bytes) if len(rates) > 1 else _late_rate(marks)
    return Received(total, rate)


def _window_rates(window_ends: list[tuple[float, int]]) -> list[float]:
    return [(b1 - b0) / (t1 - t0) for (t0, b0), (t1, b1) in pairwise(window_ends)]


def _near_rate(rates: list[float]) -> float | None:
    """The mean of the last two windows, once they agree."""
    if len(rates) < _MIN_WINDOWS - 1 or abs(rates[-1] - rates[-2]) > _STEADY * rates[-2]:
        return None
    return (rates[-2] + rates[-1]) / 2


def _far_rate(rates: list[float]) -> float | None:
    """The mean of the highest windows, once there are enough that agree."""
    highest = sorted(rates)[-_N_HIGHEST:]
    if len(rates) < _MIN_FAR_WINDOWS - 1 or highest[0] < (1 - _STEADY) * highest[-1]:
        return None
    return statistics.mean(highest)


def _last_rate(rates: list[float], *, grew: bool) -> float:
    """The rate that the last windows tell, if they don't agree."""
    last = rates[-max(3, len(rates) // 2) :]
    return max(last[-2:]) if grew else statistics.median(last)


def _late_rate(marks: list[tuple[float, int]]) -> float | None:
    """Bytes per second over the second half of the time between first and last mark."""
    if len(marks) < 2:
        return None
    middle_s = (marks[0][0] + marks[-1][0]) / 2
    t0, b0 = max((m for m in marks if m[0] <= middle_s), key=lambda m: m[0])
    t1, b1 = marks[-1]
    return (b1 - b0) / (t1 - t0) if t1 > t0 else None
