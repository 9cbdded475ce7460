"""Answers other nodes' probe agents at one of this node's addresses."""

import contextlib
import hmac
import logging
import socket
import struct
import threading
import time
from collections import Counter

from launcher.worker.echoes import PING
from launcher.worker.greeting import (
    HANDSHAKE_S,
    HELLO,
    HOLD,
    HOLD_MAX_S,
    PINGS,
    PINGS_MAX_S,
    RESULT,
    UPLOAD,
    WELCOME,
    Endpoint,
    Wish,
    prepare,
    read_exactly,
)
from launcher.worker.interfaces import Address
from launcher.worker.traffic import TrafficBook
from launcher.worker.transfer import receive

log = logging.getLogger(__name__)

TOKEN_BYTES = 16
_MAX_CONNECTIONS = 128  # all other agents ask for pings at the same time
_MAX_SESSIONS = 4096


class Responder:
    """Listens at ports of its own; serves only who knows the token.

    Args:
        address: on which to listen.
        token: `TOKEN_BYTES` random bytes that all agents of a probe share.
        book: knows whether others send over this node's interfaces.
    """

    def __init__(self, address: Address, token: bytes, book: TrafficBook) -> None:
        self._token = token
        self._book = book
        ip = address.ip
        self._tcp = socket.create_server((ip, 0), backlog=_MAX_CONNECTIONS)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((ip, 0))
        self._arrived_by_session: Counter[bytes] = Counter()
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._closed = threading.Event()
        tcp_port, udp_port = self._tcp.getsockname()[1], self._udp.getsockname()[1]
        self.endpoint = Endpoint(ip, tcp_port, udp_port, address.network, address.interface)
        for serve in (self._serve_tcp, self._serve_udp):
            threading.Thread(target=serve, daemon=True).start()

    def close(self) -> None:
        """Stop listening. A transfer that still runs ends by its own limits."""
        self._closed.set()
        for sock in (self._tcp, self._udp):
            # Wakes the thread that waits on it, where the system supports that.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _serve_tcp(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._tcp.accept()
            except OSError:
                return  # closed
            if self._slots.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(sock,), daemon=True).start()
            else:
                sock.close()

    def _answer(self, sock: socket.socket) -> None:
        try:
            with sock:
                wish = self._greeting(sock, HANDSHAKE_S)
                if wish is not None and wish.what == HOLD:
                    wish = self._greeting(sock, HOLD_MAX_S)
                if wish is not None:
                    self._answer_friend(sock, wish)
        except (OSError, struct.error) as error:  # gone, or never knew how to ask
            log.debug("a connection ended early: %s", error)
        finally:
            self._slots.release()

    def _greeting(self, sock: socket.socket, within_s: float) -> Wish | None:
        """What is asked for on a stream; None if whoever asks does not know the token."""
        prepare(sock, within_s)
        token, *fields = HELLO.unpack(read_exactly(sock, HELLO.size))
        return Wish(*fields) if hmac.compare_digest(token, self._token) else None

    def _answer_friend(self, sock: socket.socket, wish: Wish) -> None:
        sock.settimeout(wish.patience_s)
        if wish.what == PINGS:
            sock.sendall(WELCOME)
            self._answer_pings(sock, wish.session)
        elif wish.what == UPLOAD:
            self._answer_upload(sock, wish)

    def _answer_upload(self, sock: socket.socket, wish: Wish) -> None:
        max_s = wish.max_s + wish.rtt_s
        is_shared = wish.is_shared or self._book.is_shared
        got = receive(
            sock,
            max_bytes=wish.max_bytes,
            max_s=max_s,
            rtt_s=wish.rtt_s,
            is_shared=is_shared,
        )
        sock.sendall(RESULT.pack(got.n_bytes, got.bytes_per_s or 0.0))
        _drain(sock)

    def _answer_pings(self, sock: socket.socket, session: bytes) -> None:
        # Its pings come after all of the asker's handshakes, and with those of other ways.
        sock.settimeout(PINGS_MAX_S)
        try:
            while ask := sock.recv(1):
                if ask == b"c":
                    sock.sendall(RESULT.pack(self._arrived_by_session[session], 0.0))
                else:
                    sock.sendall(ask)
        finally:
            self._arrived_by_session.pop(session, None)

    def _serve_udp(self) -> None:
        while not self._closed.is_set():
            try:
                data, sender = self._udp.recvfrom(64)
                if self._is_ping(data):
                    self._count(data[TOKEN_BYTES : TOKEN_BYTES + 8])
                    self._udp.sendto(data, sender)
            except OSError as error:
                log.debug("an echo failed: %s", error)

    def _is_ping(self, data: bytes) -> bool:
        return len(data) == PING.size and hmac.compare_digest(data[:TOKEN_BYTES], self._token)

    def _count(self, session: bytes) -> None:
        if session in self._arrived_by_session or len(self._arrived_by_session) < _MAX_SESSIONS:
            self._arrived_by_session[session] += 1


def _drain(sock: socket.socket) -> None:
    """Read what is still under way, so that the answer isn't lost to a reset."""
    deadline_s = time.perf_counter() + HANDSHAKE_S
    while time.perf_counter() < deadline_s and sock.recv(1 << 16):
        pass
