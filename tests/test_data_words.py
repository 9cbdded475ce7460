"""`--data` names one source for all nodes, or one for each site."""

from pathlib import Path

import pytest

from launcher.config import Environment, Flags, Request
from launcher.data_words import SiteUri, refuse_site_data, shared_uris, site_uris
from launcher.errors import UsageError
from launcher.record import new_record
from launcher.request import make_request
from tests.fakes import NOW


def request(cwd: Path, *data: str, strategy: str | None = "decentralized") -> Request:
    environment = Environment(home=Path("/home/ada"), cwd=cwd)
    flags = Flags(data=data, strategy=strategy)
    return make_request("train.py", (), flags, environment, draw_seed=lambda: 7)


def test_each_site_may_have_a_path_of_its_own_nodes_or_a_uri(tmp_path: Path) -> None:
    found = request(tmp_path, "rome=/srv/images", "oslo-2.b=s3://oslo/a=b", "bonn=file:///x%20y")
    assert site_uris(found.data) == (
        SiteUri("rome", "/srv/images"),
        SiteUri("oslo-2.b", "s3://oslo/a=b"),
        SiteUri("bonn", "/x y"),
    )
    assert shared_uris(found.data) == ()
    assert found.limits.asynchrony.own_data


def test_what_only_looks_like_a_site_is_a_source_for_all(tmp_path: Path) -> None:
    (tmp_path / "date=2024-01-01").mkdir()
    words = ("date=2024-01-01", "./a=b", "/c=d", "s3://bucket/e=f", "https://host/x?y=z")
    found = request(tmp_path, *words, strategy=None)
    assert shared_uris(found.data) == (
        f"{tmp_path}/date=2024-01-01",
        f"{tmp_path}/a=b",
        *words[2:],
    )
    assert not found.limits.asynchrony.own_data


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rome=images"], "a site's own nodes has to be absolute, such as rome=/data"),
        (["rome=~/images"], "a site's own nodes has to be absolute"),
        (["rome="], "--data rome= names no data"),
        (["rome=/a", "rome=/b"], "names the site rome 2 times"),
        (["rome=/a", "s3://k:secret@all"], r"\(rome=/a\) and data of all \(s3://all\)"),
        (["rome=ftp://k:secret@host/x"], r"--data rome=ftp://host/x: ftp:// is not known"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        request(tmp_path, *words)


@pytest.mark.parametrize("strategy", [None, "auto", "direct", "allreduce"])
def test_only_decentralized_training_can_use_them(tmp_path: Path, strategy: str | None) -> None:
    with pytest.raises(UsageError, match="only under --strategy decentralized"):
        request(tmp_path, "rome=/a", strategy=strategy)


def test_searches_and_comparisons_refuse_them() -> None:
    refuse_site_data(("/data",), "tune")
    with pytest.raises(UsageError, match="launch tune knows only data of all nodes"):
        refuse_site_data(("rome=/data",), "tune")


def test_a_record_names_the_sites_and_no_passwords(tmp_path: Path) -> None:
    asked = request(tmp_path, "rome=s3://key:secret@bucket/set", "oslo=/srv")
    record = new_record(asked, "own", now=NOW, owner="me", versions={})
    assert record.request.data == ("rome=s3://bucket/set", "oslo=/srv")
