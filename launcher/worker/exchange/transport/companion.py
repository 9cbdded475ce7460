"""Tells all peers twice a second that the process which started this one is alive and not stopped.

Runs as `python -I -S companion.py`, a process of its own: so a call in the user's script that
holds Python's lock for long is no alarm, while a stopped process is noticed. The order comes as
one line of JSON on standard input, which stays open; when it closes, the parent is gone.
"""

import json
import os
import select
import socket
import sys
import threading

BEAT_S = 0.5
ALIVE, BYE, GONE = b"\x01", b"\x02", b"\x03"
CONNECT_S = 1.0
UNANSWERED_MS = 2000  # a beat that is not acknowledged for so long: connect again
STOPPED_STATES = "TtZX"

Target = tuple[int, int, str, str, int]  # rank, path, our own IP there, the peer's IP and port


class Parent:
    """The process whose life is told."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def is_gone(self) -> bool:
        """Whether the process ended; then this one has been given another parent."""
        return os.getppid() != self._pid or self._state() in "ZX"

    def is_stopped(self) -> bool:
        """Whether a signal or a debugger holds it."""
        return self._state() in STOPPED_STATES

    def _state(self) -> str:
        try:
            with open(f"/proc/{self._pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is heavy
                return file.read().rpartition(b")")[2].split()[0].decode()
        except OSError:
            return "X"


class Beats:
    """What is to be told now; threads wait here for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number = 0
        self._word = ALIVE

    def tell(self, word: bytes) -> None:
        """Let all threads send a word."""
        with self._changed:
            self._number, self._word = self._number + 1, word
            self._changed.notify_all()

    def after(self, number: int) -> "tuple[int, bytes]":
        """The number and the word of a beat later than `number`; blocks until there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number)
            return self._number, self._word


def tell_peer(beats: Beats, secret: bytes, rank: int, target: "Target") -> None:
    """Keep one peer informed over one path, whatever happens to the connection."""
    number, word = 0, ALIVE
    while word == ALIVE:
        try:
            with dial(secret, rank, target) as connection:
                while word == ALIVE:
                    number, word = beats.after(number)
                    connection.send(word)
        except (OSError, handshake.HandshakeError):
            number, word = beats.after(number)


def dial(secret: bytes, rank: int, target: "Target") -> socket.socket:
    """A connection on which the peer knows whose pulse it hears."""
    peer, path, own_ip, ip, port = target
    connection = socket.create_connection((ip, port), CONNECT_S, (own_ip, 0))
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)
        hello = handshake.Hello(handshake.PULSE, path, rank, peer)
        handshake.introduce(connection, secret, hello)
        connection.settimeout(CONNECT_S)
    except BaseException:
        connection.close()
        raise
    return connection


def farewell(parent: Parent, order: int) -> "bytes | None":
    """The last word, or None while there is no reason for one; waits for one beat at most."""
    readable, _, _ = select.select([order], [], [], BEAT_S)
    if readable:
        return BYE if os.read(order, 1) else GONE
    return GONE if parent.is_gone() else None


def main() -> None:
    """Beat until the parent says good-bye or is gone."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as file:
        order = json.loads(file.readline())
    parent = Parent(order["parent"])
    beats, secret = Beats(), bytes.fromhex(order["secret"])
    threads = [
        threading.Thread(target=tell_peer, args=(beats, secret, order["rank"], target), daemon=True)
        for target in order["targets"]
    ]
    for thread in threads:
        thread.start()
    while (last := farewell(parent, sys.stdin.fileno())) is None:
        if not parent.is_stopped():
            beats.tell(ALIVE)
    beats.tell(last)
    for thread in threads:
        thread.join(CONNECT_S)


if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import handshake  # type: ignore[import-not-found]

    main()
else:
    from launcher.worker.exchange.transport import handshake
