"""One other rank: the streams to it, what is sent to it and what it sent."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from launcher.errors import LauncherError, PeerLostError
from launcher.worker.exchange.transport.figures import PathFigures
from launcher.worker.exchange.transport.frame import MAX_REASON_BYTES, Frame, Kind
from launcher.worker.exchange.transport.inbox import Arrival, Inbox
from launcher.worker.exchange.transport.outbox import Departure, Outbox
from launcher.worker.exchange.transport.stream import Stream

_log = logging.getLogger(__name__)


class Company(Protocol):
    """Whoever has several peers and must know when one is lost."""

    def lost(self, error: PeerLostError) -> None:
        """The run cannot go on."""
        ...

    def path_is_down(self, rank: int, path: int) -> None:
        """A path is to be connected again."""
        ...


class Peer:
    """Another rank, over all paths that lead to it.

    Args:
        rank: the peer's.
        paths: indices of the paths that both have.
        address_by_rank: where each rank is, for messages.
        company: is told of losses.
        inbox: takes what comes.
        outbox: gives what is to be sent.
    """

    def __init__(
        self,
        rank: int,
        paths: Sequence[int],
        address_by_rank: Callable[[int], str],
        company: Company,
        *,
        inbox: Inbox,
        outbox: Outbox,
    ) -> None:
        self.rank, self.paths = rank, tuple(paths)
        self._address_by_rank, self._company = address_by_rank, company
        self._inbox, self._outbox = inbox, outbox
        self._changed = threading.Condition()
        self._streams: dict[int, Stream] = {}
        self._ended: list[Stream] = []
        self._n_connected = dict.fromkeys(self.paths, 0)
        self._is_closing = False
        self.has_left = False

    def post(self, tag: int, into: memoryview) -> Arrival:
        """Wait for a message."""
        return self._inbox.post(tag, into)

    def send(self, tag: int, data: memoryview) -> Departure:
        """Send a message."""
        return self._outbox.send(tag, data)

    def attach(self, path: int, connection: socket.socket, rtt_s: float) -> None:
        """Use a connection that has proven where it comes from."""
        stream = Stream(
            connection,
            path,
            rtt_s,
            inbox=self._inbox,
            outbox=self._outbox,
            acknowledged=len(self.paths) > 1,
            owner=self,
        )
        with self._changed:
            refused = self._is_closing or (len(self.paths) == 1 and self._n_connected[path] > 0)
            if not refused:
                old = self._streams.get(path)
                self._streams[path] = stream
                self._n_connected[path] += 1
                stream.start()
                self._changed.notify_all()
        if refused:
            connection.close()
        elif old is not None:
            old.abandon("the peer connected again")

    def is_up(self, path: int) -> bool:
        """Whether a path can be used."""
        with self._changed:
            return path in self._streams

    def wait_until_up(self, n_paths: int, timeout_s: float) -> bool:
        """Wait until so many paths can be used; whether they can."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._streams) >= n_paths, timeout_s)

    def break_path(self, path: int, reason: str) -> None:
        """Give a path up, unless it is the only one."""
        with self._changed:
            stream = self._streams.get(path) if len(self._streams) > 1 else None
        if stream is not None:
            stream.abandon(reason)

    def check(self) -> None:
        """Give paths up on which packets vanish; to be called often."""
        for stream in self._current_streams():
            stream.check()

    def said_bye(self) -> None:
        """The peer ends its part."""
        self.has_left = True

    def told_loss(self, rank: int, reason: str) -> None:
        """The peer has lost a rank, so all have."""
        self._company.lost(PeerLostError(rank, self._address_by_rank(rank), reason))

    def tell_loss(self, rank: int, reason: str) -> None:
        """Let the peer know which rank is lost, so that all name the same one."""
        text = reason.encode()[:MAX_REASON_BYTES]
        for stream in self._current_streams():
            self._outbox.reply(
                stream.lane, Frame(Kind.LOST, rank, length=len(text)).packed() + text
            )

    def _current_streams(self) -> list[Stream]:
        with self._changed:
            return list(self._streams.values())

    def stream_ended(self, stream: Stream, reason: str) -> None:
        """Go on without a stream, if there is another."""
        with self._changed:
            self._ended.append(stream)
            if self._streams.get(stream.path) is stream:
                del self._streams[stream.path]
            n_left = len(self._streams)
            self._changed.notify_all()
            if self._is_closing:
                return
        if n_left == 0:
            self._all_ended(reason)
        elif not stream.heard_bye:
            _log.warning("rank %d: path %d is down: %s", self.rank, stream.path, reason)
            self._company.path_is_down(self.rank, stream.path)

    def _all_ended(self, reason: str) -> None:
        if self.has_left:
            self.fail(lambda: self._lost("it has ended its part of the run"))
        else:
            self._company.lost(self._lost(reason))

    def _lost(self, reason: str) -> PeerLostError:
        return PeerLostError(self.rank, self._address_by_rank(self.rank), reason)

    def fail(self, make_error: Callable[[], LauncherError]) -> None:
        """Let all who wait for this peer know."""
        self._inbox.fail(make_error)
        self._outbox.fail(make_error)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all has been sent; whether it was."""
        return self._outbox.drain(timeout_s)

    def say_bye(self) -> None:
        """End all streams after what waits to be sent."""
        with self._changed:
            self._is_closing = True
        for stream in self._current_streams():
            self._outbox.end(stream.lane, Frame(Kind.BYE).packed())

    def close(self, deadline_s: float) -> None:
        """Wait for the peer's good-bye until the deadline, then end everything."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._streams, max(0.0, deadline_s - time.monotonic())
            )
        self._inbox.fail(lambda: self._lost("the exchange is closed"))
        for stream in self._current_streams():
            stream.abandon("the exchange is closed")
        for stream in self._ended:
            stream.join(time.monotonic() + 1.0)

    def figures(self) -> list[PathFigures]:
        """What went over each path."""
        with self._changed:
            return [self._figures(path) for path in self.paths]

    def _figures(self, path: int) -> PathFigures:
        current = self._streams.get(path)
        all_streams = [s for s in self._ended if s.path == path]
        all_streams += [current] if current is not None else []
        last = all_streams[-1].lane if all_streams else None
        return PathFigures(
            rank=self.rank,
            path=path,
            up=current is not None,
            sent_bytes=sum(stream.lane.sent_bytes for stream in all_streams),
            received_bytes=sum(stream.received_bytes for stream in all_streams),
            rate_bytes_per_s=last.meter.bytes_per_s if last else None,
            busy_s=sum(stream.lane.meter.total_busy_s for stream in all_streams),
            rtt_s=last.rtt_s if last else 0.0,
            n_down=self._n_connected[path] - (current is not None),
            n_reconnects=max(0, self._n_connected[path] - 1),
        )
