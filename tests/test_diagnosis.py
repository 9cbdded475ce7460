"""What is wrong on a node, how bad it is, and what is said of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.diagnosis import Findings, diagnose, levels
from launcher.problem import CHECKS, Problem
from launcher.script_needs import PathNeed, ScriptNeeds
from launcher.worker.checkup import Contact, NodeFacts
from tests.fakes import a_node

VERSIONS = {
    "python": "3.11.7",
    "launch": "abc",
    "ray": "2.60.0",
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "tf_keras": "2.21.0",
}
FINE = NodeFacts(
    hostname="h",
    version_by_name=VERSIONS,
    missing_modules=(),
    found_paths=(),
    disk_free_bytes_by_folder={"/tmp": 10**10},
    memory_free_bytes=8 * 10**9,
    shm_bytes=10**9,
    allowed_cpus=8.0,
    port=1,
)
A, B = a_node(0), a_node(1)


def found(b: NodeFacts = FINE, a: NodeFacts = FINE, **more: Any) -> Findings:
    """The driver on node A, with what A and B say."""
    return Findings((A, B), A.id, replace(a, port=0), {A.id: a, B.id: b}, **more)


def only(findings: Findings, needs: ScriptNeeds | None = None) -> Problem:
    (problem,) = diagnose(findings, needs or ScriptNeeds())
    return problem


def with_version(name: str, version: str | None) -> NodeFacts:
    versions = {**VERSIONS, name: version}
    return replace(FINE, version_by_name={k: v for k, v in versions.items() if v is not None})


def test_equal_nodes_have_no_problem() -> None:
    assert diagnose(found(), ScriptNeeds()) == ()
    assert set(levels(found(), ())[B.id].values()) == {"ok"}


@pytest.mark.parametrize("name", ["python", "ray", "tensorflow", "keras", "launch"])
def test_another_version_makes_a_node_unfit(name: str) -> None:
    problem = only(found(with_version(name, "1.0")))
    assert (problem.node, problem.check, problem.level) == (B.id, "versions", "fail")
    assert f"1.0, the driver {VERSIONS[name]}: " in problem.text


def test_a_missing_package_says_what_to_install() -> None:
    problem = only(found(with_version("tensorflow", None)))
    assert problem.text == (
        "has no TensorFlow, the driver 2.21.0: pip install tensorflow==2.21.0 there"
    )


def test_another_tf_keras_is_a_warning() -> None:
    assert only(found(with_version("tf_keras", None))).level == "warn"


@pytest.mark.parametrize(
    ("facts", "check", "level", "said"),
    [
        ({"disk_free_bytes_by_folder": {"/tmp": 5 * 10**8}}, "disk", "warn", "free in /tmp"),
        ({"disk_free_bytes_by_folder": {"/tmp": 10**6}}, "disk", "fail", "free in /tmp"),
        ({"memory_free_bytes": 4 * 10**8}, "memory", "warn", "of memory free"),
        ({"shm_bytes": 64 * 10**6}, "memory", "warn", "/dev/shm"),
        ({"allowed_cpus": 0.45}, "cpus", "note", "may use 0.45 CPUs, and Ray counts"),
    ],
)
def test_scarce_room_is_told(facts: dict[str, Any], check: str, level: str, said: str) -> None:
    problem = only(found(replace(FINE, **facts)))
    assert (problem.check, problem.level) == (check, level)
    assert said in problem.text


def test_what_the_system_does_not_tell_is_no_problem() -> None:
    unknown = replace(FINE, memory_free_bytes=None, shm_bytes=None, allowed_cpus=None)
    assert diagnose(found(unknown), ScriptNeeds()) == ()


def test_a_clock_that_is_off_is_a_warning_with_its_direction() -> None:
    contacts = (Contact(A.id, 0.0, 0.001), Contact(B.id, -3.21, 0.05))
    problem = only(found(from_driver=contacts))
    assert (problem.node, problem.check, problem.level) == (B.id, "clock", "warn")
    assert "a clock 3.2 s behind the driver's" in problem.text


def test_a_slow_path_alone_does_not_make_a_clock_wrong() -> None:
    assert diagnose(found(from_driver=(Contact(B.id, 1.4, 1.0),)), ScriptNeeds()) == ()


def test_a_module_that_one_node_lacks_makes_it_unfit() -> None:
    problem = only(found(replace(FINE, missing_modules=("PIL",))), ScriptNeeds(("PIL",)))
    assert (problem.check, problem.level, problem.everywhere) == ("modules", "fail", False)
    assert "pip install pillow there" in problem.text


def test_a_module_that_only_the_driver_has_is_missing_on_every_node() -> None:
    without = replace(FINE, missing_modules=("x",))
    findings = replace(found(without, without), mine=FINE)
    problems = diagnose(findings, ScriptNeeds(("x",)))
    assert [(p.node, p.everywhere) for p in problems] == [(A.id, False), (B.id, False)]


def test_a_module_that_nobody_has_is_the_scripts_own_affair() -> None:
    without = replace(FINE, missing_modules=("x",))
    problems = diagnose(found(without, without), ScriptNeeds(("x",)))
    assert [(p.level, p.everywhere) for p in problems] == [("fail", True), ("fail", True)]


def paths(need: PathNeed, *, driver: bool, b: bool, root: Path | None = None) -> list[Problem]:
    has, lacks = replace(FINE, found_paths=(need.path,)), FINE
    findings = found(has if b else lacks, has if driver else lacks)
    return list(diagnose(findings, ScriptNeeds((), (need,), root)))


def test_an_argument_that_only_the_drivers_machine_has_makes_the_others_unfit() -> None:
    (problem,) = paths(PathNeed("/mnt/x", "--data", "input"), driver=True, b=False)
    assert (problem.node, problem.check, problem.level) == (B.id, "paths", "fail")
    assert problem.text.startswith("lacks /mnt/x (--data), which the driver's machine has: mount")
    (unknown,) = paths(PathNeed("/mnt/x", "argument 1"), driver=True, b=False)
    assert unknown.level == "fail"


def test_a_path_in_the_source_is_a_warning() -> None:
    need = PathNeed("/mnt/x", "train.py:3", is_argument=False)
    (problem,) = paths(need, driver=True, b=False)
    assert problem.level == "warn"


def test_an_output_never_makes_a_node_unfit() -> None:
    assert paths(PathNeed("/tmp/o", "--out", "output"), driver=True, b=False) == []
    assert paths(PathNeed("/tmp/o", "--out", "output"), driver=False, b=True) == []


def test_a_path_that_is_nowhere_is_yet_to_be_made() -> None:
    assert paths(PathNeed("/tmp/new", "--run"), driver=False, b=False) == []


def test_a_path_that_the_driver_lacks_is_told_too() -> None:
    (problem,) = paths(PathNeed("/mnt/x", "--data", "input"), driver=False, b=True)
    assert (problem.node, problem.level) == (A.id, "fail")
    assert f"which {B.ip} has" in problem.text
    (unknown,) = paths(PathNeed("/mnt/x", "--run"), driver=False, b=True)
    assert unknown.level == "warn"


def test_a_path_in_the_shipped_folder_is_better_relative() -> None:
    need = PathNeed("/project/data/x.csv", "--data", "input")
    (problem,) = paths(need, driver=True, b=False, root=Path("/project"))
    assert "name it as data/x.csv" in problem.text


def test_a_silent_node_is_unfit_and_no_more_is_said_of_it() -> None:
    findings = Findings((A, B), A.id, FINE, {A.id: FINE}, {B.id: "it is gone"})
    problem = only(findings)
    assert (problem.check, problem.level) == ("answers", "fail")
    row = levels(findings, (problem,))[B.id]
    assert row["answers"] == "fail"
    assert {row[check] for check in CHECKS if check != "answers"} == {None}


def test_a_driver_that_reaches_no_node_is_to_blame() -> None:
    contacts = {A.id: (Contact(B.id, 0.0, 0.1),), B.id: (Contact(A.id, 0.0, 0.1),)}
    met = tuple(Contact(node.id, error="refused") for node in (A, B))
    findings = replace(found(contacts_by_node=contacts, from_driver=met), driver="elsewhere")
    problem = only(findings)
    assert (problem.node, problem.check, problem.level) == ("elsewhere", "ports", "fail")
