"""Which ways between nodes are probed, and from which addresses."""

from collections import Counter
from itertools import combinations

from launcher.probe_routes import Route, interfaces, routes, shared_networks, way
from launcher.worker.greeting import Endpoint
from policies.schema import DEFAULT_PATH, Interface

FAST = "10.98.0.0/24"


def endpoint(ip: str, network: str = "10.99.0.0/24") -> Endpoint:
    return Endpoint(ip, 1, 2, network)


def with_fast(i: int) -> tuple[Endpoint, ...]:
    return endpoint(f"10.99.0.{i}"), endpoint(f"10.98.0.{i}", FAST)


def test_nodes_share_the_networks_on_which_several_have_an_address() -> None:
    found = shared_networks({"a": with_fast(1), "b": with_fast(2), "c": (endpoint("10.99.0.3"),)})
    assert list(found) == [DEFAULT_PATH, FAST]
    assert {node: e.ip for node, e in found[FAST].items()} == {"a": "10.98.0.1", "b": "10.98.0.2"}
    assert interfaces(found)[-1] == Interface("b", "10.98.0.2", FAST)


def test_an_address_that_several_nodes_have_is_no_way_between_them() -> None:
    bridge = endpoint("172.17.0.1", "172.17.0.0/16")
    lonely = endpoint("192.168.1.5", "192.168.1.0/24")
    found = shared_networks({"a": (endpoint("10.0.0.1"), bridge, lonely),
                             "b": (endpoint("10.0.0.2"), bridge)})  # fmt: skip
    assert list(found) == [DEFAULT_PATH]
    assert interfaces(found) == ()


def test_every_pair_is_measured_on_every_network_that_it_shares_by_either_node() -> None:
    found = shared_networks({name: with_fast(i) for i, name in enumerate("abcdefgh", 1)})
    pairs = list(combinations("abcdefgh", 2))
    tried = routes(pairs, found)
    assert len([r for r in tried if r.is_loopback]) == 8
    for path in found:
        met = [r.nodes for r in tried if r.path == path and not r.is_loopback]
        assert sorted(map(sorted, met)) == sorted(map(sorted, pairs))
    load = Counter(r.src for r in tried if not r.is_loopback)
    assert max(load.values()) - min(load.values()) <= 2


def test_a_way_on_a_further_network_starts_at_the_nodes_address_there() -> None:
    found = shared_networks({"a": with_fast(1), "b": with_fast(2)})
    assert way(Route("a", "b", FAST), found).source_ip == "10.98.0.1"
    assert way(Route("a", "b", FAST), found).peer.ip == "10.98.0.2"
    assert way(Route("a", "b"), found).source_ip == ""
