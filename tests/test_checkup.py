"""Which nodes a checkup leaves out, and what is said of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.checkup import Checkup, Fit, _key, _remember, checkup, conclude, grouped
from launcher.cluster import Cluster
from launcher.diagnosis import Findings
from launcher.errors import ClusterError
from launcher.problem import Problem
from launcher.script_needs import ScriptNeeds
from launcher.worker.checkup import Needs, node_facts
from tests.fakes import a_node

A, B, C = (a_node(i) for i in range(3))
CLUSTER = Cluster("10.0.0.1:6379", False, (A, B, C), "joined")


def unfit(*nodes: Any, driver: str = A.id) -> Checkup:
    return Checkup({node.id: ("lacks the module x",) for node in nodes}, (), driver)


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


def test_nodes_with_a_quota_are_a_kind_of_their_own() -> None:
    found = Checkup(allowed_cpus_by_node={B.id: 0.45}).fit_part(CLUSTER)
    assert [node.usable_cpus for node in found.nodes] == [8, 0.45, 8]
    assert [node.kind for node in found.nodes] == [A.kind, f"{A.kind}, 0.45 allowed", A.kind]
    assert Checkup(allowed_cpus_by_node={B.id: 0.45}).fit_part(found) == found


def test_quotas_are_remembered_with_the_nodes(tmp_path: Path) -> None:
    cache = tmp_path / "checkups.json"
    _remember(cache, _key(CLUSTER.nodes, ScriptNeeds()), Fit(1000.0, {B.id: 0.45}))
    found = checkup(CLUSTER, ScriptNeeds(), cache=cache, now_s=2000.0)
    assert found == Checkup(allowed_cpus_by_node={B.id: 0.45})
