"""Joining: which address is taken, and what is said when it cannot be joined."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import cluster_join
from launcher.cluster import connect
from launcher.cluster_join import Target, check, find_target, parse_address
from launcher.errors import ClusterError
from launcher.ray_session import object_store_bytes, own_temp_dir, without_working_dir


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, and which nobody else can take meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def refusal(address: str, tmp_path: Path) -> str:
    with pytest.raises(ClusterError) as caught:
        connect(address, None, price_usd_per_h=None, temp_dir=tmp_path, log_dir=tmp_path)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_address_is_a_host_and_a_port() -> None:
    assert parse_address("10.0.0.4:7000", "--address").address == "10.0.0.4:7000"
    assert parse_address("head", "--address").address == "head:6379"
    assert parse_address("[::1]:7000", "--address").address == "[::1]:7000"
    assert parse_address("::1", "--address").address == "[::1]:6379"


@pytest.mark.parametrize(
    "text", ["head:port", "http://head:8265", "head:70000", ":6379", "a/b", "10.0.0.4:"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match=r"is not an address\. Give HOST:PORT"):
        parse_address(text, "--address")


def test_a_ray_client_address_is_refused_with_what_to_use(tmp_path: Path) -> None:
    assert "do not suit training" in refusal("ray://head:10001", tmp_path)


def test_the_option_comes_before_the_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        assert find_target(here, "elsewhere.invalid:1", None) == parse_address(here, "--address")
        found = find_target(None, here, None)
        assert found is not None
        assert found.how == f"joined RAY_ADDRESS {here}"


def test_local_starts_an_own_ray_whatever_runs_here(tmp_path: Path) -> None:
    assert find_target("local", "elsewhere.invalid:1", tmp_path) is None
    assert find_target(None, "local", tmp_path) is None


def test_a_running_cluster_is_found_by_its_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "ray_current_cluster").write_text(here)
        found = find_target(None, None, tmp_path)
        assert found is not None
        assert found.how == f"joined the cluster running at {here}"
        assert find_target("auto", None, tmp_path) == found


def test_the_file_of_a_cluster_that_is_gone_is_passed_over(
    closed_port: int, tmp_path: Path
) -> None:
    (tmp_path / "ray_current_cluster").write_text(f"127.0.0.1:{closed_port}")
    assert find_target(None, None, tmp_path) is None


def test_auto_without_a_running_cluster_is_refused(tmp_path: Path) -> None:
    assert "No Ray cluster is running on this machine" in refusal("auto", tmp_path)


def test_a_closed_port_is_refused_at_once(
    closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONNECT_TIMEOUT_S", "ANSWER_TIMEOUT_S", "IMPORT_TIMEOUT_S"):
        monkeypatch.setattr(cluster_join, name, 300.0)  # what is waited for shows
    started = time.monotonic()
    said = refusal(f"127.0.0.1:{closed_port}", tmp_path)
    assert "No Ray cluster answers at 127.0.0.1" in said
    assert "Connection refused" in said
    assert "Leave --address out" in said
    assert time.monotonic() - started < 60
    with pytest.raises(ClusterError, match=r"\(RAY_ADDRESS\).*Run `unset RAY_ADDRESS`"):
        find_target(None, f"127.0.0.1:{closed_port}", tmp_path)


def test_a_port_that_never_answers_is_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_join, "ANSWER_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = refusal(f"127.0.0.1:{server.getsockname()[1]}", tmp_path)
    assert "nothing that speaks Ray's protocol answered in 0.5 s" in said


def test_the_longest_wait_is_under_twenty_seconds() -> None:
    assert cluster_join.CONNECT_TIMEOUT_S + cluster_join.ANSWER_TIMEOUT_S < 20


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"error": "no"}, "cannot be joined: no"),
        (
            {"ray": "2.9.0", "python": "3.10.1"},
            r"runs Ray 2\.9\.0 on Python 3\.10\.1, this launcher Ray 2",
        ),
        ({"here": False}, "is no node of the Ray cluster"),
    ],
)
def test_what_the_cluster_says_of_itself_decides(
    facts: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match=said):
        cluster_join.require_fit(Target("h", 1, "joined h"), {**cluster_join.own(), **facts})


def test_a_cluster_like_ours_on_this_machine_is_fit() -> None:
    fit = {**cluster_join.own(), "here": True, "token": True}
    cluster_join.require_fit(Target("h", 1, "joined h"), fit)


def test_a_check_that_cannot_run_points_to_its_log(
    closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ClusterError, match=r"the question failed \(see .*ray\.log\)"):
        check(Target("127.0.0.1", closed_port, "joined"), tmp_path / "ray.log")


def test_the_object_store_stays_within_its_bounds() -> None:
    assert 128 * 2**20 <= object_store_bytes() <= 2**30


def test_a_long_folder_for_temporary_files_is_left_to_others() -> None:
    name = f"launch-ray-{os.getuid()}"
    assert own_temp_dir(Path("/var/tmp")) == Path("/var/tmp", name)
    assert own_temp_dir(Path("/scratch/projects/ada/a/long/path/of/a/batch")) == Path("/tmp", name)


def test_a_ray_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"^Ray did not start: .*ray\.log\)$"):
        connect(
            "local", None, price_usd_per_h=None, temp_dir=Path("/proc/nowhere"), log_dir=tmp_path
        )


def test_a_submitted_jobs_folder_is_not_put_on_the_workers_path() -> None:
    job = {"runtime_env": {"working_dir": "gcs://x.zip", "pip": ["a"]}, "metadata": {"k": "v"}}
    left = json.loads(without_working_dir(json.dumps(job)))
    assert left == {"runtime_env": {"pip": ["a"]}, "metadata": {"k": "v"}}
    assert json.loads(without_working_dir('{"metadata": {}}')) == {"metadata": {}}


def test_importing_the_cluster_modules_does_not_import_ray() -> None:
    code = (
        "import sys, launcher.cluster, launcher.probe\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('ray', 'tensorflow')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
