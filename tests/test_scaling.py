from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from launcher.autoscaler import Bundle, StandingRequest
from launcher.budget import Meter
from launcher.cluster import Cluster
from launcher.cluster_nodes import BusyNode
from launcher.errors import ClusterError
from launcher.node_types import Autoscaling, NodeType, nodes_to_start
from launcher.scaling import FAILED_S, PATIENCE_S, Scaling, bundles, candidates, wanted_nodes
from policies.schema import Node, NodeStart, Plan, PlanOptions
from tests.fakes import FakeClock, FakeView

SMALL = NodeType("small", 2.0, 0.0, 3, {"launch/price-usd-per-hour": "3.6"})
GPU = NodeType("gpu", 4.0, 1.0, 2)
AUTOSCALING = Autoscaling((SMALL, GPU), 4, idle_s=100.0)
USD_PER_S = 0.001  # of a small node


def up(name: str, node_type: str | None = "small", cpus: float = 2.0, **changes: object) -> Node:
    node = Node(name, "10.0.0.1", cpus, 0.0, None, 3.6, "label", "2 cpu", node_type=node_type)
    return replace(node, **changes)  # type: ignore[arg-type]


def a_cluster(*nodes: Node, **changes: object) -> Cluster:
    to_start = nodes_to_start(AUTOSCALING, nodes, None)
    made = Cluster("h:1", False, nodes, "joined", autoscaling=AUTOSCALING, to_start=to_start)
    return replace(made, **changes)  # type: ignore[arg-type]


class FakeAutoscaler:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Bundle, ...]] = []
        self.released = 0
        self.failed: dict[str, str] = {}

    def ask(self, bundles: tuple[Bundle, ...]) -> None:
        self.asked.append(bundles)

    def release(self) -> None:
        self.released += 1

    def failures(self) -> dict[str, str]:
        return self.failed


class World:
    """A cluster whose nodes join at set seconds, and all that a `Scaling` is made with."""

    def __init__(self, joining: dict[float, Node] | None = None, left_s: float = 1e9) -> None:
        self.clock, self.view, self.autoscaler = FakeClock(), FakeView(), FakeAutoscaler()
        self.meter = Meter(self.clock)
        self._joining = joining or {}
        self.scaling = Scaling(
            "brave-otter",
            self.meter,
            self.view,
            lambda: left_s - self.clock(),
            reach=lambda _: self.autoscaler,
            look=self._look,
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def _look(self, cluster: Cluster) -> Cluster:
        there = [node for at_s, node in self._joining.items() if at_s <= self.clock()]
        return replace(cluster, nodes=(*cluster.nodes, *there))


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*words: object, **options: object) -> World:
        made.append(World(*words, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for world in made:
        world.scaling.settle()


def small(cluster: Cluster, n: int) -> list[Node]:
    return [node for node in cluster.to_start if node.node_type == "small"][:n]


def test_wanted_nodes_are_asked_for_beside_all_that_is_there(make_world):
    busy = BusyNode(up("b", None, cpus=8.0), 1.0, 0.0)
    cluster = a_cluster(up("a"), busy=(busy,))
    plain, labelled = Bundle(8.0), Bundle(2.0, 0.0, SMALL.labels)
    assert bundles(cluster, small(cluster, 2)) == (labelled, plain, labelled, labelled)
    gpu = next(node for node in cluster.to_start if node.node_type == "gpu")
    assert bundles(a_cluster(), [gpu])[0].resources == {"CPU": 4.0, "GPU": 1.0}


def test_it_goes_on_once_all_have_joined(make_world):
    world = make_world({12.0: up("x"), 30.0: up("y")})
    cluster = a_cluster(up("a"))
    grown = world.scaling.grown(cluster, small(cluster, 2))
    assert [node.id for node in grown.cluster.nodes] == ["a", "x", "y"]
    assert grown.starts == (NodeStart("small", 30.0),)
    assert world.view.stages == [
        "starting nodes: asked for 2 × small",
        "starting nodes: 1 of 2 have joined (2 × small)",
        "starting nodes: 2 of 2 have joined (2 × small)",
    ]
    assert world.view.warnings == []
    assert len(world.autoscaler.asked) == 1


def test_they_stay_asked_for_until_the_run_itself_uses_them(make_world):
    world = make_world({1.0: up("x")})
    cluster = a_cluster(up("a"))
    world.scaling.grown(cluster, small(cluster, 1))
    assert world.autoscaler.released == 0
    world.scaling.settle()
    world.scaling.settle()
    assert world.autoscaler.released == 1


def test_what_does_not_come_is_named_with_its_bundle_and_the_run_goes_on(make_world):
    world = make_world({12.0: up("x")})
    cluster = a_cluster(up("a"))
    grown = world.scaling.grown(cluster, small(cluster, 2))
    assert world.clock() == pytest.approx(PATIENCE_S, abs=2)
    assert [node.id for node in grown.cluster.nodes] == ["a", "x"]
    assert grown.starts == ()
    (warning,) = world.view.warnings
    assert warning == (
        "1 of 2 nodes of the type small ({CPU: 2}) did not come: they did not join within 5 min. "
        "Going on with what is there."
    )


def test_a_type_that_cannot_be_started_is_not_waited_for_until_the_deadline(make_world):
    world = make_world()
    world.autoscaler.failed = {"small": "InsufficientInstanceCapacity", "gpu": "other"}
    cluster = a_cluster(up("a"))
    world.scaling.grown(cluster, small(cluster, 1))
    assert world.clock() == pytest.approx(FAILED_S, abs=2)
    assert "could not be started (InsufficientInstanceCapacity)" in world.view.warnings[0]


def test_a_failure_that_passes_is_waited_out(make_world):
    world = make_world({50.0: up("x")})
    cluster = a_cluster(up("a"))
    world.autoscaler.failures = lambda: {"small": "no"} if world.clock() < 20 else {}
    assert len(world.scaling.grown(cluster, small(cluster, 1)).cluster.nodes) == 2


def test_nobody_waits_beyond_budget_or_deadline(make_world):
    world = make_world(left_s=60.0)
    cluster = a_cluster(up("a"))
    world.scaling.grown(cluster, small(cluster, 1))
    assert world.clock() == pytest.approx(50.0, abs=2)
    assert "leave no more time" in world.view.warnings[0]


def test_nodes_cost_from_when_they_are_asked_for_and_until_they_end(make_world):
    world = make_world({100.0: up("x")})
    cluster = a_cluster(up("a"))
    world.meter.hold(cluster.nodes)  # profiled on it
    world.clock.now_s = 10.0
    world.scaling.grown(cluster, small(cluster, 2))
    came_usd = (world.clock() - 10.0) * USD_PER_S
    lingering_usd = 100.0 * USD_PER_S
    assert world.meter.session_usd == pytest.approx(10 * USD_PER_S + came_usd + lingering_usd)
    assert world.meter.usd_per_h == pytest.approx(3.6)  # x is held, what never came is not


def test_an_error_or_an_interrupt_releases_what_was_asked_for(make_world):
    world = make_world()
    cluster = a_cluster(up("a"))

    def interrupted() -> dict[str, str]:
        raise KeyboardInterrupt

    world.autoscaler.failures = interrupted
    with pytest.raises(KeyboardInterrupt):
        world.scaling.grown(cluster, small(cluster, 1))
    assert world.autoscaler.released == 1


def test_a_node_without_its_types_label_counts_by_its_size(make_world):
    world = make_world({1.0: up("x", None), 2.0: up("y", None, cpus=16.0)})
    cluster = a_cluster(up("a"))
    grown = world.scaling.grown(cluster, small(cluster, 1))
    assert grown.starts == (NodeStart("small", 1.0),)


def test_a_node_that_was_left_out_before_has_not_joined_now(make_world):
    world = make_world({0.0: up("unfit"), 5.0: up("x")})
    cluster = a_cluster(up("a"))
    grown = world.scaling.grown(cluster, small(cluster, 1))
    assert grown.starts == (NodeStart("small", 5.0),)


def test_an_empty_cluster_starts_its_cheapest_node_to_measure_on(make_world):
    world = make_world({5.0: up("x")})
    cluster = a_cluster()
    grown = world.scaling.first(cluster, is_dry_run=False)
    assert [node.id for node in grown.cluster.nodes] == ["x"]
    assert [bundle.cpus for bundle in world.autoscaler.asked[0]] == [4.0]  # $0 by the hour
    assert world.scaling.first(grown.cluster, is_dry_run=False).cluster == grown.cluster


def test_a_dry_run_starts_no_node(make_world):
    world = make_world()
    with pytest.raises(ClusterError, match="--dry-run starts none"):
        world.scaling.first(a_cluster(), is_dry_run=True)
    assert world.autoscaler.asked == []


def test_an_empty_cluster_to_which_no_node_comes_is_an_error(make_world):
    world = make_world()
    with pytest.raises(ClusterError, match="none of the type gpu came"):
        world.scaling.first(a_cluster(), is_dry_run=False)


def test_candidates_to_start_are_as_fast_as_what_was_checked_of_their_type():
    slow = up("a", kind="2 cpu, 0.5 allowed", allowed_cpus=0.5)
    found = candidates(a_cluster(slow, to_start=nodes_to_start(AUTOSCALING, [up("a")], None)))
    kinds = {(node.node_type, node.is_up): (node.kind, node.allowed_cpus) for node in found}
    assert kinds["small", False] == kinds["small", True] == (slow.kind, 0.5)
    assert kinds["gpu", False] == ("4 cpu + 1 gpu", None)


def test_a_plan_tells_which_nodes_it_needs_started():
    cluster = a_cluster(up("a"))
    plan = Plan(3, ("a", "small 3", "small 2"), "direct", PlanOptions(2.0))
    assert [node.id for node in wanted_nodes(plan, cluster)] == ["small 2", "small 3"]


def test_a_request_that_stands_ends_once(make_world):
    autoscaler = FakeAutoscaler()
    with StandingRequest(autoscaler, [Bundle(1.0)]) as request:
        request.end()
    assert (len(autoscaler.asked), autoscaler.released) == (1, 1)
