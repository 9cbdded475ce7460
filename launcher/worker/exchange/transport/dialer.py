"""The connecting side: dials a path until it is up, and again when it broke."""

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.worker.exchange.transport.handshake import (
    DATA,
    HandshakeError,
    Hello,
    introduce,
)
from launcher.worker.exchange.transport.pulse import Target

CONNECT_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Line:
    """One path to one peer that we connect, with what is needed for it.

    Args:
        target: where to connect to.
        is_up: whether the path can be used.
        attach: takes a connection and the round-trip time in seconds.
        last_failure: why it did not work last time.
        connected_s: when it was connected last.
    """

    target: Target
    is_up: Callable[[], bool]
    attach: Callable[[socket.socket, float], None]
    last_failure: str = "nobody answered"
    is_dialing: bool = field(default=False)
    connected_s: float = field(default=-math.inf)


class Dialer:
    """Keeps lines up, with a thread for each line that is down.

    Args:
        secret: of the run.
        rank: our own.
        again_s: least time between two connections of a line.
    """

    def __init__(self, secret: bytes, rank: int, again_s: float = 0.0) -> None:
        self._secret, self._rank, self._again_s = secret, rank, again_s
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def bring_up(self, line: Line) -> None:
        """Dial until the line is up; returns at once."""
        with self._lock:
            if line.is_dialing or self._over.is_set():
                return
            line.is_dialing = True
            thread = threading.Thread(
                target=self._dial, args=(line,), name="exchange-dialer", daemon=True
            )
            self._threads = [t for t in self._threads if t.is_alive()]
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stop dialing; returns when all threads have ended."""
        self._over.set()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _dial(self, line: Line) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_over(line):
            if self._over.wait(max(0.0, line.connected_s + self._again_s - time.monotonic())):
                continue
            try:
                connection, rtt_s = self._connect(line.target)
            except (OSError, HandshakeError) as error:
                line.last_failure = str(error)
                self._over.wait(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            else:
                line.connected_s = time.monotonic()
                line.attach(connection, rtt_s)

    def _is_over(self, line: Line) -> bool:
        with self._lock:
            if self._over.is_set() or line.is_up():
                line.is_dialing = False
                return True
            return False

    def _connect(self, target: Target) -> tuple[socket.socket, float]:
        connection = socket.create_connection(
            (target.ip, target.port), CONNECT_S, (target.own_ip, 0)
        )
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = Hello(DATA, target.path, self._rank, target.rank)
            return connection, introduce(connection, self._secret, hello)
        except BaseException:
            connection.close()
            raise
