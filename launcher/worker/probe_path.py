"""Measures the path from this node to another node's probe agent."""

import os
import socket
import struct
from dataclasses import dataclass, replace

from launcher.worker.transfer import Echoes, Received, ping_stream, ping_udp, receive, send

HELLO = struct.Struct("!16s1s8sQdd")  # token, then the fields of a Wish
RESULT = struct.Struct("!Qd")  # bytes (or datagrams), bytes per second (0: not known)
WELCOME = b"+"
HANDSHAKE_S = 1.0

# TCP's window needs about 9 round trips from its first 14 kB to 6 MB (1 Gbit/s at 50 ms).
_ROUND_TRIPS = 15
_FAR_MAX_S = 3.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an agent listens."""

    ip: str
    tcp_port: int
    udp_port: int


@dataclass(frozen=True, slots=True)
class Effort:
    """How much one measurement may send and take; bytes and seconds are per direction.

    A hundred pings tell a loss of 1 % from none. On a far path a transfer may take 15 round
    trips, at most 3 s, instead of `max_s`. Of several `repeats` the fastest counts: a loopback's
    transfer takes milliseconds and competes with whatever else computes there.
    """

    max_bytes: int = 32 << 20
    max_s: float = 0.5
    n_pings: int = 100
    ping_interval_s: float = 0.001
    wait_s: float = 0.5
    both_ways: bool = True
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A path's round trip as measured from the agent that asked; None is "not known"."""

    rtt_s: float | None = None
    jitter_s: float | None = None
    loss_out: float | None = None
    loss_back: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """A path's transfer rates; `n_bytes` arrived in both directions together."""

    out_bytes_per_s: float | None = None
    back_bytes_per_s: float | None = None
    n_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What an agent asks of another in its greeting: pings (P), an upload (U), a download (D)."""

    what: bytes
    session: bytes
    max_bytes: int
    max_s: float
    rtt_s: float

    @property
    def patience_s(self) -> float:
        """How long either side waits for the other's next bytes, in seconds."""
        return self.max_s + HANDSHAKE_S + 3 * self.rtt_s


def measure_round_trip(peer: Endpoint, token: bytes, effort: Effort) -> RoundTrip:
    """Round trip, jitter and loss between this node and a peer's agent.

    Blocks for about `HANDSHAKE_S` when the peer is silent, else for the pings.
    """
    try:
        echoes = _ping(peer, token, effort)
    except OSError as error:
        return RoundTrip(error=f"{peer.ip} does not answer: {error}")
    return RoundTrip(echoes.rtt_s, echoes.jitter_s, echoes.loss_out, echoes.loss_back)


def measure_rates(peer: Endpoint, token: bytes, effort: Effort, rtt_s: float) -> Rates:
    """Transfer rates to and from a peer's agent.

    One direction after the other: acknowledgements behind the other's data would slow both.
    Blocks for at most `max_s` or 15 round trips per direction.
    """
    max_s = max(effort.max_s, min(_ROUND_TRIPS * rtt_s, _FAR_MAX_S))
    wish = Wish(b"U", bytes(8), effort.max_bytes, max_s, rtt_s)
    out = back = Received(0, None)
    problem = None
    try:
        for _ in range(effort.repeats):
            out = _better(out, _upload(peer, token, wish))
        if effort.both_ways:
            back = _download(peer, token, replace(wish, what=b"D"))
    except OSError as error:
        problem = f"the transfer with {peer.ip} broke off: {error}"
    return Rates(out.bytes_per_s, back.bytes_per_s, out.n_bytes + back.n_bytes, problem)


def _better(a: Received, b: Received) -> Received:
    """The faster of two transfers, with the bytes of both."""
    rate = max(a.bytes_per_s or 0.0, b.bytes_per_s or 0.0)
    return Received(a.n_bytes + b.n_bytes, rate or None)


def _ping(peer: Endpoint, token: bytes, effort: Effort) -> Echoes:
    """UDP echoes with the peer's count of arrivals; over TCP, without loss, if none came back."""
    session = os.urandom(8)
    # The stream first: a silent peer is found out by one handshake, not by lost pings.
    with _connect(peer, token, Wish(b"P", session, 0, effort.wait_s, 0.0)) as sock:
        echoes = ping_udp(
            (peer.ip, peer.udp_port),
            (token, session),
            n=effort.n_pings,
            interval_s=effort.ping_interval_s,
            wait_s=effort.wait_s,
        )
        if not echoes.rtts_s:
            return ping_stream(sock, n=effort.n_pings)
        sock.sendall(b"c")
        arrived, _ = RESULT.unpack(read_exactly(sock, RESULT.size))
        return replace(echoes, received_there=min(arrived, echoes.sent))


def _upload(peer: Endpoint, token: bytes, wish: Wish) -> Received:
    with _connect(peer, token, wish) as sock:
        send(sock, max_bytes=wish.max_bytes, max_s=wish.max_s)
        n_bytes, bytes_per_s = RESULT.unpack(read_exactly(sock, RESULT.size))
        # Drop what is still queued, or a slow path would carry it for seconds.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return Received(n_bytes, bytes_per_s or None)


def _download(peer: Endpoint, token: bytes, wish: Wish) -> Received:
    with _connect(peer, token, wish) as sock:
        return receive(
            sock, max_bytes=wish.max_bytes, max_s=wish.max_s + wish.rtt_s, rtt_s=wish.rtt_s
        )


def _connect(peer: Endpoint, token: bytes, wish: Wish) -> socket.socket:
    """A stream to the peer's agent that has welcomed us."""
    sock = socket.create_connection((peer.ip, peer.tcp_port), HANDSHAKE_S)
    try:
        prepare(sock, HANDSHAKE_S + 3 * wish.rtt_s)
        fields = (wish.what, wish.session, wish.max_bytes, wish.max_s, wish.rtt_s)
        sock.sendall(HELLO.pack(token, *fields))
        if read_exactly(sock, 1) != WELCOME:
            raise ConnectionError("the greeting was refused")
        sock.settimeout(wish.patience_s)
    except OSError:
        sock.close()
        raise
    return sock


def prepare(sock: socket.socket, timeout_s: float) -> None:
    """Small messages leave at once, and nothing waits for ever."""
    sock.settimeout(timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def read_exactly(sock: socket.socket, n_bytes: int) -> bytes:
    """That many bytes; ConnectionError if the stream ends before."""
    data = b""
    while len(data) < n_bytes:
        more = sock.recv(n_bytes - len(data))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
    return data
