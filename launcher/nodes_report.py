"""Show the nodes of a cluster that was brought up, and what they cost."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from launcher.bring_up import UpNode
from launcher.figures import price_text


def print_nodes(console: Console, nodes: Sequence[UpNode]) -> None:
    """A table of nodes, and what all of them cost an hour."""
    table = Table("node", "CPUs", "GPUs", "price", box=None)
    for node in nodes:
        price = f"{price_text(node.price.usd_per_h)} ({node.price.source})"
        table.add_row(node.address, f"{node.cpus:g}", f"{node.gpus:g}" if node.gpus else "–", price)
    console.print(table)
    total_usd_per_h = sum(node.price.usd_per_h for node in nodes)
    noun = "node" if len(nodes) == 1 else "nodes"
    console.print(f"{len(nodes)} {noun} up · {price_text(total_usd_per_h)} in all")
