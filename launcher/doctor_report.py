"""What `launch doctor` prints: a table of nodes and checks, a line per problem, the verdict."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.checkup import grouped
from launcher.diagnosis import Findings, levels
from launcher.doctor import Report
from launcher.layout import labelled, plain_table, print_table
from launcher.problem import CHECKS, LEVELS, Check, Level

MAX_ROWS = 24  # of more nodes, only those with problems are shown one by one
_SHOWN: Mapping[Level | None, str] = {
    "ok": "ok",
    "note": "note",
    "warn": "warn",
    "fail": "FAIL",
    None: "–",
}
_COLOURS: Mapping[Level | None, str] = {"warn": "yellow", "fail": "bold red"}


def print_report(console: Console, report: Report) -> None:
    """A table of nodes and checks, then a line per problem, then the verdict."""
    nodes = report.found.nodes
    n = len(nodes)
    pieces = [report.how, f"{n:,} node{'' if n == 1 else 's'}"]
    console.print(labelled("cluster", pieces, "", console.width), soft_wrap=True)
    print_table(console, _table(report))
    ip_by_node = {node.id: node.ip for node in nodes}
    state = "cannot be written" if report.storage_error else "writable from this machine"
    storage = labelled("storage", [report.storage, state], "", console.width)
    console.print(storage, soft_wrap=True)
    for level in reversed(LEVELS):
        chosen = [problem for problem in report.problems if problem.level == level]
        for line in grouped(chosen, ip_by_node):
            _print_line(console, level, line)
    if report.storage_error is not None:
        _print_line(console, "fail", report.storage_error)
    console.print(Text(_verdict(report)), soft_wrap=True)


def report_json(report: Report) -> str:
    """The report for machines."""
    found = report.found
    table = levels(found, report.problems)
    document: dict[str, Any] = {
        "cluster": report.how,
        "fit": report.exit_code == 0,
        "storage": {"uri": report.storage, "error": report.storage_error},
        "driver": asdict(found.mine),
        "nodes": [
            {
                "id": node.id,
                "ip": node.ip,
                "checks": table[node.id],
                "facts": asdict(found.facts_by_node[node.id])
                if node.id in found.facts_by_node
                else None,
                "clock_offset_s": _offset_s(found, node.id),
            }
            for node in found.nodes
        ],
        "problems": [asdict(problem) for problem in report.problems],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _table(report: Report) -> Table:
    table = plain_table(2)
    checks = _checks(report)
    for title in ("node", *checks):
        table.add_column(title)
    rows = levels(report.found, report.problems)
    for node in report.found.nodes:
        row = rows[node.id]
        if len(rows) <= MAX_ROWS or not _is_fine(row):
            facts = report.found.facts_by_node.get(node.id)
            name = node.ip if facts is None else f"{node.ip} {facts.hostname}"
            table.add_row(name, *(_cell(row[check]) for check in checks))
    n_fine = sum(_is_fine(row) for row in rows.values())
    if len(rows) > MAX_ROWS and n_fine:
        table.add_row(f"{n_fine:,} others", *(_cell("ok") for _ in checks))
    return table


def _checks(report: Report) -> Sequence[Check]:
    """The columns; whether nodes answer is one only where some do not."""
    return CHECKS if report.found.silence_by_node else CHECKS[1:]


def _is_fine(row: Mapping[Check, Level | None]) -> bool:
    return all(level == "ok" for level in row.values())


def _cell(level: Level | None) -> Text:
    return Text(_SHOWN[level], _COLOURS.get(level, ""))


def _print_line(console: Console, level: Level, text: str) -> None:
    console.print(Text(f"{_SHOWN[level]:<5}{text}", _COLOURS.get(level, "")), soft_wrap=True)


def _verdict(report: Report) -> str:
    n = len(report.found.nodes)
    if report.storage_error is not None and not report.n_unfit:
        return "The nodes are fit to train, but nothing can be kept."
    if not report.n_unfit:
        return "The node is fit to train." if n == 1 else f"All {n:,} nodes are fit to train."
    if n == 1:
        return "The node is not fit to train."
    verb = "is" if report.n_unfit == 1 else "are"
    return f"{report.n_unfit:,} of {n:,} nodes {verb} not fit to train."


def _offset_s(found: Findings, node: str) -> float | None:
    return next((each.offset_s for each in found.from_driver if each.node == node), None)
