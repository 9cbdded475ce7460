"""What people read: cluster, network and script in a line each, candidates, outcome, runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher import figures as f
from launcher.layout import (
    fitting,
    labelled,
    letter_ranges,
    letters_of,
    plain_table,
    print_table,
    ring_text,
    sentence,
    shortened,
)
from launcher.record import RunRecord, parse_timestamp, shown_status
from launcher.runs import Runs
from policies.schema import Candidate, Decision, Link, Network, Node, Workload
from policies.wording import dollars, percent

FITS = 0.9  # DESIGN: a plan fits when it keeps the limit with this probability
NEAR = 4.0  # nodes whose round trip is within this factor of the shortest form a group
NEAR_S = 1e-3  # … or below this
STYLE_BY_STATUS = {"done": "green", "running": "cyan", "failed": "red", "lost": "red"}


def node_letters(nodes: Iterable[Node], decision: Decision | None) -> dict[str, str]:
    """Letters for all nodes: the chosen plan's in rank order, then the others."""
    chosen = decision.chosen.nodes if decision else ()
    return letters_of([*chosen, *(node.id for node in nodes)])


def cluster_text(how: str, nodes: Sequence[Node], width: int) -> Text:
    """How the cluster was found, and its nodes by kind with their price."""
    kinds = Counter((node.kind, node.price_usd_per_h, node.price_source) for node in nodes)
    pieces = [how, f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"]
    for (kind, price, source), n in kinds.items():
        cost = "own machine, $0" if source == "own machine" else f"{f.price_text(price)}, {source}"
        pieces.append(f"{n} × {kind} ({cost})")
    return labelled("cluster", [piece for piece in pieces if piece], "", width)


def legend_text(letters: Mapping[str, str], nodes: Sequence[Node], width: int) -> Text:
    """Which node each letter stands for."""
    by_id = {node.id: node for node in nodes}
    pieces = [
        f"{letter} {by_id[node].ip} ({node[:6]})"
        for node, letter in letters.items()
        if node in by_id
    ]
    if len(pieces) > 12:
        pieces = [*pieces[:11], f"… {len(pieces) - 11} more"]
    return labelled("nodes", pieces, "", width)


def network_text(network: Network | None, letters: Mapping[str, str], width: int) -> Text:
    """The network in a line: groups of near nodes, the ways between them, what is silent."""
    if network is None:
        return labelled("network", ["not known"], "assumed", width)
    between = [link for link in network.links if link.src != link.dst]
    pairs = len({frozenset((link.src, link.dst)) for link in between})
    took = f"in {f.time_text(network.took_s)}"
    pieces = [f"{pairs} link{'' if pairs == 1 else 's'} {took}" if pairs else "one node"]
    pieces += _group_pieces(between, letters)
    if not pairs:
        pieces += [f"loopback {_way(list(network.links))}"] if network.links else []
    if network.silent:
        silent = letter_ranges([letters.get(node, "?") for node in network.silent])
        pieces.append(f"no answer from {silent}")
    assumed = any(link.basis == "assumed" for link in between)
    return labelled("network", pieces, "partly assumed" if assumed else "measured", width)


def script_text(
    workload: Workload, versions: Mapping[str, str], width: int, basis: str = "measured"
) -> Text:
    """The script in a line: size, gradients, steps."""
    name = {"keras": "Keras", "tf_keras": "tf_keras"}[workload.framework]
    version = ".".join(versions.get(workload.framework, "").split(".")[:2])
    pieces = [
        f"{name} {version}".strip(),
        f"{f.count_text(workload.n_params)} parameters",
        f"{f.size_text(workload.payload_bytes)} gradients",
    ]
    for fit in workload.fits:
        upto = "up to " if fit.early_stopping else ""
        pieces.append(f"batch {fit.global_batch:,}")
        pieces.append(f"{upto}{fit.epochs:,} × {fit.steps:,} step{'' if fit.steps == 1 else 's'}")
    if workload.exactness == "statistical":
        pieces.append(f"same curve up to chance ({', '.join(workload.rounding) or 'dropout'})")
    return labelled("script", pieces, basis, width)


def print_decision(
    console: Console,
    decision: Decision,
    letters: Mapping[str, str],
    spent_s: float = 0.0,
    spent_usd: float = 0.0,
) -> None:
    """The candidates as a table, and the reason.

    Args:
        letters: short names of the nodes.
        spent_s: time already spent, which comes on top of the candidates' (seconds).
        spent_usd: money already spent, which comes on top.
    """

    def variant(gap: int, *, exchange: bool, bounds: bool) -> Callable[[], Table]:
        return lambda: _candidates(decision, letters, gap, exchange=exchange, bounds=bounds)

    variants = [
        variant(2, exchange=True, bounds=True),
        variant(1, exchange=True, bounds=True),
        variant(1, exchange=False, bounds=True),
        variant(1, exchange=False, bounds=False),
    ]
    print_table(console, fitting(console, variants))
    caption = "step, time and cost predicted, with 90 % intervals"
    if spent_s >= 1:
        caption += f"; {f.clock_text(spent_s)}"
        caption += f" and {dollars(spent_usd)} spent before" if spent_usd else " spent before"
    console.print(f"    {caption}", style="dim", soft_wrap=True)
    console.print()
    console.print(sentence(decision.reason, console.width), soft_wrap=True, highlight=False)
    for note in decision.notes:
        console.print(sentence(note, console.width), soft_wrap=True, style="dim", highlight=False)


def print_outcome(console: Console, record: RunRecord, *, is_explained: bool = False) -> None:
    """How the run ended, what it took against what was predicted, and what to do next.

    With `is_explained` it does not point at `launch explain`.
    """
    text = Text(_ending(record), style=STYLE_BY_STATUS.get(record.status, "yellow"))
    pieces = list(_totals(record))
    if record.outcome is not None:
        shown = {k: v for k, v in record.outcome.metrics.items() if k != "loss"} or dict(
            record.outcome.metrics
        )
        pieces += [f"{name} {f.metric_text(value)}" for name, value in list(shown.items())[-3:]]
    first, *others = pieces or [""]
    text.append(f" {first}" if first else "", style="default")
    for piece in others:
        text.append(f" · {piece}", style="default")
    console.print(text, soft_wrap=True, highlight=False)
    for label, value in _pointers(record, is_explained=is_explained):
        console.print(labelled(label, [value], "", console.width), soft_wrap=True, highlight=False)


def print_runs(console: Console, runs: Runs, now: datetime) -> None:
    """Every run: chosen n, what was predicted, what it took."""
    if not runs.records:
        console.print("No runs yet. Start one: launch train.py --budget 5", highlight=False)

    def variant(gap: int, script: int, *, when: bool) -> Callable[[], Table]:
        return lambda: _runs(runs.records, now, gap, script, when=when)

    if runs.records:
        variants = [
            variant(2, 40, when=True),
            variant(2, 16, when=True),
            variant(1, 12, when=True),
            variant(1, 10, when=False),
        ]
        print_table(console, fitting(console, variants))
    for text in runs.damaged:
        console.print(sentence(f"warning: {text}", console.width), soft_wrap=True, style="yellow")


def predicted(record: RunRecord) -> tuple[float, float] | None:
    """Time (s) and cost (USD) of the whole run as first predicted."""
    if not record.decisions:
        return None
    entry = record.decisions[0]
    prediction = entry.decision.candidate.prediction
    return prediction.time_s.mean + entry.spent_s, prediction.cost_usd.mean + entry.spent_usd


def _candidates(
    decision: Decision, letters: Mapping[str, str], gap: int, *, exchange: bool, bounds: bool
) -> Table:
    table = plain_table(gap)
    unsure = any(candidate.p_fits < FITS for candidate in decision.candidates)
    names = ["", "n", "nodes", *(["exchange"] if exchange else []), "step", "time", "cost"]
    for name in [*names, *(["fits"] if unsure else [])]:
        align = "right" if name == "n" else "left"
        table.add_column(name, justify=align, no_wrap=True, header_style="bold")  # type: ignore[arg-type]
    for candidate in decision.candidates:
        chosen = candidate.plan == decision.chosen
        cells = _cells(candidate, letters, exchange=exchange, bounds=bounds)
        if unsure:
            cells.append(percent(candidate.p_fits))
        style = "bold green" if chosen else "dim" if candidate.p_fits < FITS else ""
        table.add_row(" ✔" if chosen else "", *cells, style=style)
    return table


def _cells(
    candidate: Candidate, letters: Mapping[str, str], *, exchange: bool, bounds: bool
) -> list[str]:
    plan, prediction = candidate.plan, candidate.prediction
    money = prediction.cost_usd
    return [
        f"{plan.n_workers:,}",
        ring_text(plan.nodes, letters),
        *([plan.strategy if plan.n_workers > 1 else "–"] if exchange else []),
        f.time_interval(prediction.step_s),
        f.time_interval(prediction.time_s),
        f.money_interval(money) if bounds else dollars(money.mean),
    ]


def _runs(
    records: Sequence[RunRecord], now: datetime, gap: int, script: int, *, when: bool
) -> Table:
    table = plain_table(gap)
    columns = ["run", "status", "script", "n", "time (predicted)", "cost (predicted)"]
    for name in [*columns, *(["when"] if when else [])]:
        align = "right" if name == "n" else "left"
        table.add_column(name, justify=align, no_wrap=True, header_style="bold")  # type: ignore[arg-type]
    for record in records:
        status = shown_status(record, now)
        decision = record.decision
        foreseen = predicted(record)
        time = "–" if record.outcome is None else f.time_text(record.outcome.time_s)
        age_s = (now - parse_timestamp(record.created)).total_seconds()
        cells: list[str | Text] = [
            record.run,
            Text(status, style=STYLE_BY_STATUS.get(status, "yellow")),
            shortened(record.request.script.name, script),
            "–" if decision is None else str(decision.chosen.n_workers),
            time if foreseen is None else f"{time} ({f.time_text(foreseen[0])})",
            _cost_cell(record, foreseen),
            *([f.age_text(age_s)] if when else []),
        ]
        table.add_row(*cells)
    return table


def _cost_cell(record: RunRecord, foreseen: tuple[float, float] | None) -> str:
    cost = dollars(record.cost_usd)
    return cost if foreseen is None else f"{cost} ({dollars(foreseen[1])})"


def _ending(record: RunRecord) -> str:
    if not record.segments and record.status != "done":
        return f"{record.status} before training began"
    return {
        "done": "done",
        "budget": "stopped at the budget",
        "deadline": "stopped at the deadline",
        "interrupted": "interrupted",
        "failed": "failed",
        "running": "running",
    }.get(record.status, record.status)


def _totals(record: RunRecord) -> Iterator[str]:
    if record.outcome is None or not record.segments:
        return
    outcome, foreseen = record.outcome, predicted(record)
    text = f"in {f.clock_text(outcome.time_s)} for {dollars(outcome.cost_usd)}"
    if foreseen is not None:
        text += f" (predicted {f.time_text(foreseen[0])}, {dollars(foreseen[1])})"
    yield text


def _pointers(record: RunRecord, *, is_explained: bool) -> Iterator[tuple[str, str]]:
    """Where things are, and which command comes next."""
    outcome = record.outcome
    if outcome is not None and outcome.model:
        yield "model", outcome.model
    if outcome is not None and outcome.artifacts:
        yield "files", outcome.artifacts
    if record.status in {"budget", "deadline", "interrupted"} and record.checkpoints:
        limit = "--deadline 30m" if record.status == "deadline" else "--budget 5"
        option = "" if record.status == "interrupted" else f" {limit}"
        yield "go on", f"launch resume {record.run}{option}"
    if record.decision is not None and record.segments and not is_explained:
        yield f"why {record.decision.chosen.n_workers}?", f"launch explain {record.run}"


def _group_pieces(links: Sequence[Link], letters: Mapping[str, str]) -> list[str]:
    """`a–d 0.4 ms, 4.8 Gbit/s`, then `to e, f 41 ms, 180 Mbit/s`."""
    known = [link for link in links if link.rtt_s is not None]
    if not known:
        return []
    groups = near_groups(known)
    pieces = []
    for group in groups:
        inside = [link for link in known if link.src in group and link.dst in group]
        if inside:
            pieces.append(f"{_names(group, letters)} {_way(inside)}")
    first, *others = groups
    if len(others) <= 3:
        for group in others:
            across = [k for k in known if {k.src, k.dst} & group and {k.src, k.dst} & first]
            pieces += [f"to {_names(group, letters)} {_way(across)}"] if across else []
    else:
        across = [k for k in known if not any({k.src, k.dst} <= group for group in groups)]
        pieces.append(f"between {len(groups)} groups {_way(across)}")
    return pieces


def near_groups(links: Sequence[Link]) -> list[set[str]]:
    """Sets of nodes that are near each other, the largest first."""
    shortest = min(link.rtt_s for link in links if link.rtt_s is not None)
    limit_s = max(NEAR * shortest, NEAR_S)
    groups: list[set[str]] = []
    for link in links:
        near = link.rtt_s is not None and link.rtt_s <= limit_s
        for ends in [{link.src, link.dst}] if near else [{link.src}, {link.dst}]:
            touching = [group for group in groups if group & ends]
            groups = [group for group in groups if not group & ends]
            groups.append(ends.union(*touching))
    return sorted(groups, key=lambda group: (-len(group), min(group)))


def _names(group: Iterable[str], letters: Mapping[str, str]) -> str:
    return letter_ranges([letters.get(node, "?") for node in group])


def _way(links: Sequence[Link]) -> str:
    """The median round trip and bandwidth of links, and their loss if there is any."""
    rtt = [link.rtt_s for link in links if link.rtt_s is not None]
    rates = [k.bandwidth_bytes_per_s for k in links if k.bandwidth_bytes_per_s is not None]
    losses = [link.loss for link in links if link.loss]
    parts = [f.time_text(median(rtt))] if rtt else []
    parts += [f.bandwidth_text(median(rates))] if rates else []
    parts += [f"loss {100 * max(losses):.1f} %"] if losses and max(losses) >= 5e-4 else []
    return ", ".join(parts)
