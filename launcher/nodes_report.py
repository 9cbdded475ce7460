"""Show the nodes of a cluster that was brought up, what they cost and have cost."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from launcher.auto_down import Rule
from launcher.cluster_bill import BilledNode
from launcher.clusters import Status
from launcher.codec import Codec
from launcher.figures import clock_text, price_text
from launcher.head import UpNode
from policies.wording import dollars

CODEC = Codec()


def print_nodes(console: Console, nodes: Sequence[UpNode]) -> None:
    """A table of nodes, and what all of them cost an hour."""
    table = Table("node", "CPUs", "GPUs", "price", box=None)
    for node in nodes:
        price = f"{price_text(node.price.usd_per_h)} ({node.price.source})"
        table.add_row(node.address, f"{node.cpus:g}", f"{node.gpus:g}" if node.gpus else "–", price)
    console.print(table)
    total_usd_per_h = sum(node.price.usd_per_h for node in nodes)
    console.print(f"{_n_up(len(nodes))} · {price_text(total_usd_per_h)} in all")


def print_status(console: Console, status: Status) -> None:
    """What is up of a cluster, what an hour costs, what it has cost, and how it ends."""
    bill, entry = status.bill, status.entry
    console.print(f"{status.file.name} ({status.file.provider}) · {status.file.path}")
    if bill.nodes:
        table = Table(
            "node", "type", "CPUs", "GPUs", "price", "state", "paid for", "cost", box=None
        )
        for node in bill.nodes:
            table.add_row(*_cells(node))
        console.print(table)
    cost_usd = bill.cost_usd if bill.nodes or entry is None else entry.cost_usd
    spent = "" if cost_usd is None else f" · {dollars(cost_usd)} so far"
    if not bill.up and status.silence is None:
        console.print(f"nothing is up{spent.replace('so far', 'in all')}")
        return
    if bill.up:
        console.print(f"{_n_up(len(bill.up))} · {price_text(bill.usd_per_h)} in all{spent}")
    else:
        console.print(f"It is not known what is up{spent}")
    for line in _remarks(status):
        console.print(line)


def print_open(console: Console, statuses: Sequence[Status]) -> None:
    """The clusters that were brought up from here and are still up, and what they cost together."""
    left = [status for status in statuses if status.bill.up or status.silence is not None]
    for status in left:
        print_status(console, status)
        console.print()
    total_usd_per_h = sum(status.bill.usd_per_h for status in left)
    noun = "cluster" if len(left) == 1 else "clusters"
    console.print(
        f"{len(left)} {noun} up · {price_text(total_usd_per_h)} in all"
        if left
        else "No cluster that was brought up from here is up."
    )


def status_json(status: Status) -> dict[str, Any]:
    """The same for machines."""
    bill = status.bill
    return {
        "name": status.file.name,
        "file": str(status.file.path),
        "provider": status.file.provider,
        "nodes": [{**CODEC.encode(node), "cost_usd": node.cost_usd} for node in bill.nodes],
        "n_up": len(bill.up),
        "usd_per_h": bill.usd_per_h,
        "cost_usd": bill.cost_usd,
        "is_used": None if status.look is None else status.look.is_used,
        "silence": status.silence,
    }


def _cells(node: BilledNode) -> tuple[str, ...]:
    price = "unknown"
    if node.price is not None:
        price = f"{price_text(node.price.usd_per_h)} ({node.price.source})"
    return (
        node.name,
        node.node_type or "–",
        f"{node.cpus:g}",
        f"{node.gpus:g}" if node.gpus else "–",
        price,
        node.state,
        clock_text(node.paid_s),
        dollars(node.cost_usd) if node.price is not None else "?",
    )


def _remarks(status: Status) -> Iterator[str]:
    """Who uses it, and how it ends."""
    look, path = status.look, status.file.path
    if status.silence is not None:
        yield f"Its head does not answer: {status.silence}"
    elif look is not None and look.is_used:
        yield "in use"
    elif look is not None and look.used_at is not None:
        yield f"unused for {clock_text(max(0.0, look.now - look.used_at))}"
    rule = None if look is None else look.auto_down
    if rule is not None and rule.kept is not None:
        yield f"Its head stays up because {rule.kept}. Fetch them, then: launch down {path}"
    elif rule is not None and rule.is_alive:
        yield f"It goes down by itself {Rule(rule.idle_s, rule.when_done)}; now: launch down {path}"
    elif status.bill.up:
        yield f"It stays up until: launch down {path}"


def _n_up(n_nodes: int) -> str:
    return f"{n_nodes} {'node' if n_nodes == 1 else 'nodes'} up"
