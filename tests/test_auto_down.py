"""Clusters that take themselves down: when, how often it is tried, what keeps a head."""

import json
import math
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.auto_down import (
    N_TRIES,
    HeadCluster,
    Rule,
    Seen,
    Use,
    is_due,
    read_notes,
    unsaved_runs,
    updated,
    watch_over,
    write_notes,
)
from launcher.cluster_file import read_cluster_file
from launcher.errors import ClusterError
from launcher.machines import RAY, Ended
from launcher.rented import MARK as RENTED
from launcher.rented import MODULE as RENTED_MODULE

CLOUD = "provider: {type: aws, region: us-east-1}"
BUSY, IDLE = Seen(is_used=True), Seen(is_used=False)


@dataclass
class FakeCluster:
    """Looks as told, then unused for good; fails to go down so many times."""

    looks: list[Seen] = field(default_factory=list)
    n_failures: int = 0
    n_downs: int = 0
    now: float = 0.0

    def look(self) -> Seen:
        return self.looks.pop(0) if self.looks else IDLE

    def take_down(self) -> None:
        self.n_downs += 1
        if self.n_downs <= self.n_failures:
            raise ClusterError("still there")

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def watched(cluster: FakeCluster, rule: Rule) -> float:
    watch_over(cluster, rule, cluster.clock, cluster.sleep)
    return cluster.now


def test_a_cluster_that_nobody_uses_goes_down_after_that_time() -> None:
    cluster = FakeCluster()
    assert watched(cluster, Rule(600.0)) == 600.0
    assert cluster.n_downs == 1


def test_use_begins_the_time_anew() -> None:
    assert watched(FakeCluster([IDLE, BUSY, IDLE]), Rule(600.0)) == 120.0 + 600.0


def test_a_driver_that_came_and_went_between_two_looks_counts() -> None:
    assert watched(FakeCluster([IDLE, Seen(is_used=False, used_at=90.0)]), Rule(600.0)) >= 690.0


def test_a_cluster_goes_down_once_its_first_run_is_done() -> None:
    cluster = FakeCluster([IDLE] * 50 + [BUSY] * 3)
    assert watched(cluster, Rule(math.inf, when_done=True)) == 53 * 60.0 + 60.0


def test_a_run_from_before_is_not_the_first_run() -> None:
    use = updated(Use(100.0), Seen(is_used=False, used_at=50.0), begun_at=100.0, now=130.0)
    assert use == Use(100.0)
    assert not is_due(use, Rule(math.inf, when_done=True), 1e9)


def test_going_down_is_tried_again_until_it_works() -> None:
    cluster = FakeCluster(n_failures=3)
    watched(cluster, Rule(60.0))
    assert cluster.n_downs == 4


def test_a_cluster_that_never_goes_down_is_an_error_in_the_end() -> None:
    cluster = FakeCluster(n_failures=1000)
    with pytest.raises(ClusterError, match="still there"):
        watched(cluster, Rule(60.0))
    assert cluster.n_downs == N_TRIES


@given(st.lists(st.booleans(), max_size=30), st.floats(10, 3600))
def test_a_cluster_never_goes_down_before_it_was_unused_for_so_long(
    looks: list[bool], idle_s: float
) -> None:
    cluster = FakeCluster([Seen(is_used=used) for used in looks])
    every_s = min(60.0, idle_s / 4)
    last_s = max((n * every_s for n, used in enumerate(looks, 1) if used), default=0.0)
    ended_s = watched(cluster, Rule(idle_s))
    if not cluster.looks:
        assert ended_s >= last_s + idle_s - 1e-6


@dataclass
class FakeMachines:
    """Notes what is called; a call of `fails` fails."""

    fails: str = ""
    calls: list[str] = field(default_factory=list)

    def here(self, module: str, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
        self.calls.append(" ".join(words) if module == RAY else module)
        if module == RENTED_MODULE:
            return Ended(0, (f"{RENTED}[]",))
        return Ended(int(bool(self.fails) and self.fails in self.calls[-1]), ("no",))

    def on(self, address: str, command: str, timeout_s: float) -> Ended:
        self.calls.append(f"{address}: {command.partition(';')[0]}")
        return Ended(0, ())

    def copy(self, address: str, source: str, place: str, timeout_s: float) -> Ended:
        raise AssertionError("nothing is to be copied")


def a_head(home: Path, machines: FakeMachines, text: str) -> HeadCluster:
    (home / "ray_bootstrap_config.yaml").write_text(text)
    return HeadCluster(home, read_cluster_file(home / "ray_bootstrap_config.yaml"), machines, 0.0)


def test_a_rented_cluster_loses_its_workers_before_its_head(tmp_path: Path) -> None:
    machines = FakeMachines()
    head = a_head(tmp_path, machines, CLOUD)
    head.take_down()
    assert machines.calls == [
        "stop",
        f"down -y --workers-only {head.file.path}",
        f"down -y {head.file.path}",
        RENTED_MODULE,
    ]


def test_a_head_with_results_of_its_own_stays(tmp_path: Path) -> None:
    (tmp_path / "launch" / "runs" / "otter").mkdir(parents=True)
    (tmp_path / "launch" / "runs" / "otter" / "run.json").write_text("{}")
    write_notes(tmp_path, {"pid": 7, "idle_s": 60.0})
    machines = FakeMachines()
    a_head(tmp_path, machines, CLOUD).take_down()
    assert [call.split()[0] for call in machines.calls] == ["stop", "down"]
    assert "--workers-only" in machines.calls[-1]
    assert read_notes(tmp_path)["kept"] == "the results of otter lie on its disk alone"


def test_a_head_whose_workers_stay_does_not_go(tmp_path: Path) -> None:
    machines = FakeMachines(fails="--workers-only")
    with pytest.raises(ClusterError, match="`ray down --workers-only` failed: no"):
        a_head(tmp_path, machines, CLOUD).take_down()
    assert len(machines.calls) == 2


def test_own_machines_are_ended_by_the_head(tmp_path: Path) -> None:
    machines = FakeMachines()
    text = "provider: {type: local, head_ip: a, worker_ips: [b]}"
    a_head(tmp_path, machines, text).take_down()
    assert {"a: ray stop", "b: ray stop"} <= set(machines.calls)


@pytest.mark.parametrize(
    "failure", [OSError("no memory"), subprocess.TimeoutExpired("python", 1.0)]
)
def test_a_look_that_fails_sees_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def run(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(subprocess, "run", run)
    assert a_head(tmp_path, FakeMachines(), CLOUD).look() == IDLE


def test_rules_are_told_in_words() -> None:
    assert str(Rule(math.inf, when_done=True)) == "after its first run"
    assert str(Rule(600.0)) == "when nobody has used it for 10 min"


def test_runs_that_lie_on_the_head_alone_are_found(tmp_path: Path) -> None:
    notes = tmp_path / ".launch" / "runs"
    notes.mkdir(parents=True)
    for run, storage in (("otter", "launch"), ("lynx", "my disk"), ("fox", "launch")):
        record = tmp_path / storage / "runs" / run / "run.json"
        record.parent.mkdir(parents=True)
        record.write_text("{}")
        (notes / f"{run}.json").write_text(json.dumps({"storage": str(tmp_path / storage)}))
    (notes / "far.json").write_text('{"storage": "s3://bucket/launch"}')
    (notes / "damaged.json").write_text("{")
    (tmp_path / "launch" / "runs" / "fox" / "run.json").unlink()
    assert unsaved_runs(tmp_path, 0.0) == ("lynx", "otter")
    assert unsaved_runs(tmp_path, 1e12) == ()
    assert unsaved_runs(tmp_path / "none", 0.0) == ()


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == {}
    write_notes(tmp_path, {"pid": 7, "idle_s": math.inf})
    assert read_notes(tmp_path) == {"pid": 7, "idle_s": math.inf}
