"""Explain a run: candidates, why n and not n ± 1, the network map, and what happened."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher import figures as f
from launcher.data_text import brought_text
from launcher.layout import LABEL_WIDTH, plain_table, print_table, ring_text, sentence
from launcher.network_text import budget_text, network_text
from launcher.paths_used import print_paths
from launcher.record import DriftRecord, RunRecord, Segment, ShownStatus, parse_timestamp
from launcher.report import print_decision, print_outcome
from launcher.summary import cluster_text, legend_text, node_letters, script_text
from policies.schema import DEFAULT_PATH, Link, Network, Node
from policies.wording import dollars

MAX_MATRIX_NODES = 8


def print_explanation(
    console: Console, record: RunRecord, now: datetime, status: ShownStatus | None = None
) -> None:
    """All that is known of a run, in the order in which it came to be.

    Without a status the record's is shown.
    """
    letters = node_letters(record.cluster.nodes if record.cluster else (), record.decision)
    status = status or record.status
    goes_on = status in {"running", "detached"}
    _print_head(console, record, status, now)
    _print_measured(console, record, letters)
    if record.decision is None:
        text = (
            "No decision has been made yet." if goes_on else "It ended before a decision was made."
        )
        console.print(text)
    else:
        if len(record.decisions) > 1:
            console.print(f"\nthe last of {len(record.decisions)} decisions:", style="bold")
        console.print()
        last = record.decisions[-1]
        print_decision(console, last.decision, letters, last.spent_s, last.spent_usd)
        _print_reasons(console, record)
    if record.cluster is not None and record.network is not None:
        print_network(console, record.network, record.cluster.nodes, letters)
    _print_segments(console, record, letters, "running" if goes_on else "lost")
    print_paths(console, record.segments, letters)
    _print_events(console, record)
    console.print()
    print_outcome(console, record, is_explained=True)
    if record.outcome is not None and record.outcome.error:
        console.print(Text(record.outcome.error, style="red"), soft_wrap=True)


def print_probe(console: Console, how: str, nodes: tuple[Node, ...], network: Network) -> None:
    """What a probe of the cluster found."""
    letters = node_letters(nodes, None)
    width = console.width
    console.print(cluster_text(how, nodes, width), soft_wrap=True)
    console.print(legend_text(letters, nodes, width), soft_wrap=True)
    console.print(network_text(network, letters, width), soft_wrap=True)
    console.print(budget_text(network, width), soft_wrap=True)
    print_network(console, network, nodes, letters)


def print_network(
    console: Console, network: Network, nodes: tuple[Node, ...], letters: Mapping[str, str]
) -> None:
    """The map of each network as a matrix: round trips above the diagonal, bandwidth below."""
    up = [node for node in nodes if node.is_up]
    order = [node.id for node in sorted(up, key=lambda n: list(letters).index(n.id))]
    if not 2 <= len(order) <= MAX_MATRIX_NODES:
        return
    paths = {DEFAULT_PATH: None} | {link.path: None for link in network.links}
    for path in paths:
        _print_path(console, [k for k in network.links if k.path == path], path, order, letters)


def _print_path(
    console: Console,
    links: Sequence[Link],
    path: str,
    order: Sequence[str],
    letters: Mapping[str, str],
) -> None:
    over = "" if path == DEFAULT_PATH else f" over {path}"
    title = f"network map{over}: round trip above the diagonal, bandwidth below"
    console.print(f"\n{title}", style="bold")
    link_by_ends = {(link.src, link.dst): link for link in links}
    table = plain_table(2)
    for name in ["from", *(letters[node] for node in order)]:
        table.add_column(name, no_wrap=True, justify="right")
    for row, src in enumerate(order):
        cells = [
            _cell(link_by_ends.get((src, dst)), is_upper=column > row) if row != column else "–"
            for column, dst in enumerate(order)
        ]
        table.add_row(letters[src], *cells)
    print_table(console, table)


def _cell(link: Link | None, *, is_upper: bool) -> str:
    if link is None or (link.rtt_s if is_upper else link.bandwidth_bytes_per_s) is None:
        return "?"
    mark = "~" if link.basis == "assumed" else ""
    if is_upper:
        return f"{mark}{f.time_text(link.rtt_s or 0.0)}"
    return f"{mark}{f.bandwidth_text(link.bandwidth_bytes_per_s or 0.0)}"


def _print_head(console: Console, record: RunRecord, status: ShownStatus, now: datetime) -> None:
    age = f.age_text((now - parse_timestamp(record.created)).total_seconds())
    request = record.request
    limits = []
    if request.budget_usd is not None:
        limits.append(f"budget {f.money_limit(request.budget_usd)}")
    if request.deadline_s is not None:
        limits.append(f"deadline {f.clock_text(request.deadline_s)}")
    words = [record.run, status, *limits, age]
    console.print(" · ".join(words), style="bold", soft_wrap=True)
    console.print(f"{'script':<{LABEL_WIDTH}}{request.script}", soft_wrap=True)


def _print_measured(console: Console, record: RunRecord, letters: Mapping[str, str]) -> None:
    width = console.width
    if record.cluster is not None:
        console.print(cluster_text(record.cluster.how, record.cluster.nodes, width), soft_wrap=True)
        if len(record.cluster.nodes) > 1:
            console.print(legend_text(letters, record.cluster.nodes, width), soft_wrap=True)
        console.print(network_text(record.network, letters, width), soft_wrap=True)
    if record.workload is not None:
        console.print(script_text(record.workload, record.versions, width), soft_wrap=True)
    if record.data is not None:
        console.print(brought_text(record.data, width), soft_wrap=True)


def _print_reasons(console: Console, record: RunRecord) -> None:
    """Why n and not n ± 1, and what each number rests on."""
    from policies.explain import explain

    situation = record.situation()
    if record.decision is None or situation is None:
        return
    try:
        explanation = explain(record.decision, situation)
    except (ValueError, KeyError, IndexError, StopIteration):
        console.print("(its reasons cannot be rebuilt from the record)", style="dim")
        return
    console.print()
    for text in explanation.sentences:
        console.print(sentence(text, console.width), soft_wrap=True)
    console.print("\nwhat the numbers rest on", style="bold")
    table = plain_table(2)
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True, style="dim")
    for fact in explanation.rests_on:
        table.add_row(fact.name, fact.value, fact.basis)
    console.print(table)


def _print_segments(
    console: Console, record: RunRecord, letters: Mapping[str, str], open_end: str
) -> None:
    """What happened under each plan; `open_end` stands where the end of one is not known."""
    if not record.segments:
        return
    console.print("\nwhat happened", style="bold")
    table: Table = plain_table(2)
    for name in ("", "n", "nodes", "steps", "step (predicted)", "start-up", "time", "cost", "end"):
        align = "right" if name in {"n", "steps"} else "left"
        table.add_column(name, no_wrap=True, justify=align)  # type: ignore[arg-type]
    for number, segment in enumerate(record.segments, 1):
        started = parse_timestamp(segment.started)
        first = segment.first_step_at
        table.add_row(
            f"{number}",
            f"{segment.plan.n_workers}",
            ring_text(segment.plan.nodes, letters),
            f"{segment.steps:,}",
            _step_cell(record, segment),
            _span(started, first),
            _span(started, segment.ended),
            dollars(segment.cost_usd),
            segment.end or open_end,
        )
    print_table(console, table)
    for number, segment in enumerate(record.segments, 1):
        if segment.drift is not None:
            text = f"{number}: {drift_text(segment.drift)}"
            console.print(sentence(text, console.width), soft_wrap=True, style="dim")


def drift_text(drift: DriftRecord) -> str:
    """How far apart workers were that waited for nobody (measured)."""
    times = "once" if drift.n_transfers == 1 else f"{drift.n_transfers:,} times"
    return (
        f"gradients were {drift.mean_staleness:.1f} steps old in the mean and {drift.oldest} at "
        f"most; {drift.n_dropped:,} were too old, and weights were taken over "
        f"{times} (measured, by the first worker)."
    )


def _step_cell(record: RunRecord, segment: Segment) -> str:
    """The typical step time, with the prediction of the decision that chose the plan."""
    step = "–" if segment.step_s is None else f.time_text(segment.step_s.typical_s)
    chosen = [d.decision for d in record.decisions if d.decision.chosen == segment.plan]
    if not chosen:
        return step
    return f"{step} ({f.time_text(chosen[-1].candidate.prediction.step_s.mean)})"


def _span(started: datetime, until: str | None) -> str:
    if until is None:
        return "–"
    return f.clock_text((parse_timestamp(until) - started).total_seconds())


def _print_events(console: Console, record: RunRecord) -> None:
    for event in record.events:
        if event.kind == "stage":
            continue  # for measuring, not for reading
        text = f"{event.kind}: {event.detail}" if event.detail else event.kind
        console.print(sentence(f"{event.at[11:19]}  {text}", console.width), soft_wrap=True)
