"""Network maps remembered for a while, per set of machines."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from launcher import network_cache
from policies.schema import Interface, Link, Network, Node

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def link(src: str, dst: str, rtt_s: float, bytes_per_s: float = 1e9) -> Link:
    return Link(src, dst, "default", rtt_s, rtt_s / 10, 0.0, bytes_per_s)


def node(ip: str, kind: str = "2 cpu", id: str = "") -> Node:
    return Node(id or f"id-{ip}", ip, 2.0, 0.0, None, 0.0, "own machine", kind)


def network(*links: Link, silent: tuple[str, ...] = ()) -> Network:
    return Network(links, NOW.isoformat(), 1.5, silent)


def test_a_map_is_remembered_for_ten_minutes(tmp_path: Path) -> None:
    path, nodes = tmp_path / "deep" / "net.json", [node("10.0.0.1"), node("10.0.0.2")]
    measured = network(link("id-10.0.0.1", "id-10.0.0.2", 0.01))
    network_cache.save(path, nodes, measured)
    assert network_cache.load(path, nodes, NOW + timedelta(minutes=9)) == measured
    assert network_cache.load(path, nodes, NOW + timedelta(minutes=11)) is None
    assert network_cache.load(path, nodes, NOW - timedelta(minutes=1)) is None


def test_a_restarted_ray_keeps_its_map_under_new_ids(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    network_cache.save(path, [node("10.0.0.1", id="old")], network(link("old", "old", 0.01)))
    found = network_cache.load(path, [node("10.0.0.1", id="new")], NOW)
    assert found == network(link("new", "new", 0.01))


@pytest.mark.parametrize(
    "others",
    [
        [node("10.0.0.1")],
        [node("10.0.0.1"), node("10.0.0.3")],
        [node("10.0.0.1"), node("10.0.0.2", kind="8 cpu")],
        [node("10.0.0.1"), node("10.0.0.2"), node("10.0.0.3")],
    ],
)
def test_other_machines_have_another_map(tmp_path: Path, others: list[Node]) -> None:
    path, nodes = tmp_path / "net.json", [node("10.0.0.1"), node("10.0.0.2")]
    network_cache.save(path, nodes, network(link("id-10.0.0.1", "id-10.0.0.2", 0.01)))
    assert network_cache.load(path, others, NOW) is None


def test_two_sets_of_machines_are_remembered_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    for ip in ("10.0.0.1", "10.0.0.2"):
        network_cache.save(path, [node(ip)], network(link(f"id-{ip}", f"id-{ip}", 0.01)))
    assert network_cache.load(path, [node("10.0.0.1")], NOW) is not None
    assert network_cache.load(path, [node("10.0.0.2")], NOW) is not None


def test_a_map_with_a_silent_node_is_not_remembered(tmp_path: Path) -> None:
    network_cache.save(tmp_path / "net.json", [node("a")], network(silent=("id-a",)))
    assert not (tmp_path / "net.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"10.0.0.1=2 cpu": 3}', '{"10.0.0.1=2 cpu": {}}'])
def test_a_damaged_memory_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "net.json"
    path.write_text(text)
    assert network_cache.load(path, [node("10.0.0.1")], NOW) is None
    network_cache.save(path, [node("10.0.0.1")], network())
    assert network_cache.load(path, [node("10.0.0.1")], NOW) == network()


def test_addresses_on_further_networks_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    found = Interface("old", "10.98.0.1", "10.98.0.0/24")
    kept = Network((), NOW.isoformat(), 1.0, interfaces=(found,))
    network_cache.save(path, [node("10.0.0.1", id="old")], kept)
    again = network_cache.load(path, [node("10.0.0.1", id="new")], NOW)
    assert again is not None
    assert again.interfaces == (Interface("new", "10.98.0.1", "10.98.0.0/24"),)


def test_two_launches_may_remember_their_maps_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, measured = tmp_path / "net.json", network(link("id-10.0.0.1", "id-10.0.0.1", 0.01))
    replace, other = Path.replace, os.getpid() + 1

    def replace_after_another(beside: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: other)
        network_cache.save(path, [node("10.0.0.1")], measured)
        return replace(beside, target)

    monkeypatch.setattr(Path, "replace", replace_after_another)
    network_cache.save(path, [node("10.0.0.1")], measured)
    assert caplog.text == ""
    assert network_cache.load(path, [node("10.0.0.1")], NOW) == measured
