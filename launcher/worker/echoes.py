"""Round trips: datagrams that come back, of several paths at the same time."""

import contextlib
import select
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

PING = struct.Struct("!16s8sI")  # token, session, number
BUSY_S = 0.1


@dataclass(frozen=True, slots=True)
class Echoes:
    """Round trips in seconds, how many were tried, and what the other side received."""

    rtts_s: tuple[float, ...]
    sent: int
    received_there: int | None = None

    @property
    def rtt_s(self) -> float | None:
        """The median round trip, in seconds."""
        return statistics.median(self.rtts_s) if self.rtts_s else None

    @property
    def jitter_s(self) -> float | None:
        """The 90th percentile above the median, in seconds: what a straggling message adds."""
        if not self.rtts_s:
            return None
        ordered = sorted(self.rtts_s)
        return ordered[int(0.9 * (len(ordered) - 1) + 0.5)] - statistics.median(ordered)

    @property
    def loss_out(self) -> float | None:
        """The fraction lost on the way there."""
        return None if self.received_there is None else _lost(self.received_there, self.sent)

    @property
    def loss_back(self) -> float | None:
        """The fraction of the answers lost on the way back."""
        if not self.received_there:
            return None
        return _lost(len(self.rtts_s), self.received_there)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send pings, under which prefix (token, session), and from which address."""

    address: tuple[str, int]
    prefix: tuple[bytes, bytes]
    source_ip: str = ""


@dataclass(slots=True)
class _Train:
    """The pings to one target so far."""

    prefix: tuple[bytes, bytes]
    n: int
    sock: socket.socket
    sent_at_s: list[float] = field(default_factory=list)
    rtt_by_number: dict[int, float] = field(default_factory=dict)

    def send(self, now_s: float) -> None:
        self.sent_at_s.append(now_s)
        # An earlier datagram may have been refused (no such port): this one counts as lost.
        with contextlib.suppress(OSError):
            self.sock.send(PING.pack(*self.prefix, len(self.sent_at_s) - 1))

    def take(self, arrived_s: float) -> None:
        """Read one echo; what is not ours is passed over."""
        try:
            data = self.sock.recv(64)
        except OSError:  # refused
            return
        if len(data) == PING.size:
            token, session, number = PING.unpack(data)
            if (token, session) == self.prefix and number < len(self.sent_at_s):
                self.rtt_by_number.setdefault(number, arrived_s - self.sent_at_s[number])

    def awaited_until_s(self, wait_s: float) -> float:
        """When to give up on what is still missing: four round trips of the slowest so far.

        And a little more, for a peer whose processors are busy with something else just then.
        """
        if len(self.rtt_by_number) == self.n:
            return 0.0
        slowest_s = max(self.rtt_by_number.values(), default=wait_s)
        return self.sent_at_s[-1] + min(wait_s, 4 * slowest_s + BUSY_S)


def ping_udp(
    targets: Sequence[Target], *, n: int, interval_s: float, wait_s: float
) -> list[Echoes]:
    """Send `n` datagrams to each target at a steady pace, in turn, and time their echoes.

    `received_there` is not known. Blocks for `n · interval_s` per target, then until all echoes
    are back or for four round trips of the slowest so far, at most `wait_s` (all of it if none
    came).
    """
    with contextlib.ExitStack() as stack:
        trains = [_Train(t.prefix, n, stack.enter_context(_connected(t))) for t in targets]
        train_by_fd = {train.sock.fileno(): train for train in trains}
        poll = select.poll()
        for fd in train_by_fd:
            poll.register(fd, select.POLLIN)
        order = trains * n
        start_s, n_sent = time.perf_counter(), 0
        while True:
            now_s = time.perf_counter()
            due_s = start_s + n_sent * interval_s
            if n_sent < len(order) and now_s >= due_s:
                order[n_sent].send(now_s)
                n_sent += 1
                continue
            if n_sent == len(order):
                due_s = max((train.awaited_until_s(wait_s) for train in trains), default=0.0)
            arrived = poll.poll(max(0.0, 1e3 * (due_s - now_s)))
            for fd, _ in arrived:
                train_by_fd[fd].take(time.perf_counter())
            if not arrived and n_sent == len(order) and due_s <= now_s:
                break  # nor has anything come while this process was held up itself
        return [Echoes(tuple(train.rtt_by_number.values()), n) for train in trains]


def ping_stream(sock: socket.socket, *, n: int, max_s: float) -> Echoes:
    """Time `n` round trips of one byte over a connected stream that echoes; at most `max_s`."""
    rtts_s: list[float] = []
    until_s = time.perf_counter() + max_s
    while len(rtts_s) < n and (started_s := time.perf_counter()) < until_s:
        sock.sendall(b"p")
        if not sock.recv(1):
            break
        rtts_s.append(time.perf_counter() - started_s)
    return Echoes(tuple(rtts_s), n)


def _connected(target: Target) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if target.source_ip:
            sock.bind((target.source_ip, 0))
        sock.connect(target.address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _lost(arrived: int, sent: int) -> float:
    return max(0.0, 1.0 - arrived / sent)
