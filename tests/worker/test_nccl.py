"""NCCL's variables, from what the workers' nodes have."""

from launcher.worker.nccl import (
    RdmaPort,
    Wires,
    interface_bytes_per_s,
    nccl_environments,
    rdma_ports,
    said_variables,
)

IB = RdmaPort("mlx5_0", 1, "InfiniBand")


def roce(interface, device="mlx5_1"):
    return RdmaPort(device, 1, "Ethernet", (interface,))


def test_sockets_are_bound_to_the_interface_of_the_plans_network():
    found = nccl_environments([Wires("a", ("eth0",)), Wires("b", ("enp3s0",))])
    assert found == [{"NCCL_SOCKET_IFNAME": "=eth0"}, {"NCCL_SOCKET_IFNAME": "=enp3s0"}]


def test_networks_that_all_workers_share_are_rails():
    found = nccl_environments([Wires("a", ("eth0", "eth1", "eth2")), Wires("b", ("e0", "e1", ""))])
    assert found[0] == {"NCCL_SOCKET_IFNAME": "=eth0,eth1", "NCCL_CROSS_NIC": "0"}
    assert found[1] == {"NCCL_SOCKET_IFNAME": "=e0,e1", "NCCL_CROSS_NIC": "0"}


def test_infiniband_is_named_where_every_worker_has_it():
    second = RdmaPort("mlx5_3", 2, "InfiniBand")
    found = nccl_environments(
        [Wires("a", ("eth0",), ports=(IB, roce("eth9"))), Wires("b", ("eth0",), ports=(IB, second))]
    )
    assert [each["NCCL_IB_HCA"] for each in found] == ["=mlx5_0:1", "=mlx5_0:1,mlx5_3:2"]


def test_roce_is_named_on_the_networks_that_all_share_only():
    ports = (roce("eth0"), roce("storage0", "mlx5_7"))
    found = nccl_environments(
        [Wires("a", ("eth0",), ports=ports), Wires("b", ("eth0",), ports=ports)]
    )
    assert [each["NCCL_IB_HCA"] for each in found] == ["=mlx5_1:1"] * 2


def test_rdma_on_other_networks_is_left_to_nccl():
    ports = (roce("gpu0"),)
    found = nccl_environments(
        [Wires("a", ("eth0",), ports=ports), Wires("b", ("eth0",), ports=ports)]
    )
    assert found == [{"NCCL_SOCKET_IFNAME": "=eth0"}] * 2


def test_rdma_is_off_where_one_worker_has_none():
    found = nccl_environments([Wires("a", ("eth0",), ports=(IB,)), Wires("b", ("eth0",))])
    assert [each["NCCL_IB_DISABLE"] for each in found] == ["1", "1"]
    assert not any("NCCL_IB_HCA" in each for each in found)


def test_fast_sockets_get_more_threads_unless_rdma_does_the_work():
    fast = 12.5e9
    slow = nccl_environments([Wires("a", ("e",), fast), Wires("b", ("e",), fast / 4)])
    assert "NCCL_SOCKET_NTHREADS" not in slow[0]
    both = nccl_environments([Wires("a", ("e",), fast), Wires("b", ("e",), fast)])
    assert both[0]["NCCL_SOCKET_NTHREADS"] == both[0]["NCCL_NSOCKS_PERTHREAD"] == "4"
    rdma = nccl_environments([Wires(node, ("e",), fast, ports=(IB,)) for node in "ab"])
    assert "NCCL_SOCKET_NTHREADS" not in rdma[0]


def test_what_one_user_has_said_holds_on_all_nodes():
    said = frozenset({"NCCL_SOCKET_IFNAME"})
    workers = [Wires("a", ("eth0",), ports=(IB,)), Wires("b", ("eth0",), ports=(IB,), said=said)]
    assert nccl_environments(workers) == [{"NCCL_IB_HCA": "=mlx5_0:1"}] * 2


def test_workers_of_one_node_need_no_network():
    assert nccl_environments([Wires("a", ("eth0",)), Wires("a", ("eth0",))]) == [{}, {}]


def test_ports_that_are_up_are_read_from_the_kernel(tmp_path):
    def port(device, number, layer, state, ndevs=()):
        place = tmp_path / device / "ports" / number
        (place / "gid_attrs" / "ndevs").mkdir(parents=True)
        (place / "link_layer").write_text(f"{layer}\n")
        (place / "state").write_text(f"{state}\n")
        for i, name in enumerate(ndevs):
            (place / "gid_attrs" / "ndevs" / str(i)).write_text(f"{name}\n")

    port("mlx5_1", "1", "Ethernet", "4: ACTIVE", ["eth1", ""])
    port("mlx5_0", "1", "InfiniBand", "4: ACTIVE")
    port("mlx5_0", "2", "InfiniBand", "1: DOWN")
    port("rdmap0", "1", "Unspecified", "4: ACTIVE")
    (tmp_path / "mlx5_1" / "device" / "net" / "eth1").mkdir(parents=True)
    assert rdma_ports(tmp_path) == (IB, roce("eth1"))
    assert rdma_ports(tmp_path / "nowhere") == ()


def test_an_interface_tells_what_it_is_built_for(tmp_path):
    for name, text in (("eth0", "100000"), ("veth0", "-1"), ("wifi0", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(f"{text}\n")
    found = [interface_bytes_per_s(name, tmp_path) for name in ("eth0", "veth0", "wifi0", "gone")]
    assert found == [12.5e9, None, None, None]


def test_users_speak_through_variables_and_files(tmp_path):
    file = tmp_path / "nccl.conf"
    file.write_text("# NCCL_DEBUG is off\nNCCL_IB_HCA=mlx5\n\nNCCL_CROSS_NIC = 1\n")
    found = said_variables({"NCCL_ALGO": "Ring", "HOME": "/"}, [file, tmp_path / "none"])
    assert found == {"NCCL_ALGO", "NCCL_IB_HCA", "NCCL_CROSS_NIC"}
