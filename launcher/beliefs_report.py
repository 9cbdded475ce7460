"""What people read of the policy's beliefs: links, steps by n, start-ups."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher import figures as f
from launcher.layout import fitting, labelled, letter_ranges, plain_table, print_table, sentence
from launcher.network_text import network_text
from launcher.record import RunRecord, parse_timestamp
from launcher.report import print_damaged
from launcher.runs import Runs
from launcher.summary import cluster_text, legend_text, node_letters, script_text
from policies.beliefs import Beliefs, Evidence, LinkClass, MeasuredStep, PlanBelief
from policies.schema import Interval
from policies.wording import exchange_name

LINKS = (
    "round trip (jitter and losses counted in) and bandwidth from the probe; latency one way and "
    "bandwidth that training reaches predicted, with 90 % intervals"
)
STEPS = (
    "step, efficiency (speed-up over one worker, divided by n) and start-up predicted, with 90 % "
    "intervals; measured: the mean of runs with a plan alike"
)


def print_beliefs(
    console: Console, record: RunRecord, beliefs: Beliefs, runs: Runs, now: datetime
) -> None:
    """All that the policy believes of the cluster and the script of a run."""
    nodes = record.cluster.nodes if record.cluster is not None else ()
    letters = node_letters(nodes, None)
    width = console.width
    age = f.age_text((now - parse_timestamp(record.created)).total_seconds())
    console.print(f"as of {beliefs.run} · {record.request.script.name} · {age}", style="bold")
    how = record.cluster.how if record.cluster is not None else ""
    console.print(cluster_text(how, nodes, width), soft_wrap=True)
    if len(nodes) > 1:
        console.print(legend_text(letters, nodes, width), soft_wrap=True)
    console.print(network_text(record.network, letters, width), soft_wrap=True)
    if record.workload is not None:
        console.print(script_text(record.workload, record.versions, width), soft_wrap=True)
    console.print(_evidence_text(beliefs, width), soft_wrap=True)
    _print_links(console, beliefs.links, letters)
    _print_plans(console, beliefs.plans)
    _print_node_starts(console, beliefs)
    print_damaged(console, runs.damaged)


def print_no_beliefs(console: Console, runs: Runs) -> None:
    """What to say where no run tells of a cluster."""
    if runs.records:
        n = len(runs.records)
        those = "The run here" if n == 1 else f"None of the {n:,} runs here"
        got = "did not get" if n == 1 else "got"
        console.print(f"{those} {got} so far as to know its cluster and its script.")
    else:
        console.print("No runs yet, so nothing is known of a cluster. Start one: launch train.py")
    print_damaged(console, runs.damaged)


def _evidence_text(beliefs: Beliefs, width: int) -> Text:
    found = beliefs.evidence
    pieces = [_count(found), beliefs.policy]
    if found.n_own_runs:
        pieces.insert(1, f"{found.n_own_runs} of this script")
    if beliefs.knows_sweep:
        pieces.insert(-1, "a sweep that ships with the launcher")
    if beliefs.changed_at_s is not None:
        moment = datetime.fromtimestamp(beliefs.changed_at_s, UTC)
        pieces.append(
            f"the cluster changed on {moment:%Y-%m-%d}: what was measured before hardly counts"
        )
    return labelled("rests on", pieces, "", width)


def _count(found: Evidence) -> str:
    if not found.n_segments:
        return "no run that was timed"
    noun = "stretch" if found.n_segments == 1 else "stretches"
    runs = "run" if found.n_runs == 1 else "runs"
    return f"{found.n_segments:,} {noun} of training in {found.n_runs:,} {runs}"


def _print_links(
    console: Console, classes: Sequence[LinkClass], letters: Mapping[str, str]
) -> None:
    if not classes:
        return
    table = plain_table(2)
    for name in ("links", "round trip", "bandwidth", "basis", "exchange", "one way", "reached"):
        table.add_column(name, no_wrap=True, header_style="bold")
    for each in classes:
        probed = [f.time_text(each.rtt_s), f.bandwidth_text(each.bandwidth_bytes_per_s), each.basis]
        first = [_ends(each, letters), *probed]
        for reached in each.reached:
            got = f.bandwidth_interval(reached.bandwidth_bytes_per_s)
            table.add_row(*first, reached.strategy, f.time_interval(reached.latency_s), got)
            first = ["", "", "", ""]
    console.print()
    print_table(console, table)
    console.print(sentence(LINKS, console.width), soft_wrap=True, style="dim")


def _ends(each: LinkClass, letters: Mapping[str, str]) -> str:
    """`a–c`, `a–c to d`, or `between groups` where each end may be any."""
    src, dst = ([letters.get(node, "?") for node in end] for end in (each.src, each.dst))
    if each.src != each.dst:
        return f"{letter_ranges(src)} to {letter_ranges(dst)}"
    return "between groups" if each.is_between else letter_ranges(src)


def _print_plans(console: Console, plans: Sequence[PlanBelief]) -> None:
    def variant(gap: int, *, names: bool) -> Callable[[], Table]:
        return lambda: _plans(plans, gap, names=names)

    console.print()
    variants = [variant(2, names=True), variant(2, names=False), variant(1, names=False)]
    print_table(console, fitting(console, variants))
    console.print(sentence(STEPS, console.width), soft_wrap=True, style="dim")


def _plans(plans: Sequence[PlanBelief], gap: int, *, names: bool) -> Table:
    table = plain_table(gap)
    for name in ("n", "exchange", "step", "measured", "efficiency", "start-up"):
        align = "right" if name == "n" else "left"
        table.add_column(name, justify=align, no_wrap=True, header_style="bold")  # type: ignore[arg-type]
    for each in plans:
        table.add_row(
            f"{each.plan.n_workers:,}",
            exchange_name(each.plan),
            f.time_interval(each.step_s),
            _measured_text(each.measured, names=names),
            _percent_interval(each.efficiency) if each.plan.n_workers > 1 else "",
            f.time_interval(each.startup_s),
        )
    return table


def _measured_text(measured: MeasuredStep | None, *, names: bool) -> str:
    """`71 ms in brave-otter, tidy-fox`."""
    if measured is None:
        return "–"
    n = len(measured.runs)
    where = f"{n} run{'' if n == 1 else 's'}"
    if names and n <= 2:
        where = ", ".join(measured.runs)
    return f"{f.time_text(measured.step_s)} in {where}"


def _percent_interval(x: Interval) -> str:
    if x.mean < 0.01:
        return "under 1 %"
    return f"{100 * x.mean:.0f} % ({100 * x.low:.0f}–{100 * x.high:.0f})"


def _print_node_starts(console: Console, beliefs: Beliefs) -> None:
    for each in beliefs.node_starts:
        seen = f"seen {each.n_seen} time{'' if each.n_seen == 1 else 's'}"
        text = (
            f"{each.node_type} nodes join after {f.time_interval(each.took_s)}: predicted, {seen}"
        )
        console.print(text, soft_wrap=True)
