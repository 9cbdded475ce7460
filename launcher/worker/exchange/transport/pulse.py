"""Signs of life: told to the peers by a companion process, and listened to by a thread."""

import contextlib
import json
import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher.worker.environment import environment
from launcher.worker.exchange.transport import companion
from launcher.worker.exchange.transport.companion import ALIVE, BEAT_S, BYE, GONE, Beats, tell_peer
from launcher.worker.exchange.transport.silence import Silence, SilentPath, SilentPeer

PEER_SILENCE_S = 4.0
PATH_SILENCE_S = 2.0
TICK_S = 0.25
END_S = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a peer listens on one path, and our own address there."""

    rank: int
    path: int
    own_ip: str
    ip: str
    port: int

    def as_tuple(self) -> companion.Target:
        """For the companion process, which has no data classes."""
        return self.rank, self.path, self.own_ip, self.ip, self.port


class Teller(Protocol):
    """Tells the peers that we live."""

    def keep_up(self) -> None:
        """Called now and then: see that it still works."""
        ...

    def close(self) -> None:
        """Say good-bye to all peers and end."""
        ...


class Companion:
    """Tells it from a process of its own, which sees whether this one is stopped.

    Args:
        secret: of the run.
        rank: our own.
        targets: whom to tell.
    """

    def __init__(self, secret: bytes, rank: int, targets: Sequence[Target]) -> None:
        order = {
            "secret": secret.hex(),
            "rank": rank,
            "parent": os.getpid(),
            "targets": [t.as_tuple() for t in targets],
        }
        self._order = json.dumps(order).encode() + b"\n"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(companion.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent
            env=environment(),
        )
        with contextlib.suppress(OSError):
            process.stdin.write(self._order)  # type: ignore[union-attr]
        return process

    def keep_up(self) -> None:
        """Start it again if somebody ended it."""
        if (status := self._process.poll()) is not None:
            _log.warning("the companion process ended (status %d), starting another", status)
            self._process.stdin.close()  # type: ignore[union-attr]
            self._process = self._start()

    def close(self) -> None:
        """Let it say good-bye and end."""
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"B")  # type: ignore[union-attr]
        self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ThreadTeller:
    """Tells it from threads, where there is no /proc to see another process's state.

    A call that holds Python's lock for longer than `PEER_SILENCE_S` is then an alarm.
    """

    def __init__(self, secret: bytes, rank: int, targets: Sequence[Target]) -> None:
        self._beats, self._over = Beats(), threading.Event()
        self._threads = [
            threading.Thread(
                target=tell_peer,
                args=(self._beats, secret, rank, t.as_tuple()),
                daemon=True,
            )
            for t in targets
        ]
        self._threads.append(threading.Thread(target=self._beat, daemon=True))
        for thread in self._threads:
            thread.start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            self._beats.tell(ALIVE)
        self._beats.tell(BYE)

    def keep_up(self) -> None:
        """Threads need no keeping up."""

    def close(self) -> None:
        """Say good-bye and end."""
        self._over.set()
        for thread in self._threads:
            thread.join(END_S)


def new_teller(secret: bytes, rank: int, targets: Sequence[Target]) -> Teller:
    """The best way of telling that this system allows."""
    if sys.platform == "linux" and sys.executable:
        return Companion(secret, rank, targets)
    return ThreadTeller(secret, rank, targets)


class Judge(Protocol):
    """Whoever acts on what the listener finds."""

    def peer_is_silent(self, rank: int, reason: str) -> None:
        """A peer is not heard any more, or has ended."""
        ...

    def path_is_silent(self, rank: int, path: int) -> None:
        """A peer is heard over other paths only."""
        ...


class Listener:
    """A thread that hears all pulses and judges silence.

    Args:
        judge: told of verdicts, in the thread.
        check: called at every tick.
    """

    def __init__(self, judge: Judge, check: Callable[[], None]) -> None:
        self._judge, self._check = judge, check
        self._lock = threading.Lock()
        self._silence = Silence(PEER_SILENCE_S, PATH_SILENCE_S)
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._new: list[tuple[int, int, socket.socket]] = []
        self._left: set[int] = set()
        self._is_over = False
        self._heard = threading.Condition()
        self.heard_ranks: set[int] = set()
        self._thread = threading.Thread(target=self._listen, name="exchange-pulse", daemon=True)
        self._thread.start()

    def add(self, rank: int, path: int, connection: socket.socket) -> None:
        """Listen to one more connection."""
        with self._lock:
            if self._is_over:
                connection.close()
                return
            self._new.append((rank, path, connection))
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def allow(self, rank: int, path: int, for_s: float) -> None:
        """Expect nothing over a path for so many seconds, it has just come back."""
        with self._lock:
            self._silence.allow(rank, path, time.monotonic() + for_s)

    def forget(self, rank: int) -> None:
        """A peer has left."""
        with self._lock:
            self._left.add(rank)
            self._silence.forget(rank)

    def wait_until_heard(self, ranks: set[int], timeout_s: float) -> set[int]:
        """Wait for a first sign of life; returns who gave none."""
        with self._heard:
            self._heard.wait_for(lambda: ranks <= self.heard_ranks, timeout_s)
            return ranks - self.heard_ranks

    def close(self) -> None:
        """End the thread and all connections."""
        self._wake.close()
        self._thread.join()

    def _listen(self) -> None:
        self._selector.register(self._woken, selectors.EVENT_READ)
        while (asked_s := self._turn()) is not None:
            self._check()
            with self._lock:
                verdicts = self._silence.judge(asked_s)
            for verdict in verdicts:
                self._tell(verdict)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        with self._lock:
            self._is_over = True
            for _, _, connection in self._new:
                connection.close()
        self._selector.close()

    def _turn(self) -> float | None:
        """Hear what has come; returns the time up to which all was heard, None at the end.

        Another thread may keep Python's lock right after a sign of life was read, or after the
        wait for one was over: what came since the wait began is not known to be all.
        """
        asked_s = time.monotonic()
        for key, _ in self._selector.select(TICK_S):
            if key.fileobj is not self._woken:
                self._hear(key)
            elif not self._woken.recv(4096):
                return None
        with self._lock:
            new, self._new = self._new, []
        for rank, path, connection in new:
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, (rank, path))
            self._note(rank, path)
        return asked_s

    def _hear(self, key: selectors.SelectorKey) -> None:
        rank, path = key.data
        connection: socket.socket = key.fileobj  # type: ignore[assignment]
        try:
            words = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if ALIVE in words:
            self._note(rank, path)
        if BYE in words:
            self.forget(rank)
        if GONE in words:
            self._tell_gone(rank)
        if not words:
            # No verdict: the companion may have been ended alone, then another one connects.
            self._selector.unregister(connection)
            connection.close()

    def _note(self, rank: int, path: int) -> None:
        with self._lock:
            if rank not in self._left:
                self._silence.heard(rank, path, time.monotonic())
        with self._heard:
            self.heard_ranks.add(rank)
            self._heard.notify_all()

    def _tell_gone(self, rank: int) -> None:
        with self._lock:
            is_new = rank not in self._left
        self.forget(rank)
        if is_new:
            self._judge.peer_is_silent(rank, "its process has ended")

    def _tell(self, verdict: SilentPeer | SilentPath) -> None:
        if isinstance(verdict, SilentPath):
            self._judge.path_is_silent(verdict.rank, verdict.path)
            return
        self._judge.peer_is_silent(
            verdict.rank, f"it gave no sign of life for {verdict.silent_s:.1f} s"
        )
