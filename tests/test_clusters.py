"""Clusters as their commands handle them: noted, looked at, paid for, ended by a rule."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.auto_down import STARTED, Rule
from launcher.cluster_bill import make_bill
from launcher.cluster_book import Entry
from launcher.cluster_file import ClusterFile, read_cluster_file
from launcher.clusters import Desk, down, status, up
from launcher.errors import ClusterError, StorageError, UsageError
from launcher.head import MARK, KnownNode, Look, UpNode, parse_look
from launcher.machines import Ended
from launcher.pricing import Price
from launcher.rented import MARK as RENTED
from launcher.rented import RentedNode, list_rented, rented_since

HOUR_S = 3600.0
LABELS = {"launch/price-usd-per-hour": "0.5", "ray.io/node-group": "cpu"}
CLOUD = """
cluster_name: mine
provider: {type: aws, region: us-east-1}
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 0}
    labels: {launch/price-usd-per-hour: "0.1"}
    node_config: {InstanceType: m5.large, ImageId: "resolve:ssm:/a/b"}
  cpu:
    min_workers: 1
    resources: {CPU: 8}
    labels: {launch/price-usd-per-hour: "0.5"}
    node_config: {InstanceType: c5.2xlarge, ImageId: "resolve:ssm:/a/b"}
"""
OWN = "provider: {type: local, head_ip: a, worker_ips: [b]}\n"


@dataclass
class FakeMachines:
    """A cluster whose provider and head answer as told; `look` is None for a head that is dead."""

    rented: list[RentedNode] = field(default_factory=list)
    look: dict[str, Any] | None = None
    can_start: bool = True
    running: tuple[str, ...] = ()
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def here(self, module: str, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
        self.calls.append(tuple(words))
        if module == "launcher.rented":
            from dataclasses import asdict

            return Ended(0, (RENTED + json.dumps([asdict(node) for node in self.rented]),))
        if words[0] == "down":
            self.rented = []
        if words[0] != "exec":
            return Ended(0, ())
        if "auto_down" in words[-1] and "launch-look" not in words[-1]:
            return Ended(0, (STARTED if self.can_start else "No module named launcher",))
        if "launch-look" in words[-1] and '"lacking"' not in words[-1]:
            found = () if self.look is None else (MARK + json.dumps(self.look),)
            return Ended(0, ("Head node of cluster (mine) not found!", *found))
        nodes = [[node.address, {"CPU": 8.0}, LABELS] for node in self.rented]
        return Ended(0, (MARK + json.dumps({"nodes": nodes, "lacking": []}),))

    def on(self, address: str, command: str, timeout_s: float) -> Ended:
        return Ended(int(address in self.running), ())

    def copy(self, address: str, source: str, place: str, timeout_s: float) -> Ended:
        raise AssertionError("nothing is to be copied")


@dataclass
class FakeParameters:
    kind: str = "ami"

    def get_parameter(self, *, Name: str) -> dict[str, Any]:  # noqa: N803
        return {"Parameter": {"Value": f"{self.kind}-of-{Name}"}}


def rented(name: str, node_type: str = "cpu", since: float | None = 0.0) -> RentedNode:
    return RentedNode(name, f"ip-{name}", node_type, node_type == "head", since)


def raw_node(name: str, begun_at: float, ended_at: float | None = None) -> dict[str, Any]:
    return {
        "address": f"ip-{name}",
        "resources": {"CPU": 8.0},
        "labels": LABELS,
        "begun_at": begun_at,
        "ended_at": ended_at,
    }


def known(name: str, begun_at: float, ended_at: float | None = None) -> KnownNode:
    node = UpNode(f"ip-{name}", 8.0, 0.0, Price(0.5, "label"))
    return KnownNode(node, "cpu", begun_at, ended_at)


@pytest.fixture
def file(tmp_path: Path) -> ClusterFile:
    path = tmp_path / "mine.yaml"
    path.write_text(CLOUD)
    return read_cluster_file(path)


@pytest.fixture
def own(tmp_path: Path) -> ClusterFile:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    return read_cluster_file(path)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def desk(tmp_path: Path, said: list[str]) -> Desk:
    return Desk(tmp_path / "clusters", said.append, lambda: HOUR_S, lambda _: FakeParameters())


def test_a_machine_is_paid_for_from_when_it_was_rented(file: ClusterFile) -> None:
    bill = make_bill(
        file,
        [rented("h", "head"), rented("w", since=HOUR_S)],
        Look(2 * HOUR_S, (known("w", 1.5 * HOUR_S),)),
        begun_at=0.0,
        now=2 * HOUR_S,
    )
    assert [(n.name, n.state, n.paid_s) for n in bill.nodes] == [
        ("ip-w", "joined", HOUR_S),
        ("ip-h", "not joined", 2 * HOUR_S),
    ]
    assert bill.usd_per_h == pytest.approx(0.6)
    assert bill.cost_usd == pytest.approx(0.5 + 0.2)


def test_a_provider_that_tells_no_time_rented_all_machines_as_early_as_the_head(
    file: ClusterFile,
) -> None:
    look = Look(1000.0, (known("h", 300.0), known("w", 600.0), known("gone", 400.0, 500.0)))
    nodes = [rented("h", "head", None), rented("w", since=None)]
    bill = make_bill(file, nodes, look, begun_at=100.0, now=1000.0)
    assert [(n.name, n.paid_s) for n in bill.nodes] == [
        ("ip-h", 900.0),  # from 100
        ("ip-w", 600.0),  # from 600 less the 200 that the head took
        ("ip-gone", 300.0),
    ]
    assert len(bill.up) == 2


def test_the_clock_of_the_head_may_differ(file: ClusterFile) -> None:
    look = Look(5000.0 + 1000.0, (known("w", 5000.0 + 600.0),))
    bill = make_bill(file, [rented("w", since=None)], look, begun_at=600.0, now=1000.0)
    assert [n.paid_s for n in bill.nodes] == [400.0]


def test_a_machine_whose_ray_has_died_is_counted_once(file: ClusterFile) -> None:
    look = Look(1000.0, (known("w", 500.0, 700.0),))
    bill = make_bill(file, [rented("w", since=100.0)], look, begun_at=0.0, now=1000.0)
    assert [(n.state, n.paid_s) for n in bill.nodes] == [("not joined", 900.0)]


def test_own_machines_are_paid_for_while_they_are_nodes(own: ClusterFile) -> None:
    look = Look(1000.0, (known("a", 400.0), known("b", 500.0, 600.0)))
    bill = make_bill(own, (), look, begun_at=0.0, now=1000.0)
    assert [(n.state, n.paid_s) for n in bill.nodes] == [("joined", 600.0), ("gone", 100.0)]


def test_a_cluster_that_comes_up_is_noted_and_gets_images_for_names(
    file: ClusterFile, desk: Desk
) -> None:
    machines = FakeMachines([rented("h", "head"), rented("w")])
    assert len(up(file, machines, desk)) == 2
    (entry,) = desk.book.open_entries()
    assert (entry.name, entry.usd_per_h, entry.begun_at) == ("mine", 0.6, HOUR_S)
    resolved = Path(machines.calls[0][-1])
    assert resolved == desk.folder / "mine.yaml"
    assert resolved.read_text().count("ImageId: ami-of-/a/b") == 2


def test_a_cluster_that_is_up_keeps_its_images(
    file: ClusterFile, desk: Desk, tmp_path: Path
) -> None:
    machines = FakeMachines([rented("h", "head"), rented("w")])
    up(file, machines, desk)
    newer = replace(desk, parameters=lambda _: FakeParameters("newer"))
    up(file, machines, newer)
    assert "newer" not in (desk.folder / "mine.yaml").read_text()
    down(file, machines, desk)
    machines.rented = [rented("h", "head"), rented("w")]
    up(file, machines, newer)
    assert (desk.folder / "mine.yaml").read_text().count("newer-of-/a/b") == 2


def test_a_cluster_that_is_in_use_is_not_brought_up_again(file: ClusterFile, desk: Desk) -> None:
    machines = FakeMachines([rented("h", "head"), rented("w")])
    up(file, machines, desk)
    machines.look = {"now": HOUR_S, "n_drivers": 1}
    with pytest.raises(ClusterError, match=r"is up and in use: to bring it up again would end"):
        up(file, machines, desk)
    assert [call[0] for call in machines.calls].count("up") == 1


def test_a_cluster_that_fails_to_come_up_is_noted_as_well(file: ClusterFile, desk: Desk) -> None:
    with pytest.raises(ClusterError, match="1 of 2 nodes have joined"):
        up(file, FakeMachines([rented("h", "head")]), desk)
    assert [entry.name for entry in desk.book.open_entries()] == ["mine"]


def test_the_head_is_given_the_rule_by_which_it_takes_the_cluster_down(
    file: ClusterFile, desk: Desk, said: list[str]
) -> None:
    machines = FakeMachines([rented("h", "head"), rented("w")])
    up(file, machines, desk, Rule(600.0, when_done=True))
    assert machines.calls[-1][-1].endswith("-m launcher.auto_down start 600 true")
    assert said[-1] == (
        "the head takes the cluster down after its first run or when nobody has used it for 10 min"
    )


def test_a_rule_that_cannot_be_set_is_told(file: ClusterFile, desk: Desk) -> None:
    machines = FakeMachines([rented("h", "head"), rented("w")], can_start=False)
    with pytest.raises(ClusterError, match=r"could not start what takes it down after its first r"):
        up(file, machines, desk, Rule(math.inf, when_done=True))


def test_a_cluster_that_comes_up_in_part_goes_down_by_the_rule_all_the_same(
    file: ClusterFile, desk: Desk, said: list[str]
) -> None:
    machines = FakeMachines([rented("h", "head")])
    with pytest.raises(ClusterError, match="1 of 2 nodes have joined"):
        up(file, machines, desk, Rule(600.0))
    assert machines.calls[-1][-1].endswith("-m launcher.auto_down start 600 false")
    assert said[-1] == "the head takes the cluster down when nobody has used it for 10 min"


def test_the_file_that_ray_reads_is_beside_the_book_whatever_the_cluster_is_called(
    file: ClusterFile, desk: Desk, tmp_path: Path
) -> None:
    machines = FakeMachines([rented("h", "head"), rented("w")])
    up(replace(file, name="../über/all"), machines, desk)
    assert Path(machines.calls[0][-1]) == desk.folder / "..-über-all.yaml"
    (tmp_path / "no folder").write_text("")
    with pytest.raises(StorageError, match="which `ray up` is to read, cannot be written"):
        up(file, machines, replace(desk, folder=tmp_path / "no folder"))


def test_a_cluster_whose_end_is_interrupted_may_go_on_to_cost(
    file: ClusterFile, desk: Desk, said: list[str]
) -> None:
    @dataclass
    class Interrupted(FakeMachines):
        def here(self, module: str, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
            if words[0] == "down":
                raise KeyboardInterrupt
            return super().here(module, words, heard)

    up(file, Interrupted([rented("h", "head"), rented("w")]), desk)
    with pytest.raises(KeyboardInterrupt):
        down(file, Interrupted([rented("h", "head"), rented("w")]), desk)
    assert said[-1].startswith("interrupted: what is left may cost money. launch down ")
    assert len(list(desk.book.open_entries())) == 1


def test_a_status_tells_what_has_been_up_and_who_uses_it(file: ClusterFile, desk: Desk) -> None:
    look = {"now": HOUR_S, "nodes": [raw_node("w", 1800.0)], "n_drivers": 1}
    machines = FakeMachines([rented("w", since=1800.0)], look)
    found = status(file, machines, desk)
    assert found.bill.cost_usd == pytest.approx(0.25)
    assert found.look is not None
    assert found.look.is_used
    assert found.silence is None


def test_machines_are_told_though_their_head_is_dead(file: ClusterFile, desk: Desk) -> None:
    found = status(file, FakeMachines([rented("h", "head", None)]), desk)
    assert [n.name for n in found.bill.up] == ["ip-h"]
    assert "not found" in str(found.silence)


def test_a_cluster_that_went_down_by_itself_is_closed_with_what_it_cost(
    file: ClusterFile, desk: Desk
) -> None:
    machines = FakeMachines([rented("h", "head"), rented("w")])
    up(file, machines, desk)
    machines.look = {"now": HOUR_S, "nodes": [raw_node("w", 10.0)]}
    status(file, machines, desk)
    machines.rented = []
    found = status(file, machines, desk)
    assert not found.bill.nodes
    assert found.entry is not None
    assert found.entry.cost_usd == pytest.approx(0.6)
    assert list(desk.book.open_entries()) == []


def test_down_tells_what_it_has_cost_and_closes_the_note(file: ClusterFile, desk: Desk) -> None:
    machines = FakeMachines([rented("h", "head"), rented("w")])
    up(file, machines, desk)
    entry = down(file, machines, desk)
    assert entry is not None
    assert entry.cost_usd == pytest.approx(0.6)
    assert entry.ended_at == HOUR_S


def test_own_machines_without_ray_are_down(own: ClusterFile, desk: Desk) -> None:
    desk.book.begin(Entry("own", str(own.path), ".", "local", 0.0, 0.0))
    still = status(own, FakeMachines(running=("b",)), desk)
    assert "not found" in str(still.silence)
    assert status(own, FakeMachines(), desk).silence is None
    assert list(desk.book.open_entries()) == []


def test_a_provider_that_does_not_tell_is_an_error(file: ClusterFile) -> None:
    @dataclass
    class Failing(FakeMachines):
        def here(self, module: str, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
            return Ended(1, ("NoCredentialsError: Unable to locate credentials",))

    with pytest.raises(ClusterError, match=r"aws does not tell what is rented .*NoCredentials.*\."):
        list_rented(file, Failing())


def test_aws_needs_a_region_to_look_images_up(tmp_path: Path, desk: Desk) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(CLOUD.replace(", region: us-east-1", ""))
    with pytest.raises(UsageError, match="names no region"):
        up(read_cluster_file(path), FakeMachines(), desk)


def test_times_of_providers_are_understood() -> None:
    from datetime import UTC, datetime
    from types import SimpleNamespace

    at = datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert rented_since(SimpleNamespace(launch_time=at)) == at.timestamp()
    assert rented_since({"creationTimestamp": "2026-11-30T04:00:00.000-08:00"}) == at.timestamp()
    assert rented_since({"tags": {}}) is None
    assert rented_since(None) is None


def test_a_look_at_a_head_without_ray_tells_why_it_is_still_up() -> None:
    rule = {"idle_s": 600.0, "when_done": False, "is_alive": False, "kept": "results lie there"}
    found = parse_look({"now": 1.0, "auto_down": rule, "error": "no Ray"})
    assert found.error == "no Ray"
    assert found.auto_down is not None
    assert found.auto_down.kept == "results lie there"
    assert parse_look({"now": 1.0, "auto_down": {"is_alive": False}}).auto_down is None


def test_how_long_a_cluster_took_to_come_up_is_remembered(file: ClusterFile, desk: Desk) -> None:
    times = iter((HOUR_S, HOUR_S, HOUR_S + 240.0))
    machines = FakeMachines([rented("h", "head"), rented("w")])
    up(file, machines, replace(desk, clock=lambda: next(times)))
    found = desk.book.find(file.path)
    assert found is not None
    assert found.up_s == 240.0
    desk.book.end(file.path, HOUR_S + 300.0)
    up(file, machines, desk)  # the clock stands still: it came up at once
    again = desk.book.find(file.path)
    assert again is not None
    assert (again.ended_at, again.up_s) == (None, 0.0)
