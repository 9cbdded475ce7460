"""Clusters and the probe on real Ray: three nodes on this machine, and an embedded one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.cluster import Cluster, connect, disconnect
from launcher.errors import ClusterError
from launcher.probe import probe
from policies.schema import Network
from tests.fakes import soon

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

OBJECT_STORE_BYTES = 80 << 20


@pytest.fixture(scope="module")
def three_nodes(short_dir: Path) -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", str(short_dir))
    from ray.cluster_utils import Cluster as Nodes

    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    priced = {"launch/price-usd-per-hour": "0.25", "launch/instance-type": "c5.large"}
    nodes.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, labels=priced)
    nodes.add_node(num_cpus=3, object_store_memory=OBJECT_STORE_BYTES)
    nodes.add_node(num_cpus=0, object_store_memory=OBJECT_STORE_BYTES)
    yield nodes
    nodes.shutdown()
    patch.undo()


@pytest.fixture
def user_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules have the names of ours, being the working and the script folder."""
    for name in ("launcher", "policies"):
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "__init__.py").write_text("raise SystemError('not ours')")
    (tmp_path / "work" / "ray.py").write_text("raise SystemError('not ours')")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "work" / "train.py")])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "work"), *sys.path])
    return tmp_path / "work"


@pytest.fixture
def cluster(three_nodes: Any, user_dir: Path, tmp_path: Path) -> Iterator[Cluster]:
    joined = connect(
        three_nodes.address, None, price_usd_per_h=None, temp_dir=None, log_dir=tmp_path / "log"
    )
    yield joined
    disconnect(joined)


def test_nodes_come_with_cpus_kind_and_price(cluster: Cluster, three_nodes: Any) -> None:
    assert not cluster.embedded
    assert cluster.how == f"joined --address {three_nodes.address}"
    found = {
        (n.cpus, n.kind, n.instance_type, n.price_usd_per_h, n.price_source) for n in cluster.nodes
    }
    assert found == {
        (2.0, "2 cpu", None, 0.0, "own machine"),
        (1.0, "c5.large", "c5.large", 0.25, "label"),
        (3.0, "3 cpu", None, 0.0, "own machine"),
    }


def test_workers_get_our_launcher_and_no_folder_of_the_user(
    cluster: Cluster, user_dir: Path
) -> None:
    import ray

    @ray.remote
    def look() -> tuple[str, list[str], str | None]:
        import launcher.worker

        return str(launcher.worker.__file__), sys.path, os.environ.get("PYTHONDONTWRITEBYTECODE")

    module, path, no_bytecode = ray.get(look.remote(), timeout=60)
    assert "py_modules_files" in module
    assert not [p for p in path if Path(p) == user_dir]
    assert not no_bytecode


def test_every_pair_is_measured_both_ways(cluster: Cluster, tmp_path: Path) -> None:
    network, said = undisturbed(cluster, tmp_path / "net.json")
    ids = [n.id for n in cluster.nodes]
    assert [(k.src, k.dst) for k in network.links] == list(product(ids, ids))
    assert network.silent == ()
    for link in network.links:
        assert link.basis == "measured"
        assert 0 < (link.rtt_s or 0) < 0.1
        assert link.loss == 0.0
        assert (link.bandwidth_bytes_per_s or 0) > 1e7
    assert said[-1] == "bandwidth of 9 of 9 directions"
    assert 0 < network.sent_bytes <= 1.1 * network.max_bytes
    assert probe(cluster, cache=tmp_path / "net.json") == network


def undisturbed(cluster: Cluster, cache: Path) -> tuple[Network, list[str]]:
    """A probe, and what it said: again where a stall of this machine cost an echo or a rate."""
    for _ in range(4):
        cache.unlink(missing_ok=True)
        said: list[str] = []
        network = probe(cluster, progress=said.append, cache=cache)
        lossless = not any(link.loss for link in network.links)
        if lossless and all(link.bandwidth_bytes_per_s for link in network.links):
            break
    return network, said


def test_few_bytes_still_give_an_answer(cluster: Cluster) -> None:
    network = probe(cluster, max_bytes=9 * (64 << 10))
    assert all(link.rtt_s for link in network.links)


def test_an_agent_that_freezes_is_silent_and_costs_its_wait_once(cluster: Cluster) -> None:
    frozen_at_s: list[float] = []

    def freeze_one(said: str) -> None:
        if said.startswith("bandwidth of 1 of 9") and not frozen_at_s:
            newest_agent().suspend()
            frozen_at_s.append(time.monotonic())

    network = probe(cluster, progress=freeze_one, deadline_s=60)
    assert frozen_at_s
    assert time.monotonic() - frozen_at_s[0] < 20  # once for each of its links would be 22 s
    assert len(network.silent) == 1
    for link in network.links:
        silent = network.silent[0] in (link.src, link.dst)
        assert (link.rtt_s is None) == silent
        assert (link.bandwidth_bytes_per_s is None) == silent


def newest_agent() -> psutil.Process:
    """Of this probe; those of the one before may still be ending."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "NodeAgent" in " ".join(process.cmdline()):
                found.append((process.create_time(), process.pid, process))
    return max(found)[-1]


def test_a_node_that_starts_no_agent_is_silent(cluster: Cluster, three_nodes: Any) -> None:
    raylet = next(
        info.process
        for node in three_nodes.worker_nodes
        if node.node_id in {n.id for n in cluster.nodes}
        for info in node.all_processes["raylet"]
    )
    raylet.send_signal(signal.SIGSTOP)
    try:
        network = probe(cluster, deadline_s=30)
    finally:
        raylet.send_signal(signal.SIGCONT)
    assert len(network.silent) == 1
    assert network.took_s < 30  # as long as agents may take to start, where all are slow
    heard = [k for k in network.links if not {k.src, k.dst} & set(network.silent)]
    assert len(heard) == 4
    assert all(link.rtt_s for link in heard)


def test_a_bad_price_label_names_node_and_value(
    three_nodes: Any, user_dir: Path, tmp_path: Path
) -> None:
    labels = {"launch/price-usd-per-hour": "cheap"}
    node = three_nodes.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, labels=labels)
    try:
        with pytest.raises(ClusterError, match='launch/price-usd-per-hour="cheap"'):
            connect(
                three_nodes.address, None, price_usd_per_h=None, temp_dir=None, log_dir=tmp_path
            )
    finally:
        three_nodes.remove_node(node)


EMBEDDED = """
import json, os, signal, sys, time
from pathlib import Path

def mine(signum, frame): ...
signal.signal(signal.SIGTERM, mine)
from launcher.cluster import connect, disconnect
from launcher.probe import probe

os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
os.chdir(sys.argv[2])
started = time.monotonic()
cluster = connect("local", None, price_usd_per_h=None, temp_dir=Path(sys.argv[1]),
                  log_dir=Path(sys.argv[1]) / "log")
connected = time.monotonic()
network = probe(cluster)
probed = time.monotonic()
import ray

@ray.remote
def look():
    import launcher.worker
    return launcher.worker.__file__, sys.path, os.environ.get("PYTHONDONTWRITEBYTECODE")

os.killpg(0, signal.SIGTERM)  # as `timeout 1h launch` does
module, path, no_bytecode = ray.get(look.remote())
answer = dict(how=cluster.how, sources=[n.price_source for n in cluster.nodes],
    links=len(network.links), rtt_s=network.links[0].rtt_s, module=module, path=path,
    no_bytecode=no_bytecode, kept=signal.getsignal(signal.SIGTERM) is mine, cwd=os.getcwd(),
    connect_s=connected - started, probe_s=probed - connected,
    still=os.environ["PYTHONDONTWRITEBYTECODE"])
disconnect(cluster)
print(json.dumps(answer))
"""


def test_an_embedded_ray_is_quick_silent_and_keeps_the_process_as_it_was(
    short_dir: Path, user_dir: Path, tmp_path: Path
) -> None:
    script = tmp_path / "embedded.py"
    script.write_text(textwrap.dedent(EMBEDDED))
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:9"}
    folder = short_dir / "e"
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(user_dir)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert answer["how"] == "started an embedded Ray"
    assert answer["sources"] == ["own machine"]
    assert answer["links"] == 1
    assert answer["rtt_s"] > 0
    assert answer["module"].endswith("launcher/worker/__init__.py")
    assert str(user_dir) not in answer["path"]
    assert str(tmp_path) not in answer["path"]
    assert answer["no_bytecode"] is None
    assert answer["still"] == "1"
    assert answer["kept"]
    assert answer["cwd"] == str(user_dir)
    assert answer["connect_s"] < 40  # ten times what it takes, for machines that stall
    assert answer["probe_s"] < 20
    assert soon(
        lambda: (
            not any(str(folder) in str(p.info["cmdline"]) for p in psutil.process_iter(["cmdline"]))
        ),
        within_s=60.0,
    )
