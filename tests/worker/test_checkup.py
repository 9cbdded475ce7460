"""The doctor's part on a node, with real sockets and folders."""

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.worker.checkup import (
    TOKEN_BYTES,
    CheckupAgent,
    Needs,
    Peer,
    launcher_version,
    meet,
    node_facts,
)
from launcher.worker.cpu_quota import allowed_cpus

TOKEN = bytes(TOKEN_BYTES)
PATIENCE_S = 60.0  # a busy machine may hold everything up for long


@pytest.fixture
def agent() -> Iterator[CheckupAgent]:
    """An agent whose clock is an hour ahead."""
    found = CheckupAgent("127.0.0.1", TOKEN, clock=lambda: time.time() + 3600)
    yield found
    found.close()


def test_a_peers_clock_is_read(agent: CheckupAgent) -> None:
    (contact,) = meet([Peer("n", "127.0.0.1", agent.port)], TOKEN, PATIENCE_S)
    assert contact.error is None
    assert contact.rtt_s is not None
    assert 0 < contact.rtt_s < PATIENCE_S
    assert contact.offset_s == pytest.approx(3600, abs=0.1 + contact.rtt_s / 2)


def test_many_peers_are_met_at_the_same_time(agent: CheckupAgent) -> None:
    contacts = agent.meet([Peer(str(i), "127.0.0.1", agent.port) for i in range(40)], PATIENCE_S)
    assert [contact.node for contact in contacts] == [str(i) for i in range(40)]
    assert not [contact for contact in contacts if contact.error]


def test_a_closed_port_is_an_error_in_words() -> None:
    with socket.socket() as closed:  # nobody else can listen there
        closed.bind(("127.0.0.1", 0))
        (contact,) = meet([Peer("n", *closed.getsockname())], TOKEN, PATIENCE_S)
    assert (contact.error, contact.offset_s) == ("Connection refused", None)


def test_a_port_that_says_nothing_costs_its_timeout_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started_s = time.monotonic()
        peers = [Peer(str(i), "127.0.0.1", server.getsockname()[1]) for i in range(100)]
        contacts = meet(peers, TOKEN, 0.5)
    assert {contact.error for contact in contacts} == {"no connection in 0.5 s"}
    assert time.monotonic() - started_s < 25  # 50 s, one after another


def test_a_stranger_without_the_token_learns_nothing(agent: CheckupAgent) -> None:
    (contact,) = meet([Peer("n", "127.0.0.1", agent.port)], b"x" * TOKEN_BYTES, PATIENCE_S)
    assert contact.error is not None


def test_modules_are_found_without_running_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "explosive.py").write_text("raise SystemError")
    monkeypatch.syspath_prepend(str(tmp_path))
    facts = node_facts(Needs(("explosive", "numpy", "no_such_thing", "__main__")), None)
    assert facts.missing_modules == ("no_such_thing",)
    assert "explosive" not in sys.modules


def test_paths_are_found_or_not(tmp_path: Path) -> None:
    needs = Needs((), (str(tmp_path), str(tmp_path / "nope"), "~"))
    assert node_facts(needs, None).found_paths == (str(tmp_path), "~")


def test_versions_and_room_are_told() -> None:
    facts = node_facts(Needs(), "/")
    assert facts.version_by_name.keys() >= {"python", "launch", "ray", "tensorflow", "keras"}
    assert facts.disk_free_bytes_by_folder["/"] > 0
    assert "tensorflow" not in sys.modules or facts.version_by_name["tensorflow"]


def test_the_launchers_version_changes_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = launcher_version(tmp_path)
    assert before == launcher_version(tmp_path)
    (tmp_path / "a.py").write_text("2")
    assert launcher_version(tmp_path) != before


def quota(folder: Path, **content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_cgroup_v2_quota_counts_from_every_group_above(tmp_path: Path) -> None:
    quota(tmp_path, cpu__max="max 100000")
    quota(tmp_path / "a", cpu__max="50000 100000")
    quota(tmp_path / "a" / "b", cpu__max="80000 100000")
    (tmp_path / "self").write_text("0::/a/b\n")
    assert allowed_cpus(tmp_path, tmp_path / "self") == 0.5


def test_a_cgroup_v1_quota_counts(tmp_path: Path) -> None:
    quota(tmp_path / "cpu" / "h", cpu__cfs_quota_us="4500", cpu__cfs_period_us="10000")
    quota(tmp_path / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    (tmp_path / "self").write_text("4:memory:/x\n2:cpu,cpuacct:/h\n0::/\n")
    assert allowed_cpus(tmp_path, tmp_path / "self") == 0.45


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    found = allowed_cpus(tmp_path, tmp_path / "nothing")
    assert found is None or found >= 1
