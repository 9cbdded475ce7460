"""Tells what others sent over the nodes' interfaces from what the probe itself did."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from launcher.probe_routes import EndpointsByNode, Route
from launcher.worker.traffic import Traffic

# What headers may add to the probe's own bytes, and acknowledgements to what comes the other
# way, as fractions. Others who send less are not told from ourselves.
_OWN_EXTRA: Final = 0.1
_ACKNOWLEDGED: Final = 0.05
_NOTABLE_BYTES_PER_S: Final = 125e3

_Interface = tuple[str, str]  # node, name


@dataclass(frozen=True, slots=True)
class OtherTraffic:
    """Bytes per second that others sent and received over each interface during a probe."""

    sent: Mapping[_Interface, float]
    received: Mapping[_Interface, float]

    def over(self, route: Route, ends: EndpointsByNode) -> float:
        """The most that either end of a route has seen in its direction."""
        if route.is_loopback or route.src not in ends or route.dst not in ends:
            return 0.0
        at_src = self.sent.get((route.src, ends[route.src].interface), 0.0)
        return max(at_src, self.received.get((route.dst, ends[route.dst].interface), 0.0))


def other_traffic(
    traffic_by_node: Mapping[str, Traffic],
    transfers: Iterable[tuple[Route, bytes]],
    endpoints_by_path: Mapping[str, EndpointsByNode],
) -> OtherTraffic:
    """What the interfaces carried, less what the probe's transfers put on them.

    Args:
        traffic_by_node: the agents' accounts.
        transfers: each with its session.
        endpoints_by_path: over which interfaces each network runs.
    """
    own_sent: Counter[_Interface] = Counter()
    own_received: Counter[_Interface] = Counter()
    for route, session in transfers:
        if not route.is_loopback:
            ends = endpoints_by_path[route.path]
            account = traffic_by_node.get(route.src, Traffic())
            n_bytes = account.sent_bytes.get(session, 0)
            own_sent[route.src, ends[route.src].interface] += n_bytes
            own_received[route.dst, ends[route.dst].interface] += n_bytes
    sent, received = {}, {}
    for node, account in traffic_by_node.items():
        for name, carried in account.carried.items():
            at, out, back = (node, name), carried.sent_bytes, carried.received_bytes
            sent[at] = _rate(out, back, own_sent[at], account.took_s)
            received[at] = _rate(back, out, own_received[at], account.took_s)
    return OtherTraffic(sent, received)


def _rate(carried: int, opposite: int, own: int, took_s: float) -> float:
    """Bytes per second beyond our own, 0 if they may be headers and acknowledgements."""
    others = carried - own
    extra = _OWN_EXTRA * own + _ACKNOWLEDGED * opposite + _NOTABLE_BYTES_PER_S * took_s
    return others / took_s if took_s > 0 and others > extra else 0.0
