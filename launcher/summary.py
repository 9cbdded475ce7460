"""Cluster and script, in a line or two each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from launcher import figures as f
from launcher.layout import labelled, letters_of
from policies.schema import Decision, Node, Workload
from policies.wording import size

MAX_LEGEND = 12


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
    if len(pieces) > MAX_LEGEND:
        pieces = [*pieces[:MAX_LEGEND], f"… {len(pieces) - MAX_LEGEND} more"]
    return labelled("nodes", pieces, "", width)


def script_text(
    workload: Workload, versions: Mapping[str, str], width: int, basis: str = "measured"
) -> Text:
    """The script in a line: size, gradients, steps."""
    name = {"keras": "Keras", "tf_keras": "tf_keras"}[workload.framework]
    version = ".".join(versions.get(workload.framework, "").split(".")[:2])
    pieces = [
        f"{name} {version}".strip(),
        f"{f.count_text(workload.n_params)} parameters",
        f"{size(workload.payload_bytes)} gradients",
    ]
    for fit in workload.fits:
        upto = "up to " if fit.early_stopping else ""
        pieces.append(f"batch {fit.global_batch:,}")
        pieces.append(f"{upto}{fit.epochs:,} × {fit.steps:,} step{'' if fit.steps == 1 else 's'}")
    if workload.exactness == "statistical":
        pieces.append(f"same curve up to chance ({', '.join(workload.rounding) or 'dropout'})")
    return labelled("script", pieces, basis, width)
