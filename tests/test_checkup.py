"""Which nodes a checkup leaves out, and what is said of them."""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.checkup import Checkup, checkup, conclude, grouped
from launcher.cluster import Cluster
from launcher.diagnosis import Findings
from launcher.errors import ClusterError, ScriptFailedError
from launcher.prepare import profile_on_fit_nodes
from launcher.problem import Problem
from launcher.script_needs import ScriptNeeds
from launcher.worker.checkup import Needs, node_facts
from tests.fakes import a_node, a_workload

A, B, C = (a_node(i) for i in range(3))
CLUSTER = Cluster("10.0.0.1:6379", False, (A, B, C), "joined")
PROFILED = (a_workload(), False)


def unfit(*nodes: Any, driver: str = A.id) -> Checkup:
    return Checkup({node.id: ("lacks the module x",) for node in nodes}, (), driver)


def done(result: Checkup) -> "Future[Checkup]":
    future: Future[Checkup] = Future()
    future.set_result(result)
    return future


def test_unfit_nodes_are_no_candidates_and_the_line_says_why() -> None:
    found = unfit(B)
    assert found.fit_part(CLUSTER).nodes == (A, C)
    assert found.lines(CLUSTER.nodes) == (f"{B.ip} is left out: it lacks the module x.",)


def test_fit_nodes_all_stay() -> None:
    assert Checkup().fit_part(CLUSTER) is CLUSTER or Checkup().fit_part(CLUSTER) == CLUSTER
    assert Checkup().lines(CLUSTER.nodes) == ()


def test_an_unfit_driver_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"This machine is not fit.* lacks the module x\. See"):
        unfit(A).fit_part(CLUSTER)
    with pytest.raises(ClusterError, match="This machine is not fit"):
        Checkup({"head": ("is cut off",)}, (), "head").fit_part(CLUSTER)


def test_without_a_fit_node_nothing_is_trained() -> None:
    with pytest.raises(ClusterError, match=r"None of the 3 nodes is fit to train\. .*lacks"):
        unfit(A, B, C).fit_part(CLUSTER)
    with pytest.raises(ClusterError, match="The only node is not fit"):
        unfit(A).fit_part(replace(CLUSTER, nodes=(A,)))


def concluded(*problems: Problem) -> Checkup:
    facts = node_facts(Needs(), None)
    return conclude(Findings((A, B), A.id, facts, {}), problems)


def test_only_what_fails_leaves_a_node_out() -> None:
    found = concluded(
        Problem(B.id, "versions", "fail", "has Ray 1.0"),
        Problem(B.id, "disk", "warn", "has little room"),
        Problem(A.id, "disk", "warn", "has little room"),
        Problem(A.id, "cpus", "note", "may use half"),
    )
    assert found.reasons_by_node == {B.id: ("has Ray 1.0",)}
    assert found.warnings == (f"{A.ip}: has little room.",)


def test_what_is_missing_everywhere_and_silent_nodes_are_left_to_others() -> None:
    found = concluded(
        Problem(B.id, "modules", "fail", "lacks x", everywhere=True),
        Problem(B.id, "answers", "fail", "does not answer"),
    )
    assert found.reasons_by_node == {}


def test_nodes_that_share_a_problem_share_its_line() -> None:
    problems = [Problem(str(i), "disk", "warn", "has little room") for i in range(5)]
    ips = {str(i): f"10.0.0.{i}" for i in range(5)}
    assert grouped(problems, ips) == ("10.0.0.0, 10.0.0.1 and 3 more: has little room.",)


def test_an_embedded_ray_needs_no_checkup(tmp_path: Path) -> None:
    embedded = replace(CLUSTER, embedded=True)
    assert checkup(embedded, ScriptNeeds(), cache=tmp_path / "checkups.json") == Checkup()


def test_a_profile_that_fails_on_an_unfit_node_is_taken_on_the_others() -> None:
    tried: list[Any] = []

    def profile(cluster: Cluster) -> Any:
        tried.append(cluster.nodes)
        if B in cluster.nodes:
            raise ScriptFailedError(0, "ModuleNotFoundError: x")
        return PROFILED

    assert profile_on_fit_nodes(CLUSTER, done(unfit(B)), profile) == PROFILED
    assert tried == [(A, B, C), (A, C)]


def test_a_profile_that_fails_on_fit_nodes_is_the_scripts_own_failure() -> None:
    def fail(_: Cluster) -> Any:
        raise ScriptFailedError(0, "ValueError")

    with pytest.raises(ScriptFailedError, match="ValueError"):
        profile_on_fit_nodes(CLUSTER, done(Checkup()), fail)


def test_a_profile_that_succeeds_waits_for_no_checkup() -> None:
    assert profile_on_fit_nodes(CLUSTER, Future(), lambda _: PROFILED) == PROFILED
