"""A cluster that grows while `launch` decides: hosts of the lab join when they are asked for."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from tests.lab.lab import Lab
from tests.lab.on_demand_provider import HEAD
from tests.lab.ray_node import RayNode, join_cluster
from tests.lab.requirement import missing

pytestmark = pytest.mark.lab

LIMIT_S = 240.0
WANTED = "/tmp/wanted"
CONFIG = "/tmp/cluster.yaml"
LABEL = "launch/price-usd-per-hour"
IDLE_S = 6.0

SCRIPT = """
    import keras
    import numpy as np

    x = np.random.default_rng(3).normal(size=(400, 6)).astype("float32")
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1], batch_size=40, epochs=2, verbose=0)
"""


class HostsOnDemand:
    """Starts Ray on the hosts that the head's autoscaler wants, until closed."""

    def __init__(self, lab: Lab, labels: dict[str, str]) -> None:
        self._lab, self._labels = lab, labels
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def wanted(self) -> set[str]:
        """The hosts that the autoscaler wants now."""
        return {path.name for path in self._lab.outside(HEAD, WANTED).iterdir()}

    def _serve(self) -> None:
        started: set[str] = set()
        while not self._ended.wait(0.2):
            for name in sorted(self.wanted - started):
                started.add(name)
                about = {"RAY_CLOUD_INSTANCE_ID": name, "RAY_NODE_TYPE_NAME": "spot"}
                node = RayNode(self._lab.host(name), 1, self._labels)
                join_cluster(node, self._lab.ray_address, {**self._lab.environment, **about})


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A head on h1; h2 and h3 may be started, a third node of their type could not."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Lab(3) as lab:
        lab.outside(HEAD, WANTED).mkdir()
        lab.outside(HEAD, CONFIG).write_text(yaml.safe_dump(config()))
        root = str(Path(__file__).parents[2])
        lab.start_ray(
            [HEAD],
            head_words=[f"--autoscaling-config={CONFIG}"],
            env={
                "PYTHONPATH": root,
                "AUTOSCALER_UPDATE_INTERVAL_S": "1",
                "RAY_enable_autoscaler_v2": "1",
                "RAY_CLOUD_INSTANCE_ID": HEAD,
            },
        )
        work = lab.home(HEAD) / "work"
        work.mkdir()
        (work / "train.py").write_text(dedent(SCRIPT))
        yield lab


def config() -> dict[str, Any]:
    return {
        "cluster_name": "lab",
        "max_workers": 3,
        "idle_timeout_minutes": IDLE_S / 60,
        "head_node_type": "head",
        **{f"{who}setup_commands": [] for who in ("", "head_", "worker_")},
        **{f"{who}start_ray_commands": [] for who in ("head_", "worker_")},
        "initialization_commands": [],
        "cluster_synced_files": [],
        "file_mounts": {},
        "provider": {
            "type": "external",
            "module": "tests.lab.on_demand_provider.OnDemandProvider",
            "folder": WANTED,
            "hosts": ["h2", "h3"],
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            "head": {"resources": {"CPU": 1}, "max_workers": 0, "node_config": {}},
            "spot": {
                "resources": {"CPU": 1},
                "max_workers": 3,
                "node_config": {},
                "labels": {LABEL: "0.36"},
            },
        },
    }


@pytest.fixture
def on_demand(lab: Lab) -> Iterator[HostsOnDemand]:
    hosts = HostsOnDemand(lab, {LABEL: "0.36"})
    yield hosts
    hosts.close()


def launch(lab: Lab, *words: str) -> Any:
    done = lab.run(HEAD, ["launch", *words, "train.py"], cwd="/tmp/home/work", timeout_s=LIMIT_S)
    print(f"launch {' '.join(words)} → {done.returncode}\n{done.stdout}\n{done.stderr}")
    assert done.returncode == 0
    return done


def wait_until(condition: Callable[[], bool], what: str, limit_s: float) -> None:
    ends_at_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_at_s, f"{what} did not happen within {limit_s} s"
        time.sleep(0.5)


def test_a_dry_run_shows_nodes_that_are_not_started_yet_and_starts_none(lab: Lab) -> None:
    done = launch(lab, "--dry-run", "--workers", "2")
    assert "up to 3 × spot not started yet ($0.36/h, label)" in done.stdout
    assert "spot, not started yet" in done.stdout
    assert list(lab.outside(HEAD, WANTED).iterdir()) == []


def test_nodes_that_a_plan_needs_are_started_measured_used_and_given_back(
    lab: Lab, on_demand: HostsOnDemand
) -> None:
    record = json.loads(launch(lab, "--workers", "3", "--yes", "--json").stdout)
    first, second = (entry["chosen"]["nodes"] for entry in record["decisions"])
    assert sorted(first)[1:] == ["spot 1", "spot 2"]
    (segment,) = record["segments"]
    assert segment["plan"]["nodes"] == second
    ip_by_node = {node["id"]: node["ip"] for node in record["cluster"]["nodes"]}
    assert {ip_by_node[node] for node in second} == {f"10.99.0.{i}" for i in (1, 2, 3)}
    assert len(record["network"]["links"]) == 9
    (start,) = record["node_starts"]
    assert start["node_type"] == "spot"
    assert 0 < start["took_s"] < LIMIT_S
    # They are paid for from when they were asked for, and while they lived on unused.
    assert record["outcome"]["cost_usd"] > 2 * 0.36 / 3600 * (start["took_s"] + IDLE_S)
    wait_until(lambda: on_demand.wanted == set(), "the end of the nodes", 120)


def test_what_does_not_come_is_named_and_training_goes_on_with_what_is_there(
    lab: Lab, on_demand: HostsOnDemand
) -> None:
    """Three are asked for, of which the provider has two."""
    done = launch(lab, "--workers", "4", "--yes", "--json")
    record = json.loads(done.stdout)
    assert record["status"] == "done"
    assert "1 of 3 nodes of the type spot ({CPU: 1}) did not come" in done.stderr
    assert "4 workers cannot be had: going on with fewer" in done.stderr
    addresses = {node["ip"] for node in record["cluster"]["nodes"]}
    assert addresses == {f"10.99.0.{i}" for i in (1, 2, 3)}
    counts = [each["n_workers"] for each in record["decisions"][-1]["candidates"]]
    assert counts == [1, 2, 3]
