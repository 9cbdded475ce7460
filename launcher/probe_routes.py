"""Which ways between nodes a probe takes: pairs of nodes, on each network that they share."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.worker.greeting import Endpoint, Way
from policies.schema import DEFAULT_PATH, Interface

EndpointsByNode = Mapping[str, Endpoint]


@dataclass(frozen=True, slots=True)
class Route:
    """A way from the node that measures to another (or its own loopback), over one network."""

    src: str
    dst: str
    path: str = DEFAULT_PATH

    @property
    def is_loopback(self) -> bool:
        """Whether it stays on its node."""
        return self.src == self.dst

    @property
    def nodes(self) -> frozenset[str]:
        """Its one or two ends."""
        return frozenset((self.src, self.dst))

    @property
    def back(self) -> "Route":
        """The other direction."""
        return Route(self.dst, self.src, self.path)


def shared_networks(
    endpoints_by_node: Mapping[str, Sequence[Endpoint]],
) -> dict[str, dict[str, Endpoint]]:
    """Each node's endpoint by network: the cluster's own first, then others that nodes share.

    An address that several nodes have is no way between them (a container engine's bridge, or
    several Ray nodes on one machine); a network of one node leads nowhere.

    Args:
        endpoints_by_node: each node's endpoints, that of its address in the cluster first.
    """
    ips = Counter(each.ip for endpoints in endpoints_by_node.values() for each in endpoints)
    default = {node: endpoints[0] for node, endpoints in endpoints_by_node.items()}
    others: defaultdict[str, dict[str, Endpoint]] = defaultdict(dict)
    for node, (_, *further) in endpoints_by_node.items():
        for endpoint in further:
            if endpoint.network and ips[endpoint.ip] == 1:
                others[endpoint.network].setdefault(node, endpoint)
    shared = {path: found for path, found in sorted(others.items()) if len(found) > 1}
    return {DEFAULT_PATH: default, **shared}


def routes(
    pairs: Iterable[tuple[str, str]], endpoints_by_path: Mapping[str, EndpointsByNode]
) -> list[Route]:
    """Loopbacks first, then the pairs over each network on which both nodes are.

    The node that measures is the one that has less to measure so far.
    """
    pairs = list(pairs)
    load: Counter[str] = Counter()
    found = [Route(node, node) for node in endpoints_by_path[DEFAULT_PATH]]
    for path, endpoints in endpoints_by_path.items():
        for pair in pairs:
            if pair[0] in endpoints and pair[1] in endpoints:
                src, dst = sorted(pair, key=lambda node: load[node])
                load[src] += 1
                found.append(Route(src, dst, path))
    return found


def way(route: Route, endpoints_by_path: Mapping[str, EndpointsByNode]) -> Way:
    """The route as its measuring node takes it; on a further network from its address there."""
    endpoints = endpoints_by_path[route.path]
    source_ip = "" if route.path == DEFAULT_PATH else endpoints[route.src].ip
    return Way(endpoints[route.dst], source_ip)


def interfaces(endpoints_by_path: Mapping[str, EndpointsByNode]) -> tuple[Interface, ...]:
    """All nodes' addresses by network, where there are several networks; else none."""
    if len(endpoints_by_path) < 2:
        return ()
    return tuple(
        Interface(node, endpoint.ip, path)
        for path, endpoints in endpoints_by_path.items()
        for node, endpoint in endpoints.items()
    )
