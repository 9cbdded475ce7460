"""How one probe agent asks another for something: a greeting over a new stream."""

import contextlib
import socket
import struct
from dataclasses import dataclass

HELLO = struct.Struct("!16s1s8sQdd?")  # token, then the fields of a Wish
RESULT = struct.Struct("!Qd")  # bytes (or datagrams), bytes per second (0: not known)
WELCOME = b"+"
PINGS, UPLOAD, HOLD = b"P", b"U", b"H"

# A lost first packet is sent again after 1 s; a silent peer costs this once.
CONNECT_S = 1.5
HANDSHAKE_S = 1.0
PINGS_MAX_S = 10.0  # from the greeting to the last ping of a batch
HOLD_MAX_S = 20.0  # from a stream's opening until it is asked for something


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an agent listens, and that address's network and interface ("": not known)."""

    ip: str
    tcp_port: int
    udp_port: int
    network: str = ""
    interface: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to a peer's agent: from which of our addresses ("": any) to which of its."""

    peer: Endpoint
    source_ip: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """What an agent asks of another in its greeting: answer `PINGS`, or take an `UPLOAD`.

    `HOLD` asks it to keep the stream for another greeting.
    """

    what: bytes
    session: bytes
    max_bytes: int
    max_s: float
    rtt_s: float
    is_shared: bool = False

    @property
    def patience_s(self) -> float:
        """How long either side waits for the other's next bytes, in seconds."""
        return self.max_s + HANDSHAKE_S + 3 * self.rtt_s


def connect(way: Way, token: bytes, wish: Wish, held: socket.socket | None = None) -> socket.socket:
    """A stream to the peer's agent; ConnectionError if it refuses.

    For pings it has welcomed us; an upload starts at once, without waiting a round trip.

    Args:
        way: to the peer.
        token: that all agents share.
        wish: what is asked for.
        held: a stream that the peer has been asked to hold, which saves a round trip; if it is
            gone, another is opened.
    """
    if held is not None:
        with contextlib.suppress(OSError):
            return _greeted(held, token, wish)
    return _greeted(_opened(way), token, wish)


def _greeted(sock: socket.socket, token: bytes, wish: Wish) -> socket.socket:
    """The stream, on which a wish was said; it is closed if that fails."""
    try:
        prepare(sock, HANDSHAKE_S + 3 * wish.rtt_s)
        fields = (wish.what, wish.session, wish.max_bytes, wish.max_s, wish.rtt_s, wish.is_shared)
        sock.sendall(HELLO.pack(token, *fields))
        if wish.what == PINGS and read_exactly(sock, 1) != WELCOME:
            raise ConnectionError("the greeting was refused")
        sock.settimeout(wish.patience_s)
    except OSError:
        sock.close()
        raise
    return sock


def _opened(way: Way) -> socket.socket:
    source = (way.source_ip, 0) if way.source_ip else None
    return socket.create_connection((way.peer.ip, way.peer.tcp_port), CONNECT_S, source)


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
