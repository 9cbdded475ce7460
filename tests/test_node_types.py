from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from launcher.cluster_nodes import NODE_GROUP
from launcher.errors import ClusterError
from launcher.node_types import HEAD, autoscaling_of, nodes_to_start, with_node_group
from launcher.worker.autoscaling_config import shareable
from policies.schema import Node

AWS = Path(__file__).parents[1] / "cluster.yaml"

WORDS = {
    "max_workers": 5,
    "idle_timeout_minutes": 2,
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 2}},
        "small": {
            "resources": {"CPU": 2},
            "max_workers": 3,
            "labels": {"launch/price-usd-per-hour": "0.1"},
        },
        "gpu": {
            "resources": {"CPU": 4, "GPU": 1},
            "node_config": {"InstanceType": "g4dn.xlarge"},
        },
        "storage": {"resources": {"CPU": 0}},
    },
}


def living(name: str, node_type: str | None = None, cpus: float = 2.0) -> Node:
    kind = f"{cpus:g} cpu"
    return Node(name, "10.0.0.1", cpus, 0.0, None, 0.2, "label", kind, node_type=node_type)


def started(*nodes: Node, words=WORDS, price=None) -> list[tuple[str | None, str]]:
    found = autoscaling_of(words)
    assert found is not None
    return [(node.node_type, node.id) for node in nodes_to_start(found, nodes, price)]


def test_the_head_and_types_without_cpus_are_no_candidates():
    found = autoscaling_of(WORDS)
    assert found is not None
    assert [(each.name, each.max_nodes) for each in found.types] == [("small", 3), ("gpu", 5)]
    assert (found.max_nodes, found.idle_s) == (5, 120.0)


def test_limits_are_those_of_the_type_and_of_all_types_together():
    head = living("h", "head")
    assert started(head) == [
        ("small", "small 1"),
        ("small", "small 2"),
        ("small", "small 3"),
        *[("gpu", f"gpu {i}") for i in range(1, 6)],
    ]
    two = [living("a", "small"), living("b", "small")]
    assert started(head, *two) == [("small", "small 3"), *[("gpu", f"gpu {i}") for i in (1, 2, 3)]]
    full = [living(str(i)) for i in range(5)]
    assert started(head, *full) == []


def test_a_limit_that_is_left_out_is_rays_own_and_minus_one_is_none():
    types = {"a": {"resources": {"CPU": 1}}, "b": {"resources": {"CPU": 1}, "max_workers": -1}}
    found = autoscaling_of({"available_node_types": types})
    assert found is not None
    assert (found.max_nodes, found.idle_s) == (2, 300.0)
    assert [each.max_nodes for each in found.types] == [2, 1000]


def test_nothing_can_be_started_where_no_type_is_described():
    assert autoscaling_of({}) is None
    assert autoscaling_of({"available_node_types": {"head": {}}, "head_node_type": "head"}) is None


def test_a_node_to_start_has_the_price_and_kind_that_the_file_tells():
    found = autoscaling_of(WORDS)
    assert found is not None
    by_type = {node.node_type: node for node in nodes_to_start(found, [], None)}
    small, gpu = by_type["small"], by_type["gpu"]
    assert (small.price_usd_per_h, small.price_source, small.kind) == (0.1, "label", "2 cpu")
    assert (gpu.price_source, gpu.kind, gpu.gpus) == ("table", "4 cpu + 1 gpu", 1.0)
    assert (small.is_up, small.ip, small.lingers_s) == (False, "", 120.0)
    (priced,) = {n.price_usd_per_h for n in nodes_to_start(found, [], 7.0)}
    assert priced == 7.0


def test_another_node_of_a_type_that_is_up_is_taken_to_be_like_it():
    found = autoscaling_of(WORDS)
    assert found is not None
    odd = replace(living("x", "small"), kind="2 cpu, 0.5 allowed", allowed_cpus=0.5)
    first = nodes_to_start(found, [odd], None)[0]
    assert (first.kind, first.allowed_cpus, first.price_usd_per_h) == (odd.kind, 0.5, 0.2)
    assert first.id != odd.id


def test_a_price_that_is_none_is_named_with_its_type():
    words = {
        "available_node_types": {
            "dear": {"resources": {"CPU": 1}, "labels": {"launch/price-usd-per-hour": "much"}}
        }
    }
    with pytest.raises(ClusterError, match="Node dear has the label"):
        started(words=words)


def test_the_projects_own_cluster_file_describes_its_types():
    found = autoscaling_of(yaml.safe_load(AWS.read_text()))
    assert found is not None
    about = {each.name: (each.cpus, each.gpus, each.instance_type) for each in found.types}
    assert about == {
        "cpu": (8.0, 0.0, "c5.2xlarge"),
        "cpu-spot": (8.0, 0.0, "c5.2xlarge"),
        "gpu": (4.0, 1.0, "g4dn.xlarge"),
        "gpu-spot": (4.0, 1.0, "g4dn.xlarge"),
    }
    assert found.labels_of("cpu") != found.labels_of("cpu-spot")
    assert found.labels_of(None) == found.labels_of("nobody") == {}
    prices = {node.node_type: node.price_usd_per_h for node in nodes_to_start(found, [], None)}
    assert prices == {"cpu": 0.34, "cpu-spot": 0.15, "gpu": 0.526, "gpu-spot": 0.22}


def test_only_what_describes_nodes_leaves_the_head():
    words = {
        **yaml.safe_load(AWS.read_text()),
        "auth": {"ssh_private_key": "/root/key.pem"},
        "provider": {"type": "aws", "aws_credentials": {"aws_secret_access_key": "hush"}},
    }
    kept = shareable(words)
    assert "hush" not in str(kept)
    assert "key.pem" not in str(kept)
    assert "BlockDeviceMappings" not in str(kept)
    assert autoscaling_of(kept) == autoscaling_of(words)


PRICED = {"launch/price-usd-per-hour": "0.1"}


@pytest.mark.parametrize(
    ("resources", "labels", "group"),
    [
        ({"CPU": 2.0}, PRICED, "small"),
        ({"CPU": 2.0}, {**PRICED, NODE_GROUP: "gpu"}, "gpu"),
        ({"CPU": 4.0}, PRICED, None),
        ({"CPU": 2.0}, {}, None),
        ({"CPU": 2.0, HEAD: 1.0}, PRICED, None),
    ],
)
def test_a_node_without_a_type_has_the_one_whose_size_and_labels_it_has(resources, labels, group):
    autoscaling = autoscaling_of(WORDS)
    assert autoscaling is not None
    found = with_node_group({"Resources": resources, "Labels": labels}, autoscaling)
    assert found["Labels"].get(NODE_GROUP) == group
