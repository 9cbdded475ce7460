"""The listening side: lets ranks of this run in, and keeps strangers out."""

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from launcher.worker.exchange.transport.handshake import (
    NONCE_BYTES,
    TIMEOUT_S,
    Acceptance,
    HandshakeError,
    Hello,
)

MAX_HALF_OPEN = 128
TICK_S = 0.5

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _HalfOpen:
    """A connection that has not proven yet where it comes from."""

    connection: socket.socket
    acceptance: Acceptance
    deadline_s: float


class Doorman:
    """A thread that accepts connections and hands over those that prove to be of this run.

    Args:
        listening: bound and listening sockets.
        new_acceptance: makes the protocol of one handshake from its nonce.
        admit: takes a proven connection, in the doorman's thread; must not block.
        max_half_open: connections in the middle of a handshake; of more, the oldest has to go.
    """

    def __init__(
        self,
        listening: Sequence[socket.socket],
        new_acceptance: Callable[[bytes], Acceptance],
        admit: Callable[[Hello, socket.socket], None],
        max_half_open: int = MAX_HALF_OPEN,
    ) -> None:
        self._listening, self._new_acceptance = tuple(listening), new_acceptance
        self._admit, self._max_half_open = admit, max_half_open
        self._half_open: dict[socket.socket, _HalfOpen] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="exchange-doorman", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; returns when the thread has ended."""
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        self._selector.register(self._woken, selectors.EVENT_READ)
        for listener in self._listening:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        while self._turn():
            self._drop_late()
        for half_open in list(self._half_open.values()):
            self._drop(half_open)
        self._selector.close()
        for end in (self._woken, *self._listening):
            end.close()

    def _turn(self) -> bool:
        """Serve what is ready; whether to go on."""
        for key, _ in self._selector.select(TICK_S):
            if key.fileobj is self._woken:
                return False
            ready = cast(socket.socket, key.fileobj)
            if ready in self._listening:
                self._accept(ready)
            elif (half_open := self._half_open.get(ready)) is not None:
                self._hear(half_open)
        return True

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            if len(self._half_open) >= self._max_half_open:
                self._drop(next(iter(self._half_open.values())))
            acceptance = self._new_acceptance(os.urandom(NONCE_BYTES))
            half_open = _HalfOpen(connection, acceptance, time.monotonic() + TIMEOUT_S)
            self._half_open[connection] = half_open
            self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, half_open: _HalfOpen) -> None:
        connection, acceptance = half_open.connection, half_open.acceptance
        try:
            data = connection.recv(acceptance.wanted)
            if not data:
                raise HandshakeError("it hung up")
            if reply := acceptance.feed(data):
                connection.send(reply)  # less than an empty buffer of any socket takes
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, HandshakeError) as error:
            _log.info("refused a connection to this worker: %s", error)
            self._drop(half_open)
            return
        if acceptance.hello is not None:
            self._forget(half_open)
            connection.setblocking(True)
            self._admit(acceptance.hello, connection)

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        for half_open in [h for h in self._half_open.values() if h.deadline_s < now_s]:
            self._drop(half_open)

    def _drop(self, half_open: _HalfOpen) -> None:
        self._forget(half_open)
        half_open.connection.close()

    def _forget(self, half_open: _HalfOpen) -> None:
        self._selector.unregister(half_open.connection)
        del self._half_open[half_open.connection]
