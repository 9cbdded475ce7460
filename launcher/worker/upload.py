"""Measures the transfer rate from this node to another node's probe agent."""

import os
import socket
import struct
from dataclasses import dataclass

from launcher.worker.greeting import RESULT, UPLOAD, Way, Wish, connect, read_exactly
from launcher.worker.traffic import TrafficBook, bytes_sent
from launcher.worker.transfer import Received, send

# TCP's window needs about 9 round trips from its first 14 kB to 6 MB (1 Gbit/s at 50 ms).
_ROUND_TRIPS = 20
_FAR_MAX_S = 3.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a transfer may send and take.

    On a far path it may take 20 round trips, at most 3 s, instead of `max_s`. Of several
    `repeats` the fastest counts: a loopback's transfer takes milliseconds and competes with
    whatever else computes there. `max_bytes` holds for all repeats together.
    """

    max_bytes: int = 32 << 20
    max_s: float = 0.5
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Rate:
    """A path's transfer rate in one direction; `n_bytes` is what arrived.

    The session names the transfer in both agents' `Traffic`.
    """

    bytes_per_s: float | None = None
    n_bytes: int = 0
    error: str | None = None
    session: bytes = b""


def measure_rate(
    way: Way,
    token: bytes,
    effort: Effort,
    rtt_s: float,
    book: TrafficBook,
    held: socket.socket | None = None,
) -> Rate:
    """Transfer rate to a peer's agent.

    Blocks for at most `max_s` or 20 round trips per repeat, and for the greeting.

    Args:
        way: to the peer.
        token: that all agents share.
        effort: how much it may take.
        rtt_s: the way's round trip.
        book: where the traffic is accounted for.
        held: a stream that the peer holds for us, if there is one.
    """
    max_s = max(effort.max_s, min(_ROUND_TRIPS * rtt_s, _FAR_MAX_S))
    wish = Wish(
        UPLOAD, os.urandom(8), effort.max_bytes // effort.repeats, max_s, rtt_s, book.is_shared
    )
    done: list[Received] = []
    problem = None
    try:
        for _ in range(effort.repeats):
            done.append(_upload(way, token, wish, book, held))
            held = None
    except OSError as error:
        problem = f"the transfer to {way.peer.ip} broke off: {error}"
    fastest = max((d.bytes_per_s for d in done if d.bytes_per_s is not None), default=None)
    return Rate(fastest, sum(d.n_bytes for d in done), problem, wish.session)


def _upload(
    way: Way, token: bytes, wish: Wish, book: TrafficBook, held: socket.socket | None
) -> Received:
    with connect(way, token, wish, held) as sock:
        handed_over = send(sock, max_bytes=wish.max_bytes, max_s=wish.max_s)
        try:
            n_bytes, bytes_per_s = RESULT.unpack(read_exactly(sock, RESULT.size))
        finally:
            book.enter(wish.session, bytes_sent(sock, handed_over))
        # Drop what is still queued, or a slow path would carry it for seconds.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return Received(n_bytes, bytes_per_s or None)
