"""Where each site has data of its own, every node gets its site's, and who has none is told."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.budget import Meter
from launcher.cluster import Cluster
from launcher.errors import DataError, UsageError
from launcher.site_data import SiteData
from launcher.worker.staging.manifest import DataFile, Manifest, Source
from launcher.worker.staging.origin import DataMissingError
from launcher.worker.staging.wanted import DataPlace, Look, Report
from policies.data_ahead import missing_bytes
from policies.schema import Node, Plan, PlanOptions
from tests.fake_posts import a_stretch
from tests.fakes import FakeClock, FakeScreen, a_node, a_request
from tests.test_data import FakeStagers

GB = 10**9
A, B = (replace(a_node(i), site="rome") for i in range(2))
C = replace(a_node(2), site="oslo")
WORDS = ("rome=/srv/rome", "oslo=/srv/oslo")
SIZES = {"/srv/rome": 2 * GB, "/srv/oslo": 3 * GB}


class FakeSiteStagers(FakeStagers):
    """Finds a folder of one file at each path of `SIZES`."""

    def listed(self, node: Node, uri: str) -> Manifest:
        if uri not in SIZES:
            raise DataMissingError(f"There is no {uri} on {node.ip}. Check --data.")
        self.asked.append(node.id)
        return Manifest((Source(uri),), (DataFile("x.bin", 0, "x.bin", SIZES[uri], uri),))


class Scene:
    """A run on three nodes at two sites."""

    def __init__(self, folder: Path, **changes: object) -> None:
        changes = {"data": WORDS, **changes}
        self.clock, self.screen = FakeClock(), FakeScreen()
        stretch = a_stretch(a_request(str(folder / "storage"), **changes), self.screen, folder)
        self.stretch = replace(stretch, meter=Meter(self.clock))
        self.stretch.book.record = replace(self.stretch.book.record, data=None)
        self.stagers: list[FakeSiteStagers] = []

    def new_stagers(self) -> FakeSiteStagers:
        made = FakeSiteStagers(self.clock)
        place = DataPlace(f"/data/{len(self.stagers)}")
        made.reports_by_node = {
            node.id: [Report(GB, 0, place=place, digest="d")] for node in (A, B, C)
        }
        self.stagers.append(made)
        return made

    def data(self, *nodes: Node) -> SiteData:
        cluster = Cluster("10.0.0.4:6379", embedded=False, nodes=nodes or (A, B, C), how="joined")
        return SiteData.of(self.stretch, cluster, self.new_stagers)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_every_node_gets_the_data_of_its_site(scene: Scene) -> None:
    data = scene.data()
    assert data.bring((A, B, C)) == {}
    nodes = (C.id, A.id, A.id, B.id)
    assert [place.folder for place in data.places(nodes)] == [
        "/data/1",
        "/data/0",
        "/data/0",
        "/data/0",
    ]
    assert data.sites(nodes) == ("oslo", "rome", "rome", "rome")
    assert [each.begun for each in scene.stagers] == [
        [(A.id, frozenset()), (B.id, frozenset())],
        [(C.id, frozenset())],
    ]


def test_a_path_is_looked_for_on_a_node_of_its_site(scene: Scene) -> None:
    scene.data()
    assert [each.asked for each in scene.stagers] == [[A.id], [C.id]]
    assert any("rome=/srv/rome, oslo=/srv/oslo · 2 files · 5.0 GB" in n for n in scene.screen.notes)


def test_a_node_lacks_what_is_its_sites(scene: Scene) -> None:
    data = scene.data()
    scene.stagers[0].looks = {A.id: Look(0)}
    data.look((A,))
    plan = Plan(3, (A.id, B.id, C.id), "decentralized", PlanOptions(1.0))
    assert missing_bytes(plan, data.ahead((A, B, C))) == (2 * GB, 3 * GB)


def test_the_record_names_all_sites(scene: Scene) -> None:
    data = scene.data()
    data.bring((A, C))
    noted = scene.stretch.book.record.data
    assert noted is not None
    assert (noted.sources, noted.n_files, noted.n_bytes) == (WORDS, 2, 5 * GB)
    assert {each.node for each in noted.nodes} == {A.id, C.id}
    assert noted.fingerprint == data.version


def test_a_node_that_sees_other_files_than_its_site_is_told(scene: Scene) -> None:
    data = scene.data()
    scene.stagers[0].looks = {B.id: Look(2 * GB, frozenset({0}))}
    failed: Mapping[str, Exception] = data.bring((A, B, C))
    assert failed.keys() == {B.id}
    assert "is not what it is on 10.0.0.4, of the same site rome" in str(failed[B.id])


def test_a_node_that_joins_at_a_site_without_data_cannot_train(scene: Scene) -> None:
    late = replace(a_node(2), id="late", site="lima")
    with pytest.raises(DataError, match="there are no data for its site lima"):
        scene.data().look((late,))


@pytest.mark.parametrize(
    ("changes", "nodes", "message"),
    [
        ({}, (A, B), r"no node has the label launch/site=oslo \(the nodes' are rome\)"),
        ({}, (a_node(0),), r"no node has the label launch/site=rome \(no node has one\)"),
        ({"data": WORDS[:1]}, (A, C), "names none for its site oslo"),
        ({"data": WORDS[:1]}, (A, a_node(1)), "none for a node without the label launch/site"),
        ({"data": (*WORDS[:1], "oslo=/none")}, (A, C), "The data of oslo: There is no /none"),
        ({"workers": 1}, (A, C), "1 workers are fewer than the 2 sites"),
    ],
)
def test_sites_and_nodes_have_to_match(
    tmp_path: Path, changes: dict[str, object], nodes: tuple[Node, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Scene(tmp_path, **changes).data(*nodes)
