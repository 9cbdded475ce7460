"""Round trips and transfer rates between two sockets: the measuring itself, without a cluster."""

import contextlib
import logging
import select
import socket
import statistics
import struct
import time
from dataclasses import dataclass
from itertools import pairwise

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18
PING = struct.Struct("!16s8sI")  # token, session, number

# A rate is steady when two windows in a row differ by less than this, past slow start: there a
# window of two round trips would hold four times the bytes of the one before.
_STEADY = 0.1
_MIN_WINDOW_S = 0.005
_MIN_WINDOWS = 4


@dataclass(frozen=True, slots=True)
class Echoes:
    """Round trips in seconds, how many were tried, and what the other side received."""

    rtts_s: tuple[float, ...]
    sent: int
    received_there: int | None = None

    @property
    def rtt_s(self) -> float | None:
        """The median round trip, in seconds."""
        return statistics.median(self.rtts_s) if self.rtts_s else None

    @property
    def jitter_s(self) -> float | None:
        """The 90th percentile above the median, in seconds: what a straggling message adds."""
        if not self.rtts_s:
            return None
        ordered = sorted(self.rtts_s)
        return ordered[int(0.9 * (len(ordered) - 1) + 0.5)] - statistics.median(ordered)

    @property
    def loss_out(self) -> float | None:
        """The fraction lost on the way there."""
        return None if self.received_there is None else _lost(self.received_there, self.sent)

    @property
    def loss_back(self) -> float | None:
        """The fraction of the answers lost on the way back."""
        if not self.received_there:
            return None
        return _lost(len(self.rtts_s), self.received_there)


@dataclass(frozen=True, slots=True)
class Received:
    """What arrived: all bytes, and the steady rate in bytes per second (None: too little)."""

    n_bytes: int
    bytes_per_s: float | None


def ping_udp(
    peer: tuple[str, int], prefix: tuple[bytes, bytes], *, n: int, interval_s: float, wait_s: float
) -> Echoes:
    """Send `n` datagrams at a steady pace and time their echoes; `received_there` is not known.

    Blocks for `n · interval_s`, then until all echoes are back or for four round trips of the
    slowest so far, at most `wait_s` (all of it if none came).
    """
    sent_at_s: list[float] = []
    rtt_by_number: dict[int, float] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(peer)
        start_s = time.perf_counter()
        while len(rtt_by_number) < n:
            now_s = time.perf_counter()
            due_s = start_s + len(sent_at_s) * interval_s
            if len(sent_at_s) < n and now_s >= due_s:
                sent_at_s.append(now_s)
                _send_datagram(sock, PING.pack(*prefix, len(sent_at_s) - 1))
                continue
            if len(sent_at_s) < n:
                patience_s = due_s - now_s
            else:
                slowest_s = max(rtt_by_number.values(), default=wait_s)
                patience_s = sent_at_s[-1] + min(wait_s, 4 * slowest_s + 0.02) - now_s
                if patience_s <= 0:
                    break
            _collect(sock, prefix, patience_s, sent_at_s, rtt_by_number)
    return Echoes(tuple(rtt_by_number.values()), n)


def ping_stream(sock: socket.socket, *, n: int) -> Echoes:
    """Time `n` round trips of one byte over a connected stream that echoes."""
    rtts_s = []
    for _ in range(n):
        started_s = time.perf_counter()
        sock.sendall(b"p")
        if not sock.recv(1):
            break
        rtts_s.append(time.perf_counter() - started_s)
    return Echoes(tuple(rtts_s), n)


def send(sock: socket.socket, *, max_bytes: int, max_s: float) -> int:
    """Send as fast as the path takes it, until a limit or until the receiver speaks or hangs up."""
    chunk = memoryview(bytes(CHUNK_BYTES))
    deadline_s = time.perf_counter() + max_s
    sent = 0
    try:
        while sent < max_bytes and time.perf_counter() < deadline_s and not _has_spoken(sock):
            sent += sock.send(chunk[: max_bytes - sent])
        sock.shutdown(socket.SHUT_WR)
    except OSError as error:  # the receiver has seen enough, or its link died: it knows which
        log.debug("the receiver ended the transfer: %s", error)
    return sent


def receive(sock: socket.socket, *, max_bytes: int, max_s: float, rtt_s: float) -> Received:
    """Receive until the rate is steady, or a limit or the sender's end is reached.

    Windows of two round trips are compared, so that slow start doesn't count. Steady: the mean
    of the last two; cut off by the bytes while it still grew: the faster of the two; cut off by
    the time: the median of the last three. Too short a transfer for windows has the rate of the
    second half of its time.

    Args:
        sock: a connected stream whose other end sends.
        max_bytes: at most this much is read.
        max_s: at most this long, in seconds.
        rtt_s: the path's round trip, which sets the window over which rates are compared.
    """
    buffer = bytearray(CHUNK_BYTES)
    window_s = max(_MIN_WINDOW_S, 2 * rtt_s)
    marks: list[tuple[float, int]] = []
    window_ends: list[tuple[float, int]] = []
    start_s, total = time.perf_counter(), 0
    try:
        while total < max_bytes and (n := sock.recv_into(buffer)):
            now_s, total = time.perf_counter(), total + n
            marks.append((now_s, total))
            if now_s - (window_ends[-1][0] if window_ends else marks[0][0]) >= window_s:
                window_ends.append((now_s, total))
                if len(window_ends) >= _MIN_WINDOWS and _steady(_window_rates(window_ends[-3:])):
                    break
            if now_s - start_s > max_s:
                break
    except OSError as error:  # what came before counts
        log.debug("the sender went away: %s", error)
    rates = _window_rates(window_ends)[-3:]
    rate = _settled(rates, grew=total >= max_bytes) if len(rates) > 1 else _late_rate(marks)
    return Received(total, rate)


def _window_rates(window_ends: list[tuple[float, int]]) -> list[float]:
    return [(b1 - b0) / (t1 - t0) for (t0, b0), (t1, b1) in pairwise(window_ends)]


def _steady(rates: list[float]) -> bool:
    return abs(rates[-1] - rates[-2]) <= _STEADY * rates[-2]


def _settled(rates: list[float], *, grew: bool) -> float:
    """The rate that the last windows tell."""
    if _steady(rates):
        return (rates[-2] + rates[-1]) / 2
    return max(rates[-2:]) if grew else statistics.median(rates)


def _late_rate(marks: list[tuple[float, int]]) -> float | None:
    """Bytes per second over the second half of the time between first and last mark."""
    if len(marks) < 2:
        return None
    middle_s = (marks[0][0] + marks[-1][0]) / 2
    t0, b0 = max((m for m in marks if m[0] <= middle_s), key=lambda m: m[0])
    t1, b1 = marks[-1]
    return (b1 - b0) / (t1 - t0) if t1 > t0 else None


def _has_spoken(sock: socket.socket) -> bool:
    """Whether something, or the end, can be read."""
    return bool(select.select([sock], [], [], 0)[0])


def _send_datagram(sock: socket.socket, data: bytes) -> None:
    # An earlier datagram may have been refused (no such port): this one counts as lost.
    with contextlib.suppress(ConnectionError):
        sock.send(data)


def _collect(
    sock: socket.socket,
    prefix: tuple[bytes, bytes],
    patience_s: float,
    sent_at_s: list[float],
    rtt_by_number: dict[int, float],
) -> None:
    """Take one echo, if it comes within the patience."""
    sock.settimeout(patience_s)
    try:
        data = sock.recv(64)
    except TimeoutError:
        return
    except ConnectionError:
        time.sleep(min(patience_s, 0.001))
        return
    arrived_s = time.perf_counter()
    if len(data) == PING.size:
        token, session, number = PING.unpack(data)
        if (token, session) == prefix and number < len(sent_at_s):
            rtt_by_number.setdefault(number, arrived_s - sent_at_s[number])


def _lost(arrived: int, sent: int) -> float:
    return max(0.0, 1.0 - arrived / sent)
