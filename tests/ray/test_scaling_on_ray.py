"""A cluster that grows: Ray's autoscaler with its fake provider, all nodes on this machine."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

from launcher.autoscaler import Bundle, RayAutoscaler
from launcher.budget import Meter
from launcher.cluster import Cluster, connect, disconnect, refresh
from launcher.scaling import Scaling
from tests.fakes import FakeView
from tests.ports import free_ports

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

OBJECT_STORE_BYTES = 80 << 20
IDLE_S = 4.8
LIMIT_S = 90.0
PRICE = {"launch/price-usd-per-hour": "3.6"}
TYPES = {
    "ray.head.default": {"resources": {"CPU": 1}, "max_workers": 0, "node_config": {}},
    "small": {
        "resources": {"CPU": 2, "object_store_memory": OBJECT_STORE_BYTES},
        "max_workers": 2,
        "node_config": {},
        "labels": PRICE,
    },
    "spot": {  # of the same size: only its labels tell it apart
        "resources": {"CPU": 2, "object_store_memory": OBJECT_STORE_BYTES},
        "max_workers": 2,
        "node_config": {},
        "labels": {"launch/price-usd-per-hour": "1.8"},
    },
}


@pytest.fixture(scope="module")
def address(short_dir: Path) -> Iterator[str]:
    """A head of one CPU whose autoscaler may start three nodes more."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    process = start_head(short_dir, address)
    try:
        yield address
    finally:
        end(process)


def start_head(folder: Path, address: str) -> "subprocess.Popen[bytes]":
    config = {
        "cluster_name": "fake",
        "max_workers": 3,
        "idle_timeout_minutes": IDLE_S / 60,
        "head_node_type": "ray.head.default",
        "available_node_types": TYPES,
        **{f"{who}setup_commands": [] for who in ("", "head_", "worker_")},
        **{f"{who}start_ray_commands": [] for who in ("head_", "worker_")},
        "initialization_commands": [],
        "cluster_synced_files": [],
        "file_mounts": {},
        "provider": {
            "type": "external",  # as fake_multinode it lacks a file that Ray's wheel leaves out
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": address,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
    }
    file = folder / "cluster.json"
    file.write_text(json.dumps(config))
    ip, port = address.split(":")
    command = [
        Path(sys.executable).with_name("ray"),
        *("start", "--head", "--block", f"--node-ip-address={ip}", f"--port={port}"),
        *("--num-cpus=1", f"--object-store-memory={OBJECT_STORE_BYTES}", f"--temp-dir={folder}"),
        *("--include-dashboard=false", "--disable-usage-stats", f"--autoscaling-config={file}"),
    ]
    environment = {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "RAY_AUTH_MODE": "disabled",
    }
    log = folder / "ray-start.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=stream, stderr=stream
        )
    wait_until(lambda: "Ray runtime started" in log.read_text(), "the start of Ray")
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a head, and all nodes that its autoscaler has started."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(family, LIMIT_S)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    ends_at_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends_at_s, f"{what} did not happen within {LIMIT_S} s"
        time.sleep(0.5)


@pytest.fixture
def cluster(address: str, tmp_path: Path) -> Iterator[Cluster]:
    joined = connect(
        address,
        None,
        price_usd_per_h=None,
        temp_dir=None,
        log_dir=tmp_path / "log",
        may_start=True,
    )
    yield joined
    disconnect(joined)


@pytest.fixture
def scaling() -> Iterator[Scaling]:
    made = Scaling("brave-otter", Meter(time.monotonic), FakeView(), lambda: LIMIT_S)
    yield made
    made.settle()


def nodes_up(cluster: Cluster) -> int:
    return len(refresh(cluster, 0.0).nodes)


def test_nodes_that_do_not_exist_yet_are_known_by_the_heads_configuration(
    cluster: Cluster,
) -> None:
    found = {(n.node_type, n.cpus, n.price_usd_per_h, n.lingers_s) for n in cluster.to_start}
    assert found == {("small", 2.0, 3.6, IDLE_S), ("spot", 2.0, 1.8, IDLE_S)}
    assert (len(cluster.to_start), cluster.n_to_start) == (4, 3)
    assert [node.is_up for node in cluster.nodes] == [True]


def test_wanted_nodes_of_either_type_join_and_end_when_they_are_wanted_no_more(
    cluster: Cluster, scaling: Scaling
) -> None:
    wanted = [node for node in cluster.to_start if node.node_type == "spot"]
    small = next(node for node in cluster.to_start if node.node_type == "small")
    grown = scaling.grown(cluster, [*wanted, small])
    assert sorted(node.node_type or "" for node in grown.cluster.nodes) == [
        "",
        "small",
        "spot",
        "spot",
    ]
    assert {start.node_type for start in grown.starts} == {"small", "spot"}
    assert grown.cluster.n_to_start == 0
    scaling.settle()
    wait_until(lambda: nodes_up(cluster) == 1, "the end of nodes that nobody wants")


def test_a_request_holds_beside_those_of_others(cluster: Cluster, scaling: Scaling) -> None:
    """Ray Train sends its own request every 20 s, in place of all others."""
    others = RayAutoscaler("another-run", cluster.address)
    others.ask([Bundle(1.0)])
    grown = scaling.grown(cluster, cluster.to_start[:1])
    assert len(grown.cluster.nodes) == 2
    others.ask([])
    others.release()
    time.sleep(1.5 * IDLE_S)  # as long as it is asked for, it stays
    up = {node.id for node in refresh(cluster, 0.0).nodes}
    assert up.issuperset(node.id for node in grown.cluster.nodes)
    scaling.settle()
    wait_until(lambda: nodes_up(cluster) == 1, "the end of nodes that nobody wants")
