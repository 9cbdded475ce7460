"""How the two ends of a connection prove to each other that they belong to the same run.

Both know the run's secret, and neither sends it. Challenge and response, HMAC-SHA256 both ways:

    connector → acceptor   HELLO: protocol, kind, path, both ranks, nonce
    acceptor  → connector  nonce, MAC of (HELLO, nonce) as the acceptor
    connector → acceptor   MAC of (HELLO, both nonces) as the connector
    acceptor  → connector  WELCOME

What follows is neither encrypted nor signed: the secret keeps strangers out, not eavesdroppers.
"""

import hashlib
import hmac
import os
import socket
import struct
import time

SECRET_BYTES = 32
NONCE_BYTES = 32
MAC_BYTES = hashlib.sha256().digest_size
TIMEOUT_S = 5.0
PROTOCOL = b"launch-exchange1"
DATA, PULSE = 1, 2  # what a connection is for
WELCOME = b"\x06"

_HELLO = struct.Struct(f"!16sBHII{NONCE_BYTES}s")


class HandshakeError(Exception):
    """The other side is not a rank of this run, or not the one that was expected."""


class Hello:
    """Who connects to whom, over which path and what for."""

    __slots__ = ("kind", "path", "source", "target")

    def __init__(self, kind: int, path: int, source: int, target: int) -> None:
        self.kind, self.path, self.source, self.target = kind, path, source, target


class Introduction:
    """The connector's side, as bytes in and bytes out."""

    def __init__(self, secret: bytes, hello: Hello, nonce: bytes) -> None:
        self._secret = secret
        self.first = _HELLO.pack(
            PROTOCOL, hello.kind, hello.path, hello.source, hello.target, nonce
        )

    def answer(self, challenge: bytes) -> bytes:
        """What to send back to the acceptor's challenge.

        Raises:
            HandshakeError: the acceptor does not know the run's secret.
        """
        nonce, mac = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        if not hmac.compare_digest(mac, _mac(self._secret, b"acceptor", self.first, nonce)):
            raise HandshakeError("the other side does not know the secret of this run")
        return _mac(self._secret, b"connector", self.first, nonce)


class Acceptance:
    """The acceptor's side, as bytes in and bytes out; `hello` is set once all is proven.

    Args:
        secret: of the run.
        rank: our own.
        world_size: ranks of the run.
        n_paths: paths of the run.
        nonce: fresh random bytes.
    """

    def __init__(
        self, secret: bytes, rank: int, world_size: int, n_paths: int, nonce: bytes
    ) -> None:
        self._secret, self._nonce = secret, nonce
        self._rank, self._world_size, self._n_paths = rank, world_size, n_paths
        self._received = b""
        self._first = b""
        self._claimed: Hello | None = None
        self.hello: Hello | None = None

    @property
    def wanted(self) -> int:
        """How many more bytes to read; 0 when the handshake is over."""
        if self.hello is not None:
            return 0
        needed = _HELLO.size if self._claimed is None else MAC_BYTES
        return needed - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """Take at most `wanted` bytes; returns what to send back.

        Raises:
            HandshakeError: no rank of this run talks like that.
        """
        if len(data) > self.wanted:
            raise HandshakeError("more bytes than a handshake has")
        self._received += data
        if self.wanted:
            return b""
        received, self._received = self._received, b""
        if self._claimed is None:
            self._first, self._claimed = received, self._read_hello(received)
            return self._nonce + _mac(self._secret, b"acceptor", received, self._nonce)
        expected = _mac(self._secret, b"connector", self._first, self._nonce)
        if not hmac.compare_digest(received, expected):
            raise HandshakeError("the other side does not know the secret of this run")
        self.hello = self._claimed
        return WELCOME

    def _read_hello(self, received: bytes) -> Hello:
        protocol, kind, path, source, target, _ = _HELLO.unpack(received)
        if protocol != PROTOCOL:
            raise HandshakeError(f"protocol {protocol!r} instead of {PROTOCOL!r}")
        if kind not in {DATA, PULSE} or path >= self._n_paths:
            raise HandshakeError(f"no connection of kind {kind} over path {path} is expected")
        if target != self._rank or source >= self._world_size or source == self._rank:
            raise HandshakeError(f"rank {source} asks for rank {target} at rank {self._rank}")
        return Hello(kind, path, source, target)


def introduce(connection: socket.socket, secret: bytes, hello: Hello) -> float:
    """Do the connector's side on a connected socket; blocks for at most `TIMEOUT_S`.

    Returns:
        The round-trip time that the handshake saw, in seconds.

    Raises:
        HandshakeError: the acceptor is not who it should be.
        OSError: the connection broke or took too long.
    """
    introduction = Introduction(secret, hello, os.urandom(NONCE_BYTES))
    begin_s = time.monotonic()
    connection.settimeout(TIMEOUT_S)
    connection.sendall(introduction.first)
    challenge = _receive(connection, NONCE_BYTES + MAC_BYTES, begin_s + TIMEOUT_S)
    rtt_s = time.monotonic() - begin_s
    connection.sendall(introduction.answer(challenge))
    if _receive(connection, len(WELCOME), begin_s + TIMEOUT_S) != WELCOME:
        raise HandshakeError("the other side did not say welcome")
    return rtt_s


def _receive(connection: socket.socket, n_bytes: int, deadline_s: float) -> bytes:
    received = b""
    while len(received) < n_bytes:
        connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        part = connection.recv(n_bytes - len(received))
        if not part:
            raise ConnectionResetError("the other side closed the connection in the handshake")
        received += part
    return received


def _mac(secret: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, role + b"\0" + hello + nonce, hashlib.sha256).digest()
