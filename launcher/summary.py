"""Cluster and script, in a line or two each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from launcher import figures as f
from launcher.layout import labelled, letter_ranges, letters_of
from policies.schema import Decision, Node, Workload
from policies.wording import size

MAX_LEGEND = 12


def node_letters(nodes: Iterable[Node], decision: Decision | None) -> dict[str, str]:
    """Letters for all nodes: the chosen plan's in rank order, then the others."""
    chosen = decision.chosen.nodes if decision else ()
    return letters_of([*chosen, *(node.id for node in nodes)])


def nodes_to_show(nodes: Iterable[Node], decision: Decision | None) -> tuple[Node, ...]:
    """All nodes that are up, and those to be started that a candidate has."""
    candidates = decision.candidates if decision else ()
    named = {node for candidate in candidates for node in candidate.plan.nodes}
    return tuple(node for node in nodes if node.is_up or node.id in named)


def cluster_text(how: str, nodes: Sequence[Node], width: int) -> Text:
    """How the cluster was found, and its nodes by kind with their price."""
    up = [node for node in nodes if node.is_up]
    kinds = Counter((node.kind, _cost(node)) for node in up)
    new = Counter((node.node_type or node.kind, _cost(node)) for node in nodes if not node.is_up)
    pieces = [how, f"{len(up)} node{'' if len(up) == 1 else 's'}"]
    pieces += [f"{n} × {kind} ({cost})" for (kind, cost), n in kinds.items()]
    pieces += [f"up to {n} × {name} not started yet ({cost})" for (name, cost), n in new.items()]
    return labelled("cluster", [piece for piece in pieces if piece], "", width)


def _cost(node: Node) -> str:
    if node.price_source == "own machine":
        return "own machine, $0"
    return f"{f.price_text(node.price_usd_per_h)}, {node.price_source}"


def legend_text(letters: Mapping[str, str], nodes: Sequence[Node], width: int) -> Text:
    """Which node each letter stands for."""
    by_id = {node.id: node for node in nodes}
    shown = [(letter, by_id[node]) for node, letter in letters.items() if node in by_id]
    pieces = [f"{letter} {node.ip} ({node.id[:6]})" for letter, node in shown if node.is_up]
    if len(pieces) > MAX_LEGEND:
        pieces = [*pieces[:MAX_LEGEND], f"… {len(pieces) - MAX_LEGEND} more"]
    letters_by_type: dict[str, list[str]] = {}
    for letter, node in shown:
        if not node.is_up:
            letters_by_type.setdefault(node.node_type or node.kind, []).append(letter)
    for name, found in letters_by_type.items():
        pieces.append(f"{letter_ranges(found)} {name}, not started yet")
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
