"""Measures round trip, jitter and loss from this node to other nodes' probe agents."""

import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from launcher.worker.echoes import Echoes, Target, ping_stream, ping_udp
from launcher.worker.greeting import PINGS, RESULT, Way, Wish, connect, read_exactly

_STREAM_PINGS = 20  # where UDP is blocked


@dataclass(frozen=True, slots=True)
class Pings:
    """How many pings each way gets, in turn at this pace; a hundred tell 1 % loss from none."""

    n: int = 100
    interval_s: float = 0.001
    wait_s: float = 0.5


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A path's round trip as measured from the agent that asked; None is "not known"."""

    rtt_s: float | None = None
    jitter_s: float | None = None
    loss_out: float | None = None
    loss_back: float | None = None
    error: str | None = None


def measure_round_trips(ways: Sequence[Way], token: bytes, pings: Pings) -> list[RoundTrip]:
    """Round trip, jitter and loss of several ways at the same time, in their order.

    Blocks for `CONNECT_S` at most once for all silent peers, else for the pings.
    """
    if not ways:
        return []
    with ThreadPoolExecutor(len(ways)) as pool:
        # The streams first: a silent peer is found out by one handshake, not by lost pings.
        calls = list(pool.map(lambda way: _Call.opened(way, token, pings), ways))
        heard = [call for call in calls if call.stream]
        try:
            targets = [call.target(token) for call in heard]
            sent = ping_udp(targets, n=pings.n, interval_s=pings.interval_s, wait_s=pings.wait_s)
            trips = pool.map(lambda call, echoes: call.settled(echoes, pings), heard, sent)
            trip_by_session = {call.session: trip for call, trip in zip(heard, trips, strict=True)}
        finally:
            for call in heard:
                call.close()
    return [trip_by_session.get(call.session) or call.failed() for call in calls]


@dataclass(frozen=True, slots=True)
class _Call:
    """A way and the stream to its other end; without one, why there is none."""

    way: Way
    session: bytes
    stream: socket.socket | None = None
    problem: OSError | None = None

    @classmethod
    def opened(cls, way: Way, token: bytes, pings: Pings) -> "_Call":
        call = cls(way, os.urandom(8))
        try:
            wish = Wish(PINGS, call.session, 0, pings.wait_s, 0.0)
            return replace(call, stream=connect(way, token, wish))
        except OSError as error:
            return replace(call, problem=error)

    def target(self, token: bytes) -> Target:
        address = (self.way.peer.ip, self.way.peer.udp_port)
        return Target(address, (token, self.session), self.way.source_ip)

    def settled(self, echoes: Echoes, pings: Pings) -> RoundTrip:
        """With the peer's count of arrivals; over TCP, without loss, if no echo came back."""
        try:
            counted = self._counted(echoes, pings)
        except OSError as error:
            return replace(self, problem=error).failed()
        return RoundTrip(counted.rtt_s, counted.jitter_s, counted.loss_out, counted.loss_back)

    def failed(self) -> RoundTrip:
        return RoundTrip(error=f"{self.way.peer.ip} does not answer: {self.problem}")

    def close(self) -> None:
        if self.stream:
            self.stream.close()

    def _counted(self, echoes: Echoes, pings: Pings) -> Echoes:
        if self.stream is None:
            raise ConnectionError("no stream")
        if not echoes.rtts_s:
            return ping_stream(self.stream, n=_STREAM_PINGS, max_s=2 * pings.wait_s)
        self.stream.sendall(b"c")
        arrived, _ = RESULT.unpack(read_exactly(self.stream, RESULT.size))
        return replace(echoes, received_there=min(arrived, echoes.sent))
