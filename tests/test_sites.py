"""Clusters afar: what it costs to bring them up, and when that is refused."""

import asyncio
import itertools
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher.auto_down import Rule
from launcher.cluster_book import Entry
from launcher.cluster_file import read_cluster_file
from launcher.clusters import Desk, set_rule, stands
from launcher.errors import BudgetTooSmallError, ClusterError, UsageError
from launcher.job_book import JobBook, JobPlace
from launcher.jobs import RayJobs, UnreachableError, _client, is_dashboard
from launcher.rented import RentedNode
from launcher.sites import AddressSite, FileSite, require_room, site_of, upkeep_of
from launcher.tunnel import Tunnel
from tests.fakes import a_request
from tests.test_clusters import CLOUD, OWN, FakeMachines, raw_node, rented


def file_of(tmp_path: Path, words: str = CLOUD):
    path = tmp_path / "mine.yaml"
    path.write_text(words)
    return read_cluster_file(path)


def test_coming_up_costs_all_machines_and_a_head_that_only_serves_goes_on(tmp_path: Path) -> None:
    found = upkeep_of(file_of(tmp_path), (), 600.0)
    assert found.spent_usd == pytest.approx(0.6 / 6)  # a head at $0.10, a worker at $0.50
    assert (found.spent_s, found.usd_per_h) == (600.0, 0.1)


def test_a_budget_that_coming_up_would_use_is_refused_before_anything_is_rented(
    tmp_path: Path,
) -> None:
    require_room(file_of(tmp_path), a_request(budget_usd=None))
    require_room(file_of(tmp_path), a_request(budget_usd=1.0))
    with pytest.raises(BudgetTooSmallError, match=r"alone costs about \$0.08 .*budget is \$0.05"):
        require_room(file_of(tmp_path), a_request(budget_usd=0.05))
    fast = Entry("mine", "mine.yaml", "/", "aws", 0.6, 0.0, ended_at=9.0, up_s=60.0)
    require_room(file_of(tmp_path), a_request(budget_usd=0.05), fast)
    require_room(file_of(tmp_path, OWN), a_request(budget_usd=0.01))


def test_a_deadline_that_coming_up_would_use_is_refused_before_anything_is_rented(
    tmp_path: Path,
) -> None:
    asked = a_request(deadline_s=300.0)
    with pytest.raises(BudgetTooSmallError, match=r"alone takes about 8 min .*launch up .*mine\.y"):
        require_room(file_of(tmp_path), asked)
    fast = Entry("mine", "mine.yaml", "/", "aws", 0.6, 0.0, ended_at=9.0, up_s=60.0)
    require_room(file_of(tmp_path), asked, fast)
    require_room(file_of(tmp_path, OWN), asked)


def test_a_dry_run_rents_nothing(tmp_path: Path) -> None:
    machines, desk = FakeMachines(), a_desk(tmp_path)
    site = FileSite(file_of(tmp_path), tmp_path, desk)
    with pytest.raises(UsageError, match=r"--dry-run rents nothing, .*compare train\.py --on "):
        site._brought_up(machines, a_request(dry_run=True))
    assert not any(call[0] == "up" for call in machines.calls)


def a_desk(tmp_path: Path, say: Callable[[str], None] = print) -> Desk:
    return Desk(tmp_path, say, lambda: 0.0, lambda _: None)  # type: ignore[arg-type,return-value]


def up_and(nodes: list[RentedNode], **look: object) -> FakeMachines:
    raw = [raw_node(node.name, 0.0) for node in nodes]
    return FakeMachines(nodes, {"now": 9.0, "nodes": raw, **look})


def test_a_cluster_stands_when_all_its_nodes_are_there_or_it_is_in_use(tmp_path: Path) -> None:
    file, both = file_of(tmp_path), [rented("1", "head"), rented("2")]
    assert not stands(file_of(tmp_path), FakeMachines())
    assert not stands(file, FakeMachines([*both]))  # its Ray does not answer
    assert not stands(file, up_and(both[:1]))
    assert not stands(file, up_and(both, error="no Ray"))
    assert stands(file, up_and(both))
    assert stands(file, up_and(both[:1], n_drivers=1))


def test_a_rule_is_set_on_a_cluster_that_is_up(tmp_path: Path) -> None:
    said: list[str] = []
    desk = a_desk(tmp_path, said.append)
    set_rule(file_of(tmp_path), FakeMachines(), desk, Rule(float("inf"), when_done=True))
    assert said == ["the head takes the cluster down after its first run"]


@pytest.mark.parametrize("n_others", [0, 1])
def test_a_cluster_that_others_use_is_left_to_its_head(tmp_path: Path, n_others: int) -> None:
    said: list[str] = []
    site = FileSite(file_of(tmp_path), tmp_path, a_desk(tmp_path, said.append), True)
    machines = up_and([rented("1", "head"), rented("2")], n_drivers=n_others)
    site._finish(machines, is_safe=True)
    is_down = any(call[0] == "down" for call in machines.calls)
    assert is_down is not bool(n_others)
    assert ("stays up, for others use it" in said[-1]) is bool(n_others)


def test_a_place_leads_back_to_its_cluster(tmp_path: Path) -> None:
    desk = a_desk(tmp_path)
    file = file_of(tmp_path)
    by_file = FileSite(file, tmp_path, desk).place("job-1", "/root/launch")
    book = JobBook(tmp_path / "jobs")
    book.write("far", by_file)
    assert book.find("far") == by_file
    assert stat.S_IMODE(book.folder.stat().st_mode) == 0o700
    assert book.find("near") is None
    again = site_of(by_file, desk)
    assert again == FileSite(file, tmp_path, desk)
    assert by_file.option == f"--cluster {file.path}"
    file.path.unlink()
    with pytest.raises(
        UsageError, match=r"that file is gone\. Put it back, or name .* --cluster F"
    ):
        site_of(by_file, desk)
    by_address = JobPlace("job-1", "/x", address="http://far:8265")
    assert site_of(by_address, desk) == AddressSite("http://far:8265")
    assert by_address.option == "--address http://far:8265"


def test_nobody_at_the_address_is_one_clear_line(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ClusterError, match=r"No Ray dashboard answers at http://127\.0\.0\.1:1: Con"
        ),
        AddressSite("http://127.0.0.1:1").reached(tmp_path),
    ):
        pass
    with pytest.raises(ClusterError, match="http://far:port is not an address"):
        RayJobs("http://far:port", "http://far:port").connect()
    assert is_dashboard("https://far")
    assert not is_dashboard("far:6379")


def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    site = AddressSite("http://me:secret@127.0.0.1:1")
    with pytest.raises(ClusterError) as raised, site.reached(tmp_path):
        pass
    assert "secret" not in str(raised.value)
    assert "http://127.0.0.1:1" in str(raised.value)


@dataclass
class FakeClient:
    """Ray's client as far as `RayJobs` asks it."""

    failure: BaseException | None = None
    submitted: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def submit_job(self, *, submission_id: str, **_: object) -> str:
        self.submitted.append(submission_id)
        if self.failure is not None:
            raise self.failure
        return submission_id

    def stop_job(self, job: str) -> None:
        self.stopped.append(job)

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield f"{job} begins\n"
        if job == "silent":
            await asyncio.Event().wait()


def test_a_job_that_may_have_arrived_is_stopped_where_nobody_would_follow_it() -> None:
    client = FakeClient()
    assert RayJobs("http://far", "far", _client=client).submit("true", None, "run")
    assert client.stopped == []
    for failure in (KeyboardInterrupt(), ConnectionResetError("gone")):
        lost = FakeClient(failure)
        with pytest.raises((KeyboardInterrupt, UnreachableError)):
            RayJobs("http://far", "far", _client=lost).submit("true", None, "run")
        assert lost.stopped == lost.submitted


def test_a_job_that_is_silent_is_heard_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = RayJobs("http://far", "far", _client=FakeClient())
    assert list(jobs.said("over")) == ["over begins\n"]
    monkeypatch.setattr("launcher.jobs.QUIET_S", 0.01)
    assert list(jobs.said("silent")) == ["silent begins\n"]


def test_no_answer_of_a_dashboard_is_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self, address: str) -> None:
            self.asked = self._do_request("GET", "/api/version", data=b"")

        def _do_request(self, *words: str, **options: object) -> object:
            return words, options

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Client)
    words, options = _client("http://far").asked
    assert (words, options) == (("GET", "/api/version"), {"timeout": 60.0, "data": b""})


def test_a_tunnel_that_does_not_stand_tells_the_last_words_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    words = ("sh", "-c", "echo Head node of cluster not found.; exit 1", "sh")
    tunnel = Tunnel(file_of(tmp_path), (), tmp_path / "log", words)
    with pytest.raises(ClusterError, match=r"over ssh: Head node of cluster not found\. Is the"):
        tunnel.open()
    assert tunnel._process is None


def test_what_ray_notes_on_its_way_is_no_reason(tmp_path: Path) -> None:
    note = "2026-12-01 01:45:22,424\tINFO commands.py:422 -- Checking Local settings"
    words = ("sh", "-c", f"echo '{note}'; exit 1", "sh")
    tunnel = Tunnel(file_of(tmp_path), (), tmp_path / "log", words)
    with pytest.raises(ClusterError, match=r"over ssh: no answer\. Is the"):
        tunnel.open()


CLOSER = """
import socket, sys
at = sys.argv.index("--port") + 1
with socket.create_server(("127.0.0.1", int(sys.argv[at]))) as server:
    while True:
        server.accept()[0].close()
"""


def test_a_head_without_a_dashboard_is_not_waited_for_as_long(tmp_path: Path) -> None:
    tunnel = Tunnel(file_of(tmp_path), (), tmp_path / "log", (sys.executable, "-c", CLOSER))
    seconds = itertools.count()
    with pytest.raises(UnreachableError, match=r"nothing listens at port 8265 .*pip install 'ray"):
        tunnel.open(lambda: _passing(tunnel, seconds), lambda _: None)
    assert tunnel._process is None


def _passing(tunnel: Tunnel, seconds: Iterator[int]) -> float:
    """A clock that stands until ssh listens."""
    return float(next(seconds)) if tunnel._way() != "silent" else 0.0


SERVER = """
import http.server, sys
at = sys.argv.index("--port") + 1
class Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[at])), Quiet).serve_forever()
"""


def test_a_tunnel_that_broke_is_opened_again_at_the_same_port(tmp_path: Path) -> None:
    import os
    import signal

    tunnel = Tunnel(file_of(tmp_path), (), tmp_path / "log", (sys.executable, "-c", SERVER))
    try:
        tunnel.open()
        first, process = tunnel.address, tunnel._process
        tunnel.open()
        assert tunnel._process is process
        assert process is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        tunnel.open()
        assert tunnel.address == first
        assert tunnel._process is not process
    finally:
        tunnel.close()
    assert not tunnel._stands()
