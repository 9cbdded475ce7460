import json
import os
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.worker.backend import LaunchBackend, LaunchBackendConfig, ranks_in_plan_order
from launcher.worker.interfaces import Address
from launcher.worker.nccl import Wires

plans = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8)


@given(plans.flatmap(lambda plan: st.tuples(st.just(plan), st.permutations(plan))))
def test_every_rank_sits_on_its_planned_node(case: tuple[list[str], list[str]]) -> None:
    planned, found = case
    ranks = ranks_in_plan_order(found, planned)
    assert [node for _, node in sorted(zip(ranks, found, strict=True))] == planned


@given(plans, st.lists(st.sampled_from("abcdxyz"), max_size=8))
def test_ranks_are_a_permutation_whatever_was_planned(found: list[str], planned: list[str]) -> None:
    assert sorted(ranks_in_plan_order(found, planned)) == list(range(len(found)))


@given(plans)
def test_workers_that_are_in_order_keep_it(plan: list[str]) -> None:
    in_order = sorted(plan)
    assert ranks_in_plan_order(in_order, in_order) == list(range(len(plan)))


def test_workers_on_nodes_that_were_not_planned_get_the_ranks_left() -> None:
    assert ranks_in_plan_order(["x", "b", "a"], ["a", "b", "c"]) == [2, 1, 0]


def test_the_configuration_names_the_back_end() -> None:
    assert LaunchBackendConfig(("a",)).backend_cls is LaunchBackend


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("LAUNCH_RANK", "LAUNCH_WORLD_SIZE", "LAUNCH_ADDRESSES", "TF_CONFIG"):
        monkeypatch.setenv(name, "of before")
    return monkeypatch


def test_a_worker_of_several_learns_the_addresses_in_order_of_rank(
    environment: pytest.MonkeyPatch,
) -> None:
    from launcher.worker.backend import _set_tf_config

    _set_tf_config([("10.0.0.4:1",), ("10.0.0.5:2",)], 1)
    assert (os.environ["LAUNCH_RANK"], os.environ["LAUNCH_WORLD_SIZE"]) == ("1", "2")
    assert json.loads(os.environ["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.4:1", "10.0.0.5:2"]},
        "task": {"type": "worker", "index": 1},
    }


def test_of_more_than_ten_workers_the_ring_still_runs_in_order_of_rank(
    environment: pytest.MonkeyPatch,
) -> None:
    from launcher.worker.backend import _set_tf_config

    address_by_name: dict[str, str] = {}
    for rank in range(23):
        _set_tf_config([(f"10.0.0.{i}:1",) for i in range(23)], rank)
        config = json.loads(os.environ["TF_CONFIG"])
        index = config["task"]["index"]
        address_by_name[f"task:{index}"] = config["cluster"]["worker"][index]
    # TensorFlow connects the tasks in the order of their names.
    ring = [address_by_name[name] for name in sorted(address_by_name)]
    assert ring == [f"10.0.0.{i}:1" for i in range(23)]


def test_a_worker_alone_has_no_tf_config(environment: pytest.MonkeyPatch) -> None:
    from launcher.worker.backend import _set_tf_config

    _set_tf_config([("10.0.0.4:1",)], 0)
    assert os.environ["LAUNCH_WORLD_SIZE"] == "1"
    assert "TF_CONFIG" not in os.environ


def test_a_worker_listens_on_the_address_that_the_plan_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from launcher.worker import backend

    class Context:
        def get_node_id(self) -> str:
            return "a"

    monkeypatch.setattr(backend.ray, "get_runtime_context", Context)
    monkeypatch.setattr(backend.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(backend, "hold_port", lambda ip: f"{ip}:4567")
    chosen = backend._place({"a": ("127.0.0.2", "", "127.0.0.3")}).addresses
    assert [address.rpartition(":")[0] for address in chosen] == ["127.0.0.2", "", "127.0.0.3"]
    (usual,) = backend._place({"b": ("127.0.0.2",)}).addresses
    assert usual.startswith("127.0.0.1:")


def test_the_own_exchange_learns_all_addresses(environment: pytest.MonkeyPatch) -> None:
    from launcher.worker.backend import _set_addresses

    _set_addresses([("10.0.0.4:1", "10.9.0.4:2"), ("10.0.0.5:2", "")], 1)
    assert json.loads(os.environ["LAUNCH_ADDRESSES"]) == [
        ["10.0.0.4:1", "10.9.0.4:2"],
        ["10.0.0.5:2", ""],
    ]
    assert "TF_CONFIG" not in os.environ


def test_workers_learn_nccls_variables_from_what_all_of_them_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from launcher.worker import backend

    class Group:
        wires = (Wires("a", ("eth0",)), Wires("b", ("eth1",)))
        given: ClassVar[dict[int, dict[str, str]]] = {}

        def execute(self, task: object, ips: object) -> tuple[Wires, ...]:
            return self.wires

        def execute_single_async(self, index: int, task: object, given: dict[str, str]) -> None:
            self.given[index] = given

    monkeypatch.setattr(backend.ray, "get", list)
    backend._set_up_nccl(Group(), {})
    assert Group.given == {
        0: {"NCCL_SOCKET_IFNAME": "=eth0"},
        1: {"NCCL_SOCKET_IFNAME": "=eth1"},
    }


def test_what_was_set_for_nccl_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.worker import backend

    monkeypatch.setattr(os, "environ", {})
    backend._set_nccl({"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_CROSS_NIC": "0"})
    assert os.environ["NCCL_CROSS_NIC"] == "0"
    assert os.environ["LAUNCH_NCCL"] == "NCCL_SOCKET_IFNAME==eth0 NCCL_CROSS_NIC=0"


def test_a_worker_names_the_interface_of_each_of_its_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from launcher.worker import backend

    monkeypatch.setattr(backend, "_here", lambda ips: ("a", ("10.0.0.1", "", "10.9.0.1")))
    known = (Address("10.0.0.1", "10.0.0.0/24", "eth0"),)
    monkeypatch.setattr(backend, "addresses", lambda: known)
    assert backend._wires({}).interfaces == ("eth0", "", "")
