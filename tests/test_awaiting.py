from pathlib import Path
from typing import Any

import pytest

from launcher import awaiting
from launcher.awaiting import await_node
from launcher.cluster import Cluster
from launcher.errors import BudgetTooSmallError, ClusterError
from launcher.prepare import Measured
from launcher.stretch import Stretch
from launcher.supervise import Allowance
from launcher.surroundings import Surroundings
from policies.schema import Node
from tests.fake_posts import a_stretch
from tests.fakes import FakeScreen, a_node, a_request
from tests.policies.cases import network, workload

A, B = a_node(0), a_node(1)
MEASURED = Measured(network("ab"), workload(), profile_remembered=True)


class FakeRoster:
    """Nodes that come one look after another."""

    def __init__(self, *looks: tuple[Node, ...]) -> None:
        self._looks = list(looks)

    def free(self) -> tuple[Node, ...]:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    def leaving(self) -> dict[str, float | None]:
        return {}


class FakeGrowing:
    def __init__(self, unfit: tuple[str, ...] = ()) -> None:
        self._unfit = set(unfit)

    def measured(self, cluster: Cluster) -> tuple[Cluster, Measured]:
        if {node.id for node in cluster.nodes} <= self._unfit:
            raise ClusterError("The only node is not fit to train.")
        return cluster, MEASURED


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaiting, "POLL_S", 0.001)


@pytest.fixture
def stretch(tmp_path: Path) -> Stretch:
    return a_stretch(a_request(str(tmp_path)), FakeScreen(), tmp_path)


def wait(stretch: Stretch, roster: FakeRoster, growing: Any = None) -> list[str]:
    around = Surroundings(Cluster("10.0.0.4:6379", False, (A,), "joined"), MEASURED)
    around.lost.add(A.id)
    found, _ = await_node(stretch, growing or FakeGrowing(), roster, around)
    return [node.id for node in found.nodes]


def test_the_first_node_that_comes_is_taken_and_waiting_costs_nothing(stretch: Stretch) -> None:
    stretch.meter.hold([A])
    assert wait(stretch, FakeRoster((), (), (B,))) == [B.id]
    assert stretch.meter.usd_per_h == 0.0


def test_a_node_that_was_lost_just_now_does_not_count(stretch: Stretch) -> None:
    assert wait(stretch, FakeRoster((A,), (A,), (A, B))) == [B.id]


def test_a_node_that_is_not_fit_is_told_and_waited_on(stretch: Stretch) -> None:
    class Mending(FakeGrowing):
        def measured(self, cluster: Cluster) -> tuple[Cluster, Measured]:
            try:
                return super().measured(cluster)
            finally:
                self._unfit.clear()

    assert wait(stretch, FakeRoster((B,)), Mending((B.id,))) == [B.id]
    assert stretch.book.record.events[-1].detail == "The only node is not fit to train."


def test_without_a_node_for_too_long_the_run_can_be_gone_on_with_later(
    stretch: Stretch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaiting, "AWAIT_S", 0.05)
    with pytest.raises(ClusterError, match=r"No node is left.*launch resume brave-otter"):
        wait(stretch, FakeRoster(()))


def test_the_deadline_goes_on_while_a_node_is_waited_for(stretch: Stretch) -> None:
    at_s = stretch.meter.clock() + 0.05
    object.__setattr__(stretch, "allowance", Allowance(None, at_s))
    with pytest.raises(BudgetTooSmallError, match="none came before the deadline"):
        wait(stretch, FakeRoster(()))
