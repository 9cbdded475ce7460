"""Data are brought to a node once, whole, and from where a break left them."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import DataError, UsageError
from launcher.worker.staging import cache as cache_module
from launcher.worker.staging import copying
from launcher.worker.staging.cache import held
from launcher.worker.staging.filling import Filling, look
from launcher.worker.staging.manifest import Manifest
from launcher.worker.staging.origin import BrokenError, DataDeniedError, DataMissingError
from launcher.worker.staging.origins import list_sources
from launcher.worker.staging.relay import Fetch, Relay
from launcher.worker.staging.stager import Stager
from launcher.worker.staging.uris import without_secrets
from launcher.worker.staging.wanted import Report, Wanted
from tests.mounts import mounted, needs_root
from tests.web_server import WebServer

CONTENT = bytes(range(256)) * 4096 * 3  # 3 MiB


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(copying, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(copying, "MAX_TRIES", 3)
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer({"/data/big.bin": CONTENT, "/data/small.csv": b"a,b\n"}) as server:
        yield server


def filled(
    manifest: Manifest, tmp_path: Path, fetch: Fetch | None = None, **more: object
) -> Report:
    wanted = replace(Wanted(manifest, str(tmp_path / "cache")), **more)  # type: ignore[arg-type]
    return Filling(wanted, fetch, lambda _: None, threading.Event()).run()


def file_in(report: Report, name: str) -> Path:
    assert report.place is not None
    return Path(report.place.folder) / name


# ---- from the web


def test_files_of_the_web_lie_in_one_folder(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/big.bin"), server.uri("/data/small.csv")])
    report = filled(manifest, tmp_path)
    assert file_in(report, "big.bin").read_bytes() == CONTENT
    assert file_in(report, "small.csv").read_bytes() == b"a,b\n"
    assert report.fetched_bytes == report.there_bytes == len(CONTENT) + 4


def test_what_is_there_is_not_brought_again(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/big.bin")])
    first = filled(manifest, tmp_path)
    again = filled(manifest, tmp_path)
    assert again == replace(first, fetched_bytes=0)
    assert look(Wanted(manifest, str(tmp_path / "cache"))).missing_bytes == 0


def test_a_copy_goes_on_where_the_connection_broke(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/big.bin")])
    server.breaks += [1_500_000, 200_000]
    report = filled(manifest, tmp_path)
    assert file_in(report, "big.bin").read_bytes() == CONTENT
    assert report.fetched_bytes == len(CONTENT)
    ranges = [wanted for _, wanted in server.asked if wanted]
    assert len(ranges) == 2
    assert all(int(each[6:-1]) > 0 for each in ranges)


def test_a_copy_goes_on_where_an_earlier_launch_was_killed(
    server: WebServer, tmp_path: Path
) -> None:
    manifest = list_sources([server.uri("/data/big.bin")])
    entry = Wanted(manifest, str(tmp_path / "cache")).open_cache().entry(manifest.fingerprint)
    entry.make({})
    entry.part(manifest.files[0]).write_bytes(CONTENT[:2_000_000])
    assert look(Wanted(manifest, str(tmp_path / "cache"))).missing_bytes == len(CONTENT) - 2_000_000
    report = filled(manifest, tmp_path)
    assert file_in(report, "big.bin").read_bytes() == CONTENT
    assert report.fetched_bytes == len(CONTENT) - 2_000_000


def test_a_server_without_ranges_is_read_from_the_start(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/big.bin")])
    server.has_ranges = False
    server.breaks += [1_500_000]
    assert file_in(filled(manifest, tmp_path), "big.bin").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/small.csv")])
    server.statuses += [503, 429]
    assert file_in(filled(manifest, tmp_path), "small.csv").read_bytes() == b"a,b\n"


def test_a_server_that_stays_away_is_given_up(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/small.csv")])
    server.statuses += [503] * 10
    with pytest.raises(DataError, match=r"HTTP 503\. Tried 3 times in a row"):
        filled(manifest, tmp_path)


def test_what_arrives_damaged_is_refused(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/small.csv")])
    server.md5 = "AAAAAAAAAAAAAAAAAAAAAA=="
    with pytest.raises(DataError, match=r"small\.csv arrives damaged: its checksum"):
        filled(manifest, tmp_path)


def test_a_file_that_changed_since_it_was_listed_is_refused(
    server: WebServer, tmp_path: Path
) -> None:
    manifest = list_sources([server.uri("/data/small.csv")])
    server.tag = '"two"'
    with pytest.raises(DataError, match=r"small\.csv has changed since it was listed"):
        filled(manifest, tmp_path)


def test_a_signed_address_is_never_shown(server: WebServer, tmp_path: Path) -> None:
    server.statuses += [403]
    uri = server.uri("/data/small.csv?X-Signature=topsecret").replace("://", "://ada:lovelace@")
    with pytest.raises(DataDeniedError, match=r"no right to read \(HTTP 403\)") as error:
        list_sources([uri])
    manifest = list_sources([uri])
    for text in (str(error.value), repr(manifest), manifest.sources[0].public):
        assert "topsecret" not in text
        assert "lovelace" not in text


def test_a_signature_in_an_error_of_a_library_is_not_shown() -> None:
    uri = "https://ada:love%20lace@host/x?sig=top+secret"
    text = "Max retries exceeded with url: /x?sig=top%20secret (love lace, http://far/y?key=2)"
    shown = without_secrets(text, uri)
    assert shown == "Max retries exceeded with url: /x (…, http://far/y)"


def test_nothing_there_is_an_error_of_use(server: WebServer, tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match=r"nothing at http://.*/other \(HTTP 404\)"):
        list_sources([server.uri("/other")])
    with pytest.raises(UsageError, match="cannot list a folder"):
        list_sources([server.uri("/data/")])
    with pytest.raises(DataMissingError, match="There is no /nowhere/at/all on "):
        list_sources(["/nowhere/at/all"])


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:9/x: .*Is the address right"):
        list_sources(["http://127.0.0.1:9/x"])


# ---- from folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x.bin").write_bytes(CONTENT[:5000])
    (folder / "y.txt").write_text("y")
    (folder / "deep" / "loop").symlink_to(folder)
    return folder


def test_a_folder_that_the_node_sees_is_used_in_place(folder: Path, tmp_path: Path) -> None:
    report = filled(list_sources([str(folder)]), tmp_path)
    assert report.place is not None
    assert (report.place.folder, report.place.lock) == (str(folder), None)
    assert report.fetched_bytes == 0


def test_several_sources_lie_side_by_side(folder: Path, server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources(
        [str(folder), server.uri("/data/small.csv"), str(folder / "deep" / "x.bin")]
    )
    report = filled(manifest, tmp_path)
    assert file_in(report, "set/deep/x.bin").read_bytes() == CONTENT[:5000]
    assert file_in(report, "small.csv").read_bytes() == b"a,b\n"
    assert file_in(report, "x.bin").read_bytes() == CONTENT[:5000]
    assert filled(manifest, tmp_path).fetched_bytes == 0


def test_a_source_that_is_seen_no_more_is_brought(
    folder: Path, server: WebServer, tmp_path: Path
) -> None:
    manifest = list_sources([str(folder), server.uri("/data/small.csv")])
    first = filled(manifest, tmp_path)
    assert file_in(first, "set").is_symlink()
    relay, moved = Relay(), folder.rename(tmp_path / "moved")
    relay.serve(list_sources([str(moved)]), {})
    report = filled(manifest, tmp_path, relay.read, through_driver=frozenset({0}))
    assert not file_in(report, "set").is_symlink()
    assert file_in(report, "set/deep/x.bin").read_bytes() == CONTENT[:5000]


def test_two_of_one_name_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Two --data are called set"):
        list_sources([str(folder), f"{folder}/"])


def elsewhere(manifest: Manifest, tmp_path: Path) -> Manifest:
    """The same files as a machine knows them that does not see the folder."""
    source = replace(manifest.sources[0], uri=str(tmp_path / "not-here"))
    return Manifest((source,), manifest.files)


def test_a_folder_that_the_node_does_not_see_comes_through_the_driver(
    folder: Path, tmp_path: Path
) -> None:
    manifest = list_sources([str(folder)])
    there = elsewhere(manifest, tmp_path)
    relay = Relay()
    relay.serve(manifest, {})
    assert look(Wanted(there, str(tmp_path / "cache"))).absent == {0}
    with pytest.raises(DataError, match="not-here is not the same on"):
        filled(there, tmp_path)
    report = filled(there, tmp_path, relay.read, through_driver=frozenset({0}))
    assert file_in(report, "deep/x.bin").read_bytes() == CONTENT[:5000]
    assert report.fetched_bytes == 5001
    with pytest.raises(PermissionError if os.geteuid() else AssertionError):
        file_in(report, "y.txt").open("w").close()
        raise AssertionError  # root may write whatever the rights


def test_a_driver_that_falters_is_asked_again(folder: Path, tmp_path: Path) -> None:
    manifest = list_sources([str(folder)])
    relay = Relay()
    relay.serve(manifest, {})
    faults = [BrokenError("away"), BrokenError("away")]

    def fetch(*words: object) -> bytes:
        if faults:
            raise faults.pop()
        return relay.read(*words)  # type: ignore[arg-type]

    there = elsewhere(manifest, tmp_path)
    report = filled(there, tmp_path, fetch, through_driver=frozenset({0}))
    assert report.fetched_bytes == 5001


# ---- the cache


def test_the_oldest_unused_entry_makes_room(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "RECENT_S", -1.0)
    small = filled(list_sources([server.uri("/data/small.csv")]), tmp_path)
    server.tag = '"two"'
    used = filled(list_sources([server.uri("/data/small.csv")]), tmp_path)
    assert used.place is not None
    assert used.place.lock is not None
    big = list_sources([server.uri("/data/big.bin")])
    with held(Path(used.place.lock)):
        filled(big, tmp_path, limit_bytes=len(CONTENT) + 300)
        assert not file_in(small, "").exists()
        assert file_in(used, "small.csv").exists()
        server.tag = '"three"'
        other = list_sources([server.uri("/data/big.bin")])
        with pytest.raises(DataError, match=r"cache \(--cache-size .* has room for 0\.00 GB"):
            filled(other, tmp_path, limit_bytes=100)


def test_what_has_not_changed_is_taken_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, through = Relay(), frozenset({0})
    manifest = list_sources([str(folder)])
    relay.serve(manifest, {})
    first = filled(elsewhere(manifest, tmp_path), tmp_path, relay.read, through_driver=through)
    (folder / "y.txt").write_text("longer")
    there = elsewhere(list_sources([str(folder)]), tmp_path)
    assert look(Wanted(there, str(tmp_path / "cache"))).missing_bytes == 6
    again = filled(there, tmp_path, relay.read, through_driver=through)
    assert again.fetched_bytes == 6
    assert file_in(again, "y.txt").read_text() == "longer"
    assert file_in(again, "deep/x.bin").samefile(file_in(first, "deep/x.bin"))


@needs_root
def test_a_disk_that_is_too_small_is_said_before_it_is_full(
    server: WebServer, tmp_path: Path
) -> None:
    manifest = list_sources([server.uri("/data/big.bin")])
    with (
        mounted(tmp_path / "disk", 2_000_000) as mount,
        pytest.raises(DataError, match=r"The disk at .* has room for 0\.00 GB, and 0\.00 GB"),
    ):
        filled(manifest, tmp_path, cache=str(mount.path / "cache"))


def test_two_at_the_same_time_bring_it_once(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/big.bin")])
    asked = len(server.asked)
    wanted = Wanted(manifest, str(tmp_path / "cache"))
    stagers = [Stager() for _ in range(3)]
    for stager in stagers:
        stager.begin(wanted)
    reports = [stager.report(100.0) for stager in stagers]
    assert [each.error for each in reports] == [None] * 3
    assert sum(each.fetched_bytes for each in reports) == len(CONTENT)
    assert len(server.asked) == asked + 1


def test_a_stop_ends_the_wait_for_another_launch(server: WebServer, tmp_path: Path) -> None:
    manifest = list_sources([server.uri("/data/small.csv")])
    wanted = Wanted(manifest, str(tmp_path / "cache"))
    entry = wanted.open_cache().entry(manifest.fingerprint)
    entry.used()
    stager = Stager()
    with held(entry.lock, alone=True):
        stager.begin(wanted)
        stager.stop()
        report = stager.report(100.0)
    assert str(report.error) == "Bringing the data was stopped."


def test_a_note_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "entry" / "about.json").mkdir(parents=True)
    with pytest.raises(OSError, match="irectory"):
        cache_module.Entry(tmp_path / "entry").make({})
    assert not list((tmp_path / "entry").glob(".about*"))
