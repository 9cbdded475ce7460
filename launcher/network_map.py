"""Turns what the probe's agents found into the network map's links."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from launcher.probe_routes import Route
from launcher.worker.round_trips import RoundTrip
from launcher.worker.traffic import Traffic
from launcher.worker.upload import Rate
from policies.schema import DEFAULT_PATH, Link


@dataclass(slots=True)
class Findings:
    """What was measured so far, by route.

    A round trip is known under the route that was pinged, a rate under the route in its own
    direction. `traffic` is each agent's account of its transfers.
    """

    round_trips: dict[Route, RoundTrip] = field(default_factory=dict)
    rates: dict[Route, Rate] = field(default_factory=dict)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def rtt_s(self, route: Route) -> float | None:
        """The round trip of a route, in seconds, if it has answered."""
        trip = self.round_trips.get(route)
        return trip.rtt_s if trip else None

    def hides(self, route: Route) -> bool:
        """Whether one of its nodes is silent."""
        return not self.silent.isdisjoint(route.nodes)

    @property
    def sent_bytes(self) -> int:
        """What all transfers put on the network, as far as the agents could tell."""
        return sum(traffic.sent_bytes for traffic in self.traffic.values())


def links(nodes: Sequence[str], tried: Iterable[Route], findings: Findings) -> tuple[Link, ...]:
    """Both directions of every route that was tried, in the order of the nodes.

    A route that gave no answer has links of which nothing is known; so have all pairs with a
    silent node. A further network on which nothing answered is left out.
    """
    tried = list(tried)
    answering = {route.path for route in tried if findings.rtt_s(route) is not None}
    found: dict[tuple[str, str, str], Link] = {}
    for node, silent in product(nodes, findings.silent):
        for src, dst in ((node, silent), (silent, node)):
            found[src, dst, DEFAULT_PATH] = unknown_link(src, dst, DEFAULT_PATH)
    for route in tried:
        if route.path in {*answering, DEFAULT_PATH}:
            for link in _both_ways(route, findings):
                found[link.src, link.dst, link.path] = link
    order = {node: i for i, node in enumerate(nodes)}
    paths = [DEFAULT_PATH, *sorted({path for *_, path in found} - {DEFAULT_PATH})]
    place = {path: i for i, path in enumerate(paths)}
    return tuple(sorted(found.values(), key=lambda k: (place[k.path], order[k.src], order[k.dst])))


def unknown_link(src: str, dst: str, path: str) -> Link:
    """A link of which nothing is known."""
    return Link(src, dst, path, None, None, None, None)


def _both_ways(route: Route, findings: Findings) -> tuple[Link, ...]:
    """The links there and back (one for a loopback)."""
    trip = findings.round_trips.get(route, RoundTrip())
    there = _link(route, trip, trip.loss_out, findings)
    if route.is_loopback:
        return (there,)
    return there, _link(route.back, trip, trip.loss_back, findings)


def _link(route: Route, trip: RoundTrip, loss: float | None, findings: Findings) -> Link:
    if findings.hides(route) or trip.rtt_s is None:
        return unknown_link(route.src, route.dst, route.path)
    rate = findings.rates.get(route, Rate())
    return Link(
        route.src,
        route.dst,
        route.path,
        trip.rtt_s,
        trip.jitter_s,
        loss,
        rate.bytes_per_s,
        other_bytes_per_s=_others(rate.session, route.nodes, findings.traffic),
    )


def _others(session: bytes, nodes: Collection[str], traffic: Mapping[str, Traffic]) -> float:
    """What others sent during a transfer: the most that either of its ends has seen."""
    seen = [traffic[n].others_bytes_per_s.get(session, 0.0) for n in nodes if n in traffic]
    return max(seen, default=0.0)
