"""What went over each network of a segment: from the workers' reports to its record and a table."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from launcher import figures as f
from launcher.layout import plain_table, print_table
from launcher.plan_paths import paths_of
from launcher.record import PathRecord, Segment
from policies.schema import DEFAULT_PATH, Network, Plan

MAX_PAIR_ROWS = 240  # all pairs of 16 nodes over one network; beyond, one row per network


def paths_used(
    uses: Sequence[Mapping[str, Any]], plan: Plan, network: Network | None
) -> tuple[PathRecord, ...]:
    """The rows of a record, one per pair of nodes and network.

    Args:
        uses: fields of `worker.exchange.path_use.PathUse`.
        plan: under which the workers ran.
        network: that their addresses were taken from.
    """
    names = paths_of(plan, network)
    by_pair: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for use in uses:
        ends = plan.nodes[use["src"]], plan.nodes[use["dst"]]
        by_pair[*ends, names[use["path"]]].append(use)
    rows = [_row(*key, found) for key, found in by_pair.items()]
    return tuple(rows) if len(rows) <= MAX_PAIR_ROWS else _per_network(rows)


def _row(src: str, dst: str, path: str, uses: Sequence[Mapping[str, Any]]) -> PathRecord:
    """The workers of two nodes together; they send at the same time, so rates add up."""
    rates = [use["bytes_per_s"] for use in uses if use["bytes_per_s"]]
    return PathRecord(
        src,
        dst,
        path,
        sent_bytes=sum(use["sent_bytes"] for use in uses),
        busy_s=max(use["busy_s"] for use in uses),
        bytes_per_s=sum(rates) if rates else None,
        n_down=sum(use["n_down"] for use in uses),
    )


def _per_network(rows: Sequence[PathRecord]) -> tuple[PathRecord, ...]:
    """All pairs together; the rate is that of a pair on average."""
    found = []
    for path in dict.fromkeys(row.path for row in rows):
        own = [row for row in rows if row.path == path]
        rates = [row.bytes_per_s for row in own if row.bytes_per_s]
        found.append(
            PathRecord(
                None,
                None,
                path,
                sent_bytes=sum(row.sent_bytes for row in own),
                busy_s=sum(row.busy_s for row in own),
                bytes_per_s=sum(rates) / len(rates) if rates else None,
                n_down=sum(row.n_down for row in own),
            )
        )
    return tuple(found)


def print_paths(console: Console, segments: Sequence[Segment], letters: Mapping[str, str]) -> None:
    """What each pair sent over each network; nothing where there was one network."""
    rows = [(number, row) for number, one in enumerate(segments, 1) for row in one.paths]
    if not rows:
        return
    console.print("\nnetworks used", style="bold")
    table = plain_table(2)
    for name in ("", "from", "to", "network", "sent", "busy", "rate", "broke"):
        align = "right" if name in {"sent", "busy", "rate"} else "left"
        table.add_column(name, no_wrap=True, justify=align)  # type: ignore[arg-type]
    for number, row in rows:
        table.add_row(
            f"{number}",
            letters.get(row.src or "", "all"),
            letters.get(row.dst or "", "all"),
            "Ray's own" if row.path == DEFAULT_PATH else row.path,
            _bytes_text(row.sent_bytes),
            f.time_text(row.busy_s) if row.busy_s else "–",
            f.bandwidth_text(row.bytes_per_s) if row.bytes_per_s else "–",
            f"{row.n_down} ×" if row.n_down else "never",
        )
    print_table(console, table)


def _bytes_text(n_bytes: int) -> str:
    text = f.count_text(n_bytes)
    return f"{text}B" if " " in text else f"{text} B"
