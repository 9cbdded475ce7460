"""Nodes that declare GPUs: a plan's workers, what each asks Ray for, and what NCCL is told."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from launcher.cluster import Cluster
from launcher.cluster_nodes import list_nodes
from launcher.plan_paths import uses_nccl
from launcher.prepare import holdings
from launcher.trainer import scaling_config
from launcher.worker.nccl import RdmaPort, Wires, nccl_environments
from policies.recommend import recommend
from policies.schema import KindSpeed, Limits, Node, Plan
from tests.fakes import a_request
from tests.policies.cases import network, situation, workload

DECLARED = {
    "head": {},
    "one": {"CPU": 8.0, "GPU": 1.0},
    "four": {"CPU": 32.0, "GPU": 4.0},
    "none": {"CPU": 8.0},
}
PRICE = {"launch/price-usd-per-hour": "0.5"}


def declared() -> tuple[Node, ...]:
    """The nodes as Ray's books show them, those without CPUs left out."""
    raw = [
        {
            "NodeID": name,
            "NodeManagerAddress": f"10.0.0.{i}",
            "Alive": True,
            "Resources": resources,
            "Labels": PRICE,
        }
        for i, (name, resources) in enumerate(DECLARED.items(), 1)
    ]
    return list_nodes(raw, {}, price_usd_per_h=None, own=False).nodes


def speed_on(node: Node, gpus: float) -> KindSpeed:
    held = min(node.gpus, gpus)
    return KindSpeed(node.kind, 0.004, 0.0005 if held else 0.005, node.cpus, held)


def chosen(**limits: Any) -> Plan:
    """What is chosen for a script whose step takes ten times as long without a GPU."""
    nodes = declared()
    speeds = tuple(speed_on(node, limits.get("gpus_per_worker", 1.0)) for node in nodes)
    load = replace(workload(), node_kinds=speeds)
    case = situation(nodes, network([n.id for n in nodes]), limits=Limits(**limits), load=load)
    return recommend(case, (), seed=0).chosen


def asked_of_ray(plan: Plan) -> tuple[Counter[str], dict[str, float]]:
    """How many workers Ray Train is to put on each node, and what each is to hold."""
    found = scaling_config(plan)
    assert found.num_workers == len(found.label_selector) == plan.n_workers
    assert found.use_gpu == (plan.options.gpus_per_worker > 0)
    places = [selector["ray.io/node-id"] for selector in found.label_selector]
    assert tuple(places) == plan.nodes
    return Counter(places), found.resources_per_worker


def told_nccl(plan: Plan, **wires: Wires) -> list[tuple[str, dict[str, str]]]:
    """NCCL's variables of each worker, beside its node."""
    found = nccl_environments([wires[node] for node in plan.nodes])
    return list(zip(plan.nodes, found, strict=True))


def test_each_kind_of_node_is_profiled_with_one_of_its_gpus() -> None:
    cluster = Cluster("10.0.0.1:6379", False, declared(), "joined")
    held = {each.node.id: each.gpus for each in holdings(cluster, a_request())}
    assert held == {"one": 1.0, "four": 1.0, "none": 0.0}


def test_every_gpu_of_every_node_has_a_worker() -> None:
    plan = chosen(workers=5)
    places, resources = asked_of_ray(plan)
    assert places == {"one": 1, "four": 4}
    assert resources == {"CPU": 8.0, "GPU": 1.0}  # the common minimum


def test_as_many_workers_as_one_node_has_gpus_need_no_network() -> None:
    plan = chosen(workers=4)
    places, resources = asked_of_ray(plan)
    assert (places, resources) == ({"four": 4}, {"CPU": 8.0, "GPU": 1.0})
    assert uses_nccl(plan)
    assert told_nccl(plan, four=Wires("four", ("ens5",))) == [("four", {})] * 4


@pytest.mark.parametrize(("gpus", "n", "cpus"), [(2.0, 2, 16.0), (4.0, 1, 32.0)])
def test_workers_with_several_gpus_share_the_node_that_has_them(
    gpus: float, n: int, cpus: float
) -> None:
    places, resources = asked_of_ray(chosen(gpus_per_worker=gpus, workers=n))
    assert (places, resources) == ({"four": n}, {"CPU": cpus, "GPU": gpus})


def test_nodes_train_on_cpus_where_no_gpus_are_asked_for() -> None:
    plan = chosen(gpus_per_worker=0.0, workers=3)
    places, resources = asked_of_ray(plan)
    assert (places, resources) == ({"one": 1, "four": 1, "none": 1}, {"CPU": 8.0})
    assert not uses_nccl(plan)


def test_workers_of_a_node_tell_nccl_the_same_and_each_node_its_own() -> None:
    plan = chosen(workers=5)
    assert uses_nccl(plan)
    found = told_nccl(plan, one=Wires("one", ("eth0",)), four=Wires("four", ("ens5",)))
    interfaces = {"one": "=eth0", "four": "=ens5"}
    assert found == [(node, {"NCCL_SOCKET_IFNAME": interfaces[node]}) for node in plan.nodes]


def test_nccl_does_without_rdma_that_only_the_large_node_has() -> None:
    plan = chosen(workers=5)
    ports = (RdmaPort("mlx5_0", 1, "InfiniBand"),)
    found = told_nccl(plan, one=Wires("one", ("eth0",)), four=Wires("four", ("ens5",), ports=ports))
    assert all(variables["NCCL_IB_DISABLE"] == "1" for _, variables in found)
