"""Ray's books as nodes: which are free, which are busy, and what is said of those."""

from typing import Any

import pytest

from launcher.cluster_nodes import Listing, busy_text, instance_type_of, kind_of, list_nodes
from launcher.errors import ClusterError


def raw(name: str, ip: str, cpus: float, *, alive: bool = True, **more: Any) -> dict[str, Any]:
    resources = {"CPU": cpus} if cpus else {}
    return {
        "NodeID": name,
        "NodeManagerAddress": ip,
        "Alive": alive,
        "Resources": {**resources, **more.pop("resources", {})},
        "Labels": more.pop("labels", {}),
    }


def listed(*nodes: dict[str, Any], free: dict[str, dict[str, float]] | None = None) -> Listing:
    return list_nodes(nodes, free or {}, price_usd_per_h=None, own=False)


def test_a_node_of_which_anything_is_held_is_busy() -> None:
    free = {"a": {"CPU": 2.0}, "b": {"CPU": 1.0}}
    found = listed(raw("a", "10.0.0.1", 2), raw("b", "10.0.0.2", 2), free=free)
    assert [node.id for node in found.nodes] == ["a"]
    assert [(each.node.id, each.node.cpus, each.held_cpus) for each in found.busy] == [
        ("b", 2.0, 1.0)
    ]
    assert busy_text(found.busy) == "10.0.0.2 is busy: another job holds 1 of 2 CPUs"


def test_a_held_gpu_makes_a_node_busy() -> None:
    node = raw("a", "10.0.0.1", 4, resources={"GPU": 2.0})
    found = listed(node, free={"a": {"CPU": 4.0}})
    assert found.nodes == ()
    assert busy_text(found.busy) == "10.0.0.1 is busy: another job holds 2 of 2 GPUs"


def test_many_busy_nodes_are_one_line() -> None:
    nodes = [raw(f"n{i}", f"10.0.0.{i}", 2) for i in range(1, 6)]
    found = listed(*nodes, free={f"n{i}": {} for i in range(1, 6)})
    assert busy_text(found.busy) == (
        "10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more are busy: other jobs hold 10 of 10 CPUs"
    )


def test_a_head_without_cpus_is_neither_busy_nor_a_candidate() -> None:
    found = listed(raw("head", "10.0.0.1", 0), free={"head": {}})
    assert (found.nodes, found.busy, [n.id for n in found.idle]) == ((), (), ["head"])


def test_only_the_nodes_that_are_wanted_count() -> None:
    nodes = [raw(name, f"10.0.0.{i}", 2) for i, name in enumerate("abc")]
    found = listed(*nodes, free={"b": {}, "c": {}})
    assert found.among(()) == found
    kept = found.among(["a", "10.0.0.2"])
    assert ([n.id for n in kept.nodes], [e.node.id for e in kept.busy]) == (["a"], ["c"])


def test_dead_nodes_are_not_listed_and_the_others_come_in_order_of_their_addresses() -> None:
    found = listed(
        raw("a", "10.0.0.10", 1), raw("b", "10.0.0.9", 1), raw("c", "10.0.0.1", 1, alive=False)
    )
    assert [node.id for node in found.nodes] == ["b", "a"]


def test_a_label_that_is_no_price_is_refused() -> None:
    labels = {"launch/price-usd-per-hour": "cheap"}
    with pytest.raises(ClusterError, match="cheap"):
        listed(raw("a", "10.0.0.1", 1, labels=labels))


def test_the_instance_type_is_read_from_whatever_label_tells_it() -> None:
    assert instance_type_of({"launch/instance-type": "c5.large"}) == "c5.large"
    assert instance_type_of({"node.kubernetes.io/instance-type": "m5.large"}) == "m5.large"
    assert instance_type_of({"node_type": "g4dn.xlarge"}) == "g4dn.xlarge"
    assert instance_type_of({"ray.io/node-group": "c5.2xlarge"}) == "c5.2xlarge"
    assert instance_type_of({"ray.io/node-group": "cpu_worker"}) is None
    assert instance_type_of({}) is None


def test_machines_that_compute_alike_share_a_kind() -> None:
    assert kind_of(8, 0) == "8 cpu"
    assert kind_of(8, 1) == "8 cpu + 1 gpu"
    assert kind_of(8, 1, "T4") == "8 cpu + 1 gpu (T4)"
