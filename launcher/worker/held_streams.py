"""Streams to other agents that are opened ahead of their use, to save a round trip then."""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.worker.greeting import HOLD, Way, Wish, connect

log = logging.getLogger(__name__)

_MAX_AT_ONCE = 64


class HeldStreams:
    """Streams by way, each of which serves once.

    Args:
        token: that all agents share.
    """

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._stream_by_way: dict[Way, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def open(self, ways: Sequence[Way]) -> None:
        """Open a stream for each way in the background; returns at once."""
        if ways:
            threading.Thread(target=self._open_all, args=(ways,), daemon=True).start()

    def take(self, way: Way) -> socket.socket | None:
        """The way's stream, if it is there."""
        with self._lock:
            return self._stream_by_way.pop(way, None)

    @property
    def n_open(self) -> int:
        """How many wait for their use."""
        with self._lock:
            return len(self._stream_by_way)

    def close(self) -> None:
        """Close what was not taken."""
        with self._lock:
            self._is_closed = True
            for sock in self._stream_by_way.values():
                sock.close()
            self._stream_by_way.clear()

    def _open_all(self, ways: Sequence[Way]) -> None:
        with ThreadPoolExecutor(min(_MAX_AT_ONCE, len(ways))) as pool:
            list(pool.map(self._open_one, ways))

    def _open_one(self, way: Way) -> None:
        try:
            sock = connect(way, self._token, Wish(HOLD, os.urandom(8), 0, 0.0, 0.0))
        except OSError as error:  # whoever uses the way will see
            log.debug("no stream to %s: %s", way.peer.ip, error)
            return
        with self._lock, contextlib.ExitStack() as stack:
            if self._is_closed:
                stack.callback(sock.close)
                return
            old = self._stream_by_way.pop(way, None)
            if old is not None:
                stack.callback(old.close)
            self._stream_by_way[way] = sock
