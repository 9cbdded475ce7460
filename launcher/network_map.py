"""Turns what the probe's agents found into the network map's links."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from launcher.other_traffic import OtherTraffic, other_traffic
from launcher.probe_routes import EndpointsByNode, Route
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
        return sum(sum(account.sent_bytes.values()) for account in self.traffic.values())


def links(
    nodes: Sequence[str],
    tried: Iterable[Route],
    findings: Findings,
    endpoints_by_path: Mapping[str, EndpointsByNode],
) -> tuple[Link, ...]:
    """Both directions of every route that was tried, in the order of the nodes.

    A route that gave no answer has links of which nothing is known; so have all pairs with a
    silent node. A further network on which nothing answered is left out.
    """
    tried = list(tried)
    sessions = [(route, rate.session) for route, rate in findings.rates.items()]
    others = other_traffic(findings.traffic, sessions, endpoints_by_path)
    answering = {route.path for route in tried if findings.rtt_s(route) is not None}
    found: dict[tuple[str, str, str], Link] = {}
    for node, silent in product(nodes, findings.silent):
        for src, dst in ((node, silent), (silent, node)):
            found[src, dst, DEFAULT_PATH] = unknown_link(src, dst, DEFAULT_PATH)
    for route in tried:
        if route.path in {*answering, DEFAULT_PATH}:
            for link in _both_ways(route, findings, others, endpoints_by_path[route.path]):
                found[link.src, link.dst, link.path] = link
    order = {node: i for i, node in enumerate(nodes)}
    paths = [DEFAULT_PATH, *sorted({path for *_, path in found} - {DEFAULT_PATH})]
    place = {path: i for i, path in enumerate(paths)}
    return tuple(sorted(found.values(), key=lambda k: (place[k.path], order[k.src], order[k.dst])))


def unknown_link(src: str, dst: str, path: str) -> Link:
    """A link of which nothing is known."""
    return Link(src, dst, path, None, None, None, None)


def _both_ways(
    route: Route, findings: Findings, others: OtherTraffic, ends: EndpointsByNode
) -> Iterator[Link]:
    """The links there and back (one for a loopback)."""
    trip = findings.round_trips.get(route, RoundTrip())
    for each, loss in ((route, trip.loss_out), (route.back, trip.loss_back)):
        if findings.hides(route) or trip.rtt_s is None:
            yield unknown_link(each.src, each.dst, each.path)
        else:
            rate = findings.rates.get(each, Rate()).bytes_per_s
            link = Link(each.src, each.dst, each.path, trip.rtt_s, trip.jitter_s, loss, rate)
            yield replace(link, other_bytes_per_s=others.over(each, ends))
        if route.is_loopback:
            return
