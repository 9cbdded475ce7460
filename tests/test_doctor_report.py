"""What `launch doctor` prints."""

import json
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from launcher.diagnosis import Findings
from launcher.doctor import Report
from launcher.doctor_report import MAX_ROWS, print_report, report_json
from launcher.problem import Problem
from launcher.worker.checkup import Contact, Needs, node_facts
from tests.fakes import a_node

FACTS = replace(node_facts(Needs(), None), hostname="host")


def a_report(n_nodes: int, *problems: Problem, silent: int | None = None, **more: Any) -> Report:
    nodes = tuple(replace(a_node(0), id=f"node-{i}", ip=f"10.0.0.{i}") for i in range(n_nodes))
    facts = {node.id: FACTS for i, node in enumerate(nodes) if i != silent}
    silence = {} if silent is None else {nodes[silent].id: "it is gone"}
    contacts = tuple(Contact(node.id, 0.25, 0.001) for node in nodes)
    found = Findings(nodes, nodes[0].id, FACTS, facts, silence, {}, contacts)
    return Report("joined 10.0.0.0:6379", found, problems, "/home/ada/launch", None, **more)


def printed(report: Report) -> list[str]:
    stream = StringIO()
    print_report(Console(file=stream, width=120, emoji=False, highlight=False), report)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def problem(index: int, level: Any, text: str = "has Ray 1.0: install it") -> Problem:
    return Problem(f"node-{index}", "versions", level, text)


def test_fit_nodes_are_a_table_of_ok_and_a_verdict() -> None:
    report = a_report(2)
    lines = printed(report)
    assert lines[0] == "cluster   joined 10.0.0.0:6379 · 2 nodes"
    assert lines[1].split() == [
        *("node", "versions", "ports", "clock", "disk", "memory", "cpus", "modules", "paths")
    ]
    assert lines[2].split() == ["10.0.0.0", "host", *["ok"] * 8]
    assert lines[-2] == "storage   /home/ada/launch · writable from this machine"
    assert lines[-1] == "All 2 nodes are fit to train."
    assert report.exit_code == 0


def test_problems_are_a_line_each_the_worst_first() -> None:
    report = a_report(3, problem(1, "warn", "has old NumPy"), problem(2, "fail"))
    lines = printed(report)
    assert lines[4].split()[:3] == ["10.0.0.2", "host", "FAIL"]
    assert lines[-3:] == [
        "FAIL 10.0.0.2: has Ray 1.0: install it.",
        "warn 10.0.0.1: has old NumPy.",
        "1 of 3 nodes is not fit to train.",
    ]
    assert report.exit_code == 4


def test_warnings_alone_leave_all_nodes_fit() -> None:
    report = a_report(1, problem(0, "warn"))
    assert printed(report)[-1] == "The node is fit to train."
    assert report.exit_code == 0


def test_of_many_nodes_those_without_a_problem_share_a_row() -> None:
    lines = printed(a_report(MAX_ROWS + 76, problem(7, "fail")))
    assert [line.split()[0] for line in lines[2:4]] == ["10.0.0.7", "99"]
    assert len(lines) < 10


def test_a_silent_node_has_no_other_results() -> None:
    report = a_report(2, Problem("node-1", "answers", "fail", "does not answer"), silent=1)
    assert printed(report)[3].split() == ["10.0.0.1", "FAIL", *["–"] * 8]


def test_a_storage_that_cannot_be_written_is_a_failure() -> None:
    report = replace(a_report(1), storage_error="/home/ada/launch cannot be written: full")
    assert report.exit_code == 4
    assert printed(report)[-2:] == [
        "FAIL /home/ada/launch cannot be written: full",
        "The nodes are fit to train, but nothing can be kept.",
    ]


def test_as_json_it_has_checks_facts_and_problems_of_every_node() -> None:
    document = json.loads(report_json(a_report(2, problem(1, "fail"))))
    assert document["fit"] is False
    node = document["nodes"][1]
    assert (node["ip"], node["checks"]["versions"], node["clock_offset_s"]) == (
        *("10.0.0.1", "fail", 0.25),
    )
    assert node["facts"]["hostname"] == "host"
    assert document["problems"][0]["text"] == "has Ray 1.0: install it"
