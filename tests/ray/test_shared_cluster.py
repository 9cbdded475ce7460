"""A Ray cluster in use by others, and one whose nodes differ: three nodes on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.checkup import Checkup, checkup, examine
from launcher.cluster import (
    Cluster,
    all_nodes,
    await_free,
    connect,
    disconnect,
    refresh,
    require_nodes,
)
from launcher.cluster_nodes import busy_text
from launcher.diagnosis import diagnose
from launcher.errors import ClusterError
from launcher.script_needs import PathNeed, ScriptNeeds
from launcher.trainer import scaling_config
from policies.schema import Plan, PlanOptions
from tests.fakes import soon

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

OBJECT_STORE_BYTES = 80 << 20


@pytest.fixture(scope="module")
def nodes(short_dir: Path) -> Iterator[Any]:
    """A head with 2 CPUs, a node with 1 that has another Keras, and one without CPUs."""
    old = short_dir / "old" / "keras-3.0.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 3.0.0\n")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", str(short_dir))
    from ray.cluster_utils import Cluster as Nodes

    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    patch.setenv("PYTHONPATH", str(old.parent))
    nodes.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
    patch.delenv("PYTHONPATH")
    nodes.add_node(num_cpus=0, object_store_memory=OBJECT_STORE_BYTES)
    yield nodes
    nodes.shutdown()
    patch.undo()


@pytest.fixture
def cluster(nodes: Any, tmp_path: Path) -> Iterator[Cluster]:
    joined = connect(
        nodes.address, None, price_usd_per_h=None, temp_dir=None, log_dir=tmp_path / "log"
    )
    yield joined
    disconnect(joined)


def hold(cpus: float) -> Any:
    """Someone's job with so many CPUs of one node."""
    import ray

    @ray.remote(num_cpus=cpus)
    class Holder:
        def node_id(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

    holder = Holder.remote()
    node_id = ray.get(holder.node_id.remote(), timeout=120)
    assert soon(lambda: held_cpus(node_id) == cpus, within_s=60.0)
    return holder


def held_cpus(node_id: str) -> float:
    """What is held of a node by Ray's books, which lag behind."""
    import ray
    from ray._private.state import available_resources_per_node

    (total,) = [raw["Resources"]["CPU"] for raw in ray.nodes() if raw["NodeID"] == node_id]
    return float(total - available_resources_per_node()[node_id].get("CPU", 0.0))


def test_a_node_of_which_a_part_is_held_is_busy_until_it_is_free_again(cluster: Cluster) -> None:
    import ray

    assert sorted(node.cpus for node in cluster.nodes) == [1, 2]
    holder = hold(2)
    used = refresh(cluster, settle_s=1)
    assert [node.cpus for node in used.nodes] == [1]
    assert busy_text(used.busy).endswith("is busy: another job holds 2 of 2 CPUs")
    ray.kill(holder)
    # The books lag, and what has just ended does not count.
    assert len(refresh(cluster, settle_s=60).nodes) == 2


def test_a_cluster_in_use_is_refused_or_waited_for(cluster: Cluster) -> None:
    import ray

    holders = [hold(2), hold(1)]
    said: list[str] = []

    def release(text: str) -> None:
        said.append(text)
        for holder in holders:
            ray.kill(holder)

    full = refresh(cluster, settle_s=0)
    assert full.nodes == ()
    with pytest.raises(ClusterError, match=r"Every node .* in use: .*Wait for them with --wait"):
        require_nodes(full)
    waited = await_free(full, 120.0, release)
    assert said[0].startswith("waiting: ")
    assert (len(waited.nodes), waited.busy) == (2, ())


def test_a_wait_that_is_over_goes_on_with_what_is_free(cluster: Cluster) -> None:
    import ray

    holder = hold(2)
    used = await_free(refresh(cluster, settle_s=0), 0.5, lambda _: None)
    assert [node.cpus for node in used.nodes] == [1]
    ray.kill(holder)


def test_what_differs_on_a_node_is_found_without_importing_tensorflow(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = PathNeed(str(tmp_path), "--data", "input")
    needs = ScriptNeeds(("numpy", "no_such_module"), (path,), Path("/nowhere"))
    found = examine(all_nodes(cluster), needs)
    assert len(found.facts_by_node) == 3
    assert {facts.missing_modules for facts in found.facts_by_node.values()} == {
        ("no_such_module",)
    }
    assert all(abs(contact.offset_s or 0.0) < 0.5 for contact in found.from_driver)
    problems = [p for p in diagnose(found, needs) if p.level == "fail" and not p.everywhere]
    (keras,) = problems
    assert keras.text.startswith("has Keras 3.0.0, the driver ")


def test_a_set_of_nodes_without_a_problem_is_remembered(cluster: Cluster, tmp_path: Path) -> None:
    cache = tmp_path / "checkups.json"
    result = checkup(cluster, ScriptNeeds(), cache=cache)
    (reason,) = result.reasons_by_node.values()
    assert "has Keras 3.0.0" in reason[0]
    assert not cache.exists()
    fit = result.fit_part(cluster)
    first = checkup(fit, ScriptNeeds(), cache=cache)
    if first.warnings:
        pytest.skip(f"this machine is short of room: {first.warnings}")
    assert first == Checkup(driver=result.driver)
    at = cache.stat().st_mtime_ns
    assert checkup(fit, ScriptNeeds(), cache=cache) == Checkup()
    assert cache.stat().st_mtime_ns == at


def test_ray_holds_each_workers_gpu_on_the_node_that_the_plan_says(
    nodes: Any, tmp_path: Path
) -> None:
    """The last one here, since the nodes that it adds stay."""
    from ray.util.placement_group import placement_group, placement_group_table

    for n in (1, 4):
        nodes.add_node(num_cpus=n, num_gpus=n, object_store_memory=OBJECT_STORE_BYTES)
    joined = connect(
        nodes.address, None, price_usd_per_h=None, temp_dir=None, log_dir=tmp_path / "log"
    )
    try:
        one, four = (node.id for n in (1, 4) for node in joined.nodes if node.gpus == n)
        plan = Plan(5, (four, four, one, four, four), "allreduce", PlanOptions(1.0, 1.0))
        asked = scaling_config(plan)
        bundles = [asked.resources_per_worker] * asked.num_workers
        group = placement_group(bundles, bundle_label_selector=asked.label_selector)
        assert group.wait(120)
        places = placement_group_table(group)["bundles_to_node_id"]
        assert tuple(places[i] for i in range(plan.n_workers)) == plan.nodes
    finally:
        disconnect(joined)
