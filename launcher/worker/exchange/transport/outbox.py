"""Messages to one peer: cut into chunks, given out to paths, sent again where a path breaks."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.errors import LauncherError
from launcher.worker.exchange.transport.figures import RateMeter
from launcher.worker.exchange.transport.frame import Frame, Kind
from launcher.worker.exchange.transport.selection import Balancer, PathLoad, PathSelector

SMALL_BYTES = 16 << 10  # goes over the quickest path, at once if that is idle

SendNow = Callable[[bytes], int]


class Departure:
    """A message on its way; its buffer must not change before `wait` returns."""

    def __init__(self, tag: int, data: memoryview, chunk_bytes: int) -> None:
        self.tag, self.data, self.sequence = tag, data, 0
        self.next_offset = 0
        self.chunk_bytes = chunk_bytes
        self._n_unsettled = max(1, -(-len(data) // chunk_bytes))
        self._over = threading.Event()
        self._error: LauncherError | None = None

    def wait(self) -> None:
        """Block until the buffer may be used again.

        Raises:
            PeerLostError: a worker is gone.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error

    @property
    def is_settled(self) -> bool:
        """Whether all chunks have left for good."""
        return self._n_unsettled == 0

    def settle(self) -> None:
        """One more chunk has left for good."""
        self._n_unsettled -= 1
        if self._n_unsettled == 0:
            self._over.set()

    def fail(self, error: LauncherError) -> None:
        """The rest will not be sent."""
        if not self._over.is_set():
            self._error = error
            self._over.set()

    def next_chunk(self) -> "Chunk":
        """Cut off the next chunk; there must be one."""
        length = min(self.chunk_bytes, len(self.data) - self.next_offset)
        chunk = Chunk(self, self.next_offset, length)
        self.next_offset += length
        return chunk

    @property
    def is_cut_up(self) -> bool:
        """Whether there is no further chunk."""
        return self.next_offset >= len(self.data)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a message."""

    departure: Departure
    offset: int
    length: int

    @property
    def key(self) -> tuple[int, int]:
        """Names the chunk among all of a peer."""
        return self.departure.sequence, self.offset

    def header(self) -> bytes:
        """What announces it."""
        message = self.departure
        return Frame(
            Kind.DATA, message.tag, message.sequence, self.offset, self.length, len(message.data)
        ).packed()

    def data(self) -> memoryview:
        """Its bytes."""
        return self.departure.data[self.offset : self.offset + self.length]


@dataclass(slots=True, eq=False)
class Lane:
    """One path's part in an outbox, as long as one connection of it lasts.

    Args:
        path: its index.
        rtt_s: round-trip time in seconds.
        send_now: writes what fits without blocking, returns how many bytes; may raise OSError.
    """

    path: int
    rtt_s: float
    send_now: SendNow
    control: deque[bytes] = field(default_factory=deque)
    meter: RateMeter = field(default_factory=RateMeter)
    is_up: bool = True
    is_ending: bool = False
    is_idle: bool = False  # its thread waits for something to send
    unsettled_bytes: int = 0
    sent_bytes: int = 0
    last_ack_s: float = 0.0

    def load(self) -> PathLoad:
        """How it stands, for the plug-ins."""
        return PathLoad(self.path, self.rtt_s, self.meter.bytes_per_s, self.unsettled_bytes)


class Outbox:
    """What one peer is to get.

    Args:
        acknowledged: whether chunks count as sent only when the peer has them; needed where
            there are several paths, so that what a broken path swallowed is sent again.
        selector: says which paths carry chunks.
        balancer: gives chunks out to them.
        chunk_bytes: size of a chunk.
    """

    def __init__(
        self, *, acknowledged: bool, selector: PathSelector, balancer: Balancer, chunk_bytes: int
    ) -> None:
        self._acknowledged, self._chunk_bytes = acknowledged, chunk_bytes
        self._selector, self._balancer = selector, balancer
        self._changed = threading.Condition()
        self._lanes: list[Lane] = []
        self._small: deque[Departure] = deque()
        self._large: deque[Departure] = deque()
        self._again: deque[Chunk] = deque()
        self._under_way: dict[tuple[int, int], tuple[Chunk, Lane, float]] = {}
        self._unfinished: dict[int, Departure] = {}
        self._waiting_bytes = 0  # in _large and _again
        self._n_sent = 0
        self._error: LauncherError | None = None

    def attach(self, lane: Lane) -> None:
        """Use a path."""
        with self._changed:
            self._lanes.append(lane)
            self._changed.notify_all()

    def detach(self, lane: Lane) -> None:
        """Stop using a path; what it has not delivered goes to the others."""
        with self._changed:
            if not lane.is_up:
                return
            lane.is_up = False
            self._lanes.remove(lane)
            lost = [chunk for chunk, other, _ in self._under_way.values() if other is lane]
            for chunk in lost:
                del self._under_way[chunk.key]
                self._again.append(chunk)
                self._waiting_bytes += chunk.length
            self._changed.notify_all()

    def send(self, tag: int, data: memoryview) -> Departure:
        """Send a message; returns at once."""
        departure = Departure(tag, data, self._chunk_bytes)
        with self._changed:
            if self._error is not None:
                departure.fail(self._error)
                return departure
            departure.sequence, self._n_sent = self._n_sent, self._n_sent + 1
            self._unfinished[departure.sequence] = departure
            if len(data) > SMALL_BYTES:
                self._large.append(departure)
                self._waiting_bytes += len(data)
                self._changed.notify_all()
            elif not self._send_small_now(departure):
                self._small.append(departure)
                self._changed.notify_all()
        return departure

    def take(self, lane: Lane) -> tuple[list[bytes | memoryview], Chunk | None] | None:
        """What a path's thread is to write next; blocks, and returns None at the end."""
        with self._changed:
            lane.is_idle = True
            while lane.is_up:
                if lane.control:
                    parts: list[bytes | memoryview] = [b"".join(lane.control)]
                    lane.control.clear()
                    break
                if lane.is_ending:
                    return None
                if (chunk := self._next_chunk(lane)) is not None:
                    self._hand_over(chunk, lane)
                    lane.is_idle = False
                    return [chunk.header(), chunk.data()], chunk
                self._changed.wait()
            else:
                return None
            lane.is_idle = False
            return parts, None

    def written(self, lane: Lane, chunk: Chunk, busy_s: float) -> None:
        """A chunk has been written, which took so many seconds."""
        if not self._acknowledged:
            lane.meter.add(chunk.length, busy_s)
            with self._changed:
                self._settle(chunk)

    def acknowledge(self, lane: Lane, frame: Frame) -> None:
        """The peer has a chunk."""
        now_s = time.monotonic()
        with self._changed:
            entry = self._under_way.pop((frame.sequence, frame.offset), None)
            if entry is None:
                return
            chunk, carrier, handed_s = entry
            carrier.unsettled_bytes -= chunk.length
            if carrier is lane and carrier.last_ack_s > handed_s:
                # The path was busy in between, so the gap is what this chunk took.
                carrier.meter.add(chunk.length, now_s - carrier.last_ack_s)
            carrier.last_ack_s = now_s
            self._settle(chunk)
            self._changed.notify_all()

    def reply(self, lane: Lane, data: bytes) -> None:
        """Send a few bytes over a given path, before all that waits."""
        with self._changed:
            if lane.is_up and not self._write_now(lane, data):
                lane.control.append(data)
                self._changed.notify_all()

    def end(self, lane: Lane, farewell: bytes) -> None:
        """Send the last bytes of a path; its thread ends after them."""
        with self._changed:
            lane.control.append(farewell)
            lane.is_ending = True
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all has been sent; whether it was."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._unfinished or self._error is not None, timeout_s
            )

    def fail(self, make_error: Callable[[], LauncherError]) -> None:
        """Nothing more can be sent: all who wait are told."""
        with self._changed:
            if self._error is None:
                self._error = make_error()
            for departure in self._unfinished.values():
                departure.fail(self._error)
            self._unfinished.clear()
            for queue in (self._small, self._large, self._again):
                queue.clear()
            self._under_way.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def _send_small_now(self, departure: Departure) -> bool:
        """Save a change of threads where the quickest path is idle."""
        lane = self._quickest()
        if lane is None or not lane.is_idle or lane.control:
            return False
        chunk = departure.next_chunk()
        self._hand_over(chunk, lane)
        if not self._write_now(lane, chunk.header() + chunk.data()):
            lane.control.append(chunk.header() + chunk.data())
            self._changed.notify_all()
        if not self._acknowledged:
            self._settle(chunk)
        return True

    def _write_now(self, lane: Lane, data: bytes) -> bool:
        """Write without blocking if the path is idle; the path's thread does what is left."""
        if not lane.is_idle or lane.control:
            return False
        try:
            n_written = lane.send_now(data)
        except OSError:
            return False  # the path's thread meets the same error and reports it
        if n_written < len(data):
            lane.control.append(data[n_written:])
            self._changed.notify_all()
        return True

    def _next_chunk(self, lane: Lane) -> Chunk | None:
        if self._small and self._quickest() is lane:
            return self._small.popleft().next_chunk()
        if not (self._again or self._large) or not self._may_take(lane):
            return None
        if self._again:
            chunk = self._again.popleft()
        else:
            chunk = self._large[0].next_chunk()
            if chunk.departure.is_cut_up:
                self._large.popleft()
        self._waiting_bytes -= chunk.length
        return chunk

    def _may_take(self, lane: Lane) -> bool:
        if len(self._lanes) == 1:
            return True
        loads = self._selector.select([other.load() for other in self._lanes])
        own = next((load for load in loads if load.path == lane.path), None)
        if own is None:
            return False
        others = [load for load in loads if load is not own]
        chunk_bytes = min(self._chunk_bytes, self._waiting_bytes)
        return self._balancer.takes(own, others, chunk_bytes, self._waiting_bytes)

    def _quickest(self) -> Lane | None:
        return min(self._lanes, key=lambda lane: (lane.rtt_s, lane.path), default=None)

    def _hand_over(self, chunk: Chunk, lane: Lane) -> None:
        lane.sent_bytes += chunk.length
        if self._acknowledged:
            self._under_way[chunk.key] = (chunk, lane, time.monotonic())
            lane.unsettled_bytes += chunk.length

    def _settle(self, chunk: Chunk) -> None:
        chunk.departure.settle()
        if chunk.departure.is_settled:
            self._unfinished.pop(chunk.departure.sequence, None)
            if not self._unfinished:
                self._changed.notify_all()
