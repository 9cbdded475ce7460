"""Places to train at, compared: what is counted, and what is said of what cannot be told."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cluster_book import Entry
from launcher.cluster_file import read_cluster_file
from launcher.compare_report import offers_json, print_offers
from launcher.comparing import (
    Offer,
    Question,
    best_of,
    cluster_nodes,
    offer_here,
    offer_of,
    places,
    start_of,
)
from launcher.config import Environment
from launcher.console import make_console
from launcher.errors import UsageError
from launcher.sites import ASSUMED_UP_S
from launcher.worker.staging.manifest import DataFile, Manifest, Source
from policies.schema import KindSpeed, Limits, Situation, Work
from tests.policies.cases import node, workload
from tests.test_clusters import OWN

ROOT = Path(__file__).parents[1]
AWS = read_cluster_file(ROOT / "cluster.yaml")
HERE = node("here", cpus=2.0, price=0.0, kind="laptop")
WORK = Work(steps=200_000, epochs=10, global_batch=256)
LOAD = workload(cpus=2.0, kinds=("laptop",))


def question(**changes: object) -> Question:
    return replace(Question(LOAD, WORK, Limits(), seed=0), **changes)  # type: ignore[arg-type]


def here(asked: Question) -> Offer:
    return offer_here(Situation((HERE,), None, LOAD, WORK, Limits()), asked)


def there(asked: Question, entry: Entry | None = None) -> Offer:
    return offer_of(AWS, asked, entry)


@pytest.fixture(scope="module")
def offers() -> list[Offer]:
    return [here(question()), there(question())]


def test_a_clusters_nodes_are_those_from_the_start_and_those_it_may_start() -> None:
    nodes, n_more = cluster_nodes(AWS)
    up = [each for each in nodes if each.is_up]
    assert [(each.id, each.kind, each.cpus) for each in up] == [
        ("cpu 1", "c5.2xlarge", 8.0),
        ("cpu 2", "c5.2xlarge", 8.0),
    ]
    spot = [each for each in nodes if each.node_type == "cpu-spot"]
    assert spot
    assert all(not each.is_up and each.losses_per_h > 0 for each in spot)
    assert n_more == 6


def test_coming_up_is_counted_in_time_and_cost(offers: list[Offer]) -> None:
    cloud = offers[1]
    assert cloud.best is not None
    assert cloud.time_s is not None
    assert cloud.cost_usd is not None
    assert cloud.start.usd == pytest.approx((0.096 + 2 * 0.34) * ASSUMED_UP_S / 3600.0)
    assert cloud.time_s.mean == pytest.approx(cloud.best.prediction.time_s.mean + ASSUMED_UP_S)
    assert cloud.cost_usd.mean == pytest.approx(
        cloud.best.prediction.cost_usd.mean + cloud.start.usd
    )
    assert cloud.start.upkeep_usd_per_h == 0.096


def test_a_cluster_that_is_up_needs_not_come_up() -> None:
    up = Entry("launch", str(AWS.path), "/", "aws", 0.78, 0.0)
    assert there(question(), up).start.s == 0.0
    down = replace(up, ended_at=9.0)
    assert start_of(AWS, down).s == ASSUMED_UP_S
    earlier = start_of(AWS, replace(down, up_s=300.0))
    assert (earlier.s, earlier.basis) == (300.0, "measured")


def test_the_cloud_is_faster_and_this_machine_cheaper(offers: list[Offer]) -> None:
    fastest, cheapest = best_of(offers, "time"), best_of(offers, "cost")
    assert fastest is offers[1]
    assert cheapest is offers[0]
    document = offers_json(offers)
    assert (document["fastest"], document["cheapest"]) == (str(AWS.path), "local")
    assert document["places"][1]["time_s"]["mean"] == offers[1].time_s.mean  # type: ignore[union-attr]


def test_the_table_marks_each_number_and_names_the_best(offers: list[Offer]) -> None:
    out = io.StringIO()
    console = make_console(out, is_tty=False, environment=Environment(Path("/"), Path("/")))
    broken = Offer("own.yaml", why_not="its file does not say how large its machines are")
    print_offers(console, [*offers, broken])
    text = out.getvalue()
    assert "8 min, $0.10 a" in text
    assert "m measured here · p predicted, with 90 % intervals · a assumed" in text
    assert "cannot be told" in text
    assert "own.yaml: its file does not say how large its machines are." in text
    assert "fastest: " in text
    assert "cheapest: local" in text


def test_a_speed_that_was_measured_there_before_is_not_assumed() -> None:
    assert there(question()).step_basis == "assumed"
    known = replace(LOAD, node_kinds=(*LOAD.node_kinds, KindSpeed("c5.2xlarge", 0.01, 0.0005, 8.0)))
    assert there(question(workload=known)).step_basis == "predicted"


def test_gpus_are_left_out_unless_the_script_has_run_on_one() -> None:
    offer = there(question(limits=Limits(gpus_per_worker=1.0)))
    assert (offer.best, offer.why_not != "") == (None, True)
    known = replace(
        LOAD, node_kinds=(*LOAD.node_kinds, KindSpeed("g4dn.xlarge", 0.01, 1e-5, 4.0, gpus=1.0))
    )
    best = there(question(workload=known, limits=Limits(gpus_per_worker=1.0))).best
    assert best is not None
    assert best.plan.options.gpus_per_worker == 1.0


def test_what_does_not_fit_the_budget_says_so() -> None:
    offer = there(question(limits=Limits(budget_usd=0.12)))
    assert offer.best is None
    assert "Raise --budget" in offer.why_not


def test_own_machines_cannot_be_told_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    assert "bring it up" in offer_of(read_cluster_file(path), question(), None).why_not


def test_data_on_their_way_cost_time_and_egress() -> None:
    def manifest(uri: str) -> Manifest:
        return Manifest((Source(uri),), (DataFile("x", 0, "x", 10_000_000_000, "1"),))

    def bringing(uri: str, **changes: object):
        found = there(question(manifest=manifest(uri), **changes)).bringing
        assert found is not None
        return found

    far = bringing("gs://bucket/set")
    assert (far.basis, far.price_source) == ("assumed", "table")
    assert far.usd >= 1.2
    own = bringing("s3://bucket/set", data_rate=100e6)
    assert (own.basis, own.usd) == ("measured", 0.0)
    assert own.s == pytest.approx(102.0)


def test_places_are_named_once() -> None:
    assert places("local, cluster.yaml,") == ("local", "cluster.yaml")
    with pytest.raises(UsageError, match="names no place"):
        places(" ,")
    with pytest.raises(UsageError, match="names local twice"):
        places("local,local")
