"""The probe's part on a node: answers other agents, and measures the ways to them."""

import contextlib
from collections.abc import Sequence

from launcher.worker.greeting import Endpoint, Way
from launcher.worker.held_streams import HeldStreams
from launcher.worker.interfaces import Address, addresses, shared_addresses
from launcher.worker.responder import TOKEN_BYTES, Responder
from launcher.worker.round_trips import Pings, RoundTrip, measure_round_trips
from launcher.worker.traffic import Traffic, TrafficBook
from launcher.worker.upload import Effort, Rate, measure_rate

__all__ = ["TOKEN_BYTES", "ProbeAgent"]


class ProbeAgent:
    """Answers at a node's addresses, and asks other agents when told to.

    Args:
        ip: the node's address in the cluster.
        token: `TOKEN_BYTES` random bytes that all agents of a probe share.
        everywhere: whether to answer at the node's addresses on other networks, too.
    """

    def __init__(self, ip: str, token: bytes, *, everywhere: bool = False) -> None:
        self._token, self._held = token, HeldStreams(token)
        found = addresses()
        own = next((address for address in found if address.ip == ip), Address(ip, "", ""))
        self._book = TrafficBook({address.interface for address in found})
        self._responders = [Responder(own, token, self._book)]
        for other in shared_addresses(ip, found) if everywhere else ():
            with contextlib.suppress(OSError):  # tentative, or gone by now
                self._responders.append(Responder(other, token, self._book))

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where this agent answers; the address in the cluster first. Also a sign of life."""
        return tuple(responder.endpoint for responder in self._responders)

    def hold(self, ways: Sequence[Way]) -> None:
        """Open streams for transfers that will come; returns at once."""
        self._held.open(ways)

    def round_trips(self, ways: Sequence[Way], pings: Pings) -> list[RoundTrip]:
        """Ping other agents, with which a probe begins; see `measure_round_trips`."""
        self._book.open()
        found = measure_round_trips(ways, self._token, pings)
        self._book.look_for_others()
        return found

    def rate(self, way: Way, effort: Effort, rtt_s: float) -> Rate:
        """Send bytes to another agent; see `upload.measure_rate`."""
        held = self._held.take(way)
        return measure_rate(way, self._token, effort, rtt_s, self._book, held)

    def traffic(self) -> Traffic:
        """What this agent's transfers sent in this probe, and all that passed meanwhile."""
        return self._book.account()

    def close(self) -> None:
        """Stop answering. A transfer that still runs ends by its own limits."""
        self._held.close()
        for responder in self._responders:
            responder.close()
