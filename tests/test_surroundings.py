from dataclasses import replace

from launcher.cluster import Cluster
from launcher.inspection import with_links_of
from launcher.prepare import Measured
from launcher.surroundings import Surroundings
from policies.schema import Interface
from tests.policies.cases import network, node, workload

NODES = tuple(node(name) for name in "abc")


def around() -> Surroundings:
    cluster = Cluster("10.0.0.1:6379", False, NODES, "joined")
    return Surroundings(cluster, Measured(network("abc"), workload(), profile_remembered=True))


def ids(found: Surroundings) -> list[str]:
    return [each.id for each in found.candidates.nodes]


def test_nodes_that_are_lost_or_leave_are_no_candidates() -> None:
    found = around()
    found.lost.add("a")
    found.leaving.add("b")
    assert ids(found) == ["c"]
    assert found.has(["c"])
    assert not found.has(["b", "c"])


def test_a_node_that_comes_back_is_a_candidate_again() -> None:
    found = around()
    found.lost.add("a")
    found.join([NODES[0]], found.measured)
    assert sorted(ids(found)) == ["a", "b", "c"]


def test_a_cluster_that_was_measured_anew_replaces_the_old_one() -> None:
    found = around()
    found.lost |= {"a", "b"}
    found.renew(replace(found.cluster, nodes=NODES[:1]), found.measured)
    assert ids(found) == ["a"]


def test_links_that_were_measured_again_replace_the_old_ones() -> None:
    found = around()
    found.remap(network("ab", rtt_s=0.5))
    rtt_by_pair = {(link.src, link.dst): link.rtt_s for link in found.measured.network.links}
    assert len(found.measured.network.links) == 6
    assert rtt_by_pair["a", "b"] == rtt_by_pair["b", "a"] == 0.5
    assert rtt_by_pair["a", "c"] == 0.0005


def test_a_node_that_slowed_down_is_a_kind_of_its_own() -> None:
    found = around()
    found.slow_down({"b": 2.0})
    assert [each.kind for each in found.cluster.nodes] == ["c5", "c5, 2.0 × slower", "c5"]
    assert len(found.measured.workload.node_kinds) == 2
    assert found.slow == {"b"}


def test_nodes_are_called_by_their_addresses() -> None:
    assert around().names(["a", "b", "a", "unknown-id"]).endswith(", unknown-")


def test_of_nodes_that_joined_only_their_own_links_are_new() -> None:
    place = Interface("c", "10.98.0.3", "10.98.0.0/24")
    fresh = replace(network("abc", rtt_s=0.5), interfaces=(place,))
    known = replace(network("ab"), silent=("c",))
    merged = with_links_of(known, fresh, [NODES[2]])
    rtt_by_pair = {(link.src, link.dst): link.rtt_s for link in merged.links}
    assert rtt_by_pair["a", "b"] == 0.0005
    assert rtt_by_pair["a", "c"] == rtt_by_pair["c", "b"] == 0.5
    assert merged.interfaces == (place,)
    assert merged.silent == ()
