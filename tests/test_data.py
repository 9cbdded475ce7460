"""The driver brings data to the nodes that train, counts what that takes and says so."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pytest import approx

from launcher.budget import Meter
from launcher.data import Data, listed
from launcher.data_text import brought_text
from launcher.data_transfer import STALLED_S
from launcher.egress import egress_price
from launcher.errors import BudgetTooSmallError, DataError, LauncherError
from launcher.record import CODEC, dump_record, new_record
from launcher.stagers import LocalStagers
from launcher.supervise import Allowance
from launcher.worker.staging.manifest import DataFile, Manifest, Source
from launcher.worker.staging.origin import DataDeniedError
from launcher.worker.staging.wanted import DataPlace, Look, Report, Wanted
from policies.schema import DataAhead, Node, NodeData
from tests.fake_posts import a_stretch
from tests.fakes import NOW, FakeClock, FakeScreen, a_node, a_request

GB = 10**9
A, B = a_node(0), a_node(1)
DONE = Report(2 * GB, 2 * GB, place=DataPlace("/cache/x/files", "/cache/x.lock"), digest="d")


class FakeStagers:
    """Answers what `looks` say, and for each node its `reports`, one each time it is asked."""

    def __init__(self, clock: FakeClock) -> None:
        self.looks: dict[str, Look | LauncherError] = {}
        self.reports_by_node: dict[str, list[Report]] = {}
        self.asked: list[str] = []
        self.begun: list[tuple[str, frozenset[int]]] = []
        self.served = self.dismissed = 0
        self._clock = clock

    def look(self, nodes: Sequence[Node], wanted: Wanted) -> Mapping[str, Look | LauncherError]:
        self.asked += [node.id for node in nodes]
        return {node.id: self.looks.get(node.id, Look(2 * GB)) for node in nodes}

    def begin(self, node: Node, wanted: Wanted) -> None:
        self.begun.append((node.id, wanted.through_driver))

    def reports(self, node_ids: Collection[str], timeout_s: float) -> Mapping[str, Report]:
        self._clock.now_s += 10.0
        found = {}
        for node in node_ids:
            coming = self.reports_by_node.get(node, [DONE])
            found[node] = coming.pop(0) if len(coming) > 1 else coming[0]
        return found

    def serve(self, manifest: Manifest, credentials: Mapping[str, str]) -> None:
        self.served += 1

    def dismiss(self) -> None:
        self.dismissed += 1


def a_manifest(uri: str = "s3://bucket/set") -> Manifest:
    return Manifest((Source(uri),), (DataFile("x.bin", 0, "x.bin", 2 * GB, "1"),))


class Scene:
    """A run's data, on a fake clock."""

    def __init__(self, tmp_path: Path, manifest: Manifest | None = None, **changes: object) -> None:
        self.clock, self.screen = FakeClock(), FakeScreen()
        self.stagers = FakeStagers(self.clock)
        stretch = a_stretch(a_request(str(tmp_path / "storage"), **changes), self.screen, tmp_path)
        self.stretch = replace(stretch, meter=Meter(self.clock))
        self.stretch.book.record = replace(self.stretch.book.record, data=None)
        self.data = self.made(manifest or a_manifest())

    def made(self, manifest: Manifest | None) -> Data:
        return Data(self.stretch, manifest, self.stagers, (A, B), self.clock)

    def with_stretch(self, **changes: object) -> None:
        self.stretch = replace(self.stretch, **changes)  # type: ignore[arg-type]
        self.data = self.made(a_manifest())


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_run_without_data_asks_nobody(scene: Scene) -> None:
    data = scene.made(None)
    assert data.ahead((A, B)) is None
    assert data.bring((A, B)) == {}
    assert data.brought((A,)) == {}
    assert data.places((A.id,)) == ()
    assert (data.version, scene.stagers.asked) == ("", [])


def test_nodes_have_the_data_before_training(scene: Scene) -> None:
    assert scene.data.bring((A, B)) == {}
    assert scene.data.places((A.id, A.id, B.id)) == (DONE.place,) * 3
    assert "bringing 4.0 GB of data to 2 nodes" in scene.screen.stages


def test_nodes_cost_while_data_come_and_so_do_data_on_their_way_out(scene: Scene) -> None:
    scene.with_stretch(request=replace(scene.stretch.request, data_price_usd_per_gb=0.09))
    scene.data.bring((A, B))
    assert scene.stretch.meter.session_usd == approx(4 * 0.09 + 10 / 3600 * 2 * 0.34)
    noted = scene.stretch.book.record.data
    assert noted is not None
    assert noted.cost_usd == approx(0.36)
    assert [(each.node, each.fetched_bytes, each.took_s) for each in noted.nodes] == [
        (A.id, 2 * GB, 10.0),
        (B.id, 2 * GB, 10.0),
    ]
    assert CODEC.decode(type(noted), CODEC.encode(noted)) == noted


def test_what_a_node_lacks_is_predicted_from_what_was_measured(scene: Scene) -> None:
    scene.stagers.looks = {A.id: Look(0)}
    scene.data.look((A, B))
    assert scene.data.ahead((A, B)) == DataAhead(
        2 * GB, (NodeData(A.id, 0), NodeData(B.id, 2 * GB)), 50e6, "assumed", False, 0.0
    )
    scene.data.bring((B,))
    ahead = scene.data.ahead((A, B))
    assert ahead is not None
    assert (ahead.bytes_per_s, ahead.basis) == (200e6, "measured")
    assert ahead.nodes == (NodeData(A.id, 0), NodeData(B.id, 0))
    again = scene.made(a_manifest()).ahead((A,))  # another run from the same bucket
    assert again is not None
    assert (again.nodes, again.bytes_per_s) == ((), 200e6)


def test_what_is_to_come_is_said(scene: Scene) -> None:
    scene.data.show_ahead((A, B))
    assert scene.screen.notes[-1] == (
        "data: 2.0 GB to bring to each of 2 nodes · 50.0 MB/s (assumed)"
    )
    scene.data.bring((A, B))
    scene.data.show_ahead((A, B))
    assert scene.screen.notes[-1] == "data: there on all 2 nodes"


def test_a_node_that_cannot_have_them_is_told_from_the_others(scene: Scene) -> None:
    scene.stagers.reports_by_node[B.id] = [Report(error=DataError("The disk is full."))]
    assert [*scene.data.bring((A, B))] == [B.id]
    assert scene.data.places((A.id,)) == (DONE.place,)
    with pytest.raises(DataError, match="The disk is full"):
        scene.data.brought((A, B))


def test_a_node_without_rights_reads_through_the_driver(scene: Scene) -> None:
    denied = Report(error=DataDeniedError("s3://bucket/set: no right to read."))
    scene.stagers.reports_by_node[B.id] = [denied, DONE]
    assert scene.data.bring((A, B)) == {}
    assert scene.stagers.begun[-1] == (B.id, frozenset({0}))
    assert scene.stagers.served == 1
    assert "reads through this machine, for it may not" in scene.screen.warnings[0]


def test_a_node_that_may_not_even_so_cannot_have_them(scene: Scene) -> None:
    denied = Report(error=DataDeniedError("s3://bucket/set: no right to read."))
    scene.stagers.reports_by_node[B.id] = [denied]
    assert isinstance(scene.data.bring((B,))[B.id], DataDeniedError)


def test_a_folder_of_the_driver_goes_one_way_for_all(tmp_path: Path) -> None:
    scene = Scene(tmp_path, a_manifest("/home/ada/set"))
    scene.stagers.looks = {A.id: Look(0), B.id: Look(2 * GB, frozenset({0}))}
    scene.data.bring((A, B))
    assert scene.stagers.begun == [(A.id, frozenset()), (B.id, frozenset({0}))]
    assert scene.stagers.served == 1
    ahead = scene.data.ahead((A, B))
    assert ahead is not None
    assert ahead.usd_per_byte == 0.0
    assert ahead.is_shared  # for whoever comes next, also when these have them


def test_two_copies_that_differ_are_refused(scene: Scene) -> None:
    other = replace(DONE, digest="other", n_copied=1)
    scene.stagers.reports_by_node = {A.id: [replace(DONE, n_copied=1)], B.id: [other]}
    (error,) = scene.data.bring((A, B)).values()
    assert f"The data on {B.ip} differ from those on {A.ip}" in str(error)


def test_nothing_is_brought_once_the_money_is_gone(scene: Scene) -> None:
    scene.with_stretch(
        allowance=Allowance(0.05, None),
        request=replace(scene.stretch.request, data_price_usd_per_gb=0.09),
    )
    scene.stagers.reports_by_node[A.id] = [Report(GB // 2, GB // 2), Report(GB, GB)]
    with pytest.raises(
        BudgetTooSmallError, match=r"The budget was reached while .* 1\.0 GB of 2\.0"
    ):
        scene.data.bring((A,))
    assert scene.stagers.dismissed == 1
    noted = scene.stretch.book.record.data
    assert noted is not None
    assert noted.cost_usd == approx(0.09)


def test_nothing_is_brought_after_the_deadline(scene: Scene) -> None:
    scene.with_stretch(allowance=Allowance(None, 15.0))
    scene.stagers.reports_by_node[A.id] = [Report(GB // 2, GB // 2)]
    with pytest.raises(BudgetTooSmallError, match="The deadline was reached"):
        scene.data.bring((A,))


def test_a_source_that_sends_nothing_is_given_up(scene: Scene) -> None:
    scene.stagers.reports_by_node[A.id] = [Report(GB, GB)]
    (error,) = scene.data.bring((A,)).values()
    assert f"No data have come to {A.ip} for 5 minutes" in str(error)
    assert scene.clock.now_s >= STALLED_S


def test_a_wait_for_another_launch_is_no_silence(scene: Scene) -> None:
    scene.stagers.reports_by_node[A.id] = [*[Report(is_waiting=True)] * 50, DONE]
    assert scene.data.bring((A,)) == {}
    assert "waiting for another launch that brings the same data" in scene.screen.stages


def test_a_node_that_stood_idle_is_asked_again(scene: Scene) -> None:
    scene.data.bring((A, B))
    scene.data.places((A.id,))
    n_begun = len(scene.stagers.begun)
    scene.clock.now_s += 3600.0
    scene.data.bring((A, B))
    assert [node for node, _ in scene.stagers.begun[n_begun:]] == [B.id]


def test_what_joins_beside_training_is_noted_at_the_end(scene: Scene) -> None:
    scene.data.brought_beside((B,))
    assert scene.stretch.book.record.data is None
    assert scene.screen.stages == []
    scene.data.dismiss()
    assert scene.stretch.book.record.data is not None


def test_a_run_tells_later_how_its_data_came(scene: Scene) -> None:
    scene.with_stretch(request=replace(scene.stretch.request, data_price_usd_per_gb=0.09))
    scene.data.bring((A, B))
    noted = scene.stretch.book.record.data
    assert noted is not None
    text = " ".join(brought_text(noted, 200).plain.split())
    assert text == (
        "data s3://bucket/set · 1 file · 2.0 GB · 4.0 GB brought to 2 nodes in 10 s · "
        "$0.36 on the way out (option) measured"
    )


# ---- what leaves a provider has a price


@pytest.mark.parametrize(
    ("uri", "types", "usd_per_gb", "source"),
    [
        ("s3://bucket/set", ("c5.2xlarge", "g4dn.xlarge"), 0.0, "assumed"),
        ("s3://bucket/set", ("c5.2xlarge", None), 0.09, "table"),
        ("s3://bucket/set", ("n2-standard-8",), 0.09, "table"),
        ("gs://bucket/set", ("n2-standard-8",), 0.0, "assumed"),
        ("gs://bucket/set", ("c5.2xlarge",), 0.12, "table"),
        ("s3://bucket/set?endpoint_override=10.0.0.9:9000", (None,), 0.0, "own"),
        ("https://host/set.bin", (None,), 0.0, "assumed"),
        ("/mnt/set", (None,), 0.0, "own"),
    ],
)
def test_data_are_free_within_a_provider_only(
    uri: str, types: tuple[str | None, ...], usd_per_gb: float, source: str
) -> None:
    nodes = [replace(A, instance_type=each) for each in types]
    price = egress_price(a_manifest(uri), nodes)
    assert (price.usd_per_gb, price.source) == (usd_per_gb, source)
    assert egress_price(a_manifest(uri), nodes, 0.02).usd_per_gb == 0.02


# ---- listing, and a run of one machine


def test_data_are_listed_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x.csv").write_text("1,2\n")
    scene = Scene(tmp_path, data=(str(tmp_path / "set"),))
    manifest = listed(scene.stretch)
    assert manifest is not None
    assert scene.screen.notes == [f"data: {tmp_path / 'set'} · 1 file · 4 bytes"]
    data = Data(scene.stretch, manifest, LocalStagers(), (A,))
    assert data.brought((A,)) == {A.id: DataPlace(str(tmp_path / "set"))}
    data.dismiss()
    (tmp_path / "set" / "x.csv").write_text("3,4,5\n")
    listed(scene.stretch)
    assert "have changed since this run began" in scene.screen.warnings[-1]


def test_no_password_is_in_a_record() -> None:
    uri = "s3://ada:lovelace@bucket/set"
    record = new_record(a_request(data=(uri,)), "x", now=NOW, owner="host:1", versions={})
    assert "lovelace" not in dump_record(record)
    assert "lovelace" not in repr(a_request(data=(uri,)))
    assert record.request.data == ("s3://bucket/set",)
