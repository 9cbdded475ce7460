"""Cluster, network and script, in a line or two each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from rich.text import Text

from launcher import figures as f
from launcher.layout import labelled, letter_ranges, letters_of
from policies.schema import Decision, Link, Network, Node, Workload
from policies.wording import size

NEAR = 4.0  # nodes whose round trip is within this factor of the shortest form a group
NEAR_S = 1e-3  # … or below this
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
        f"{size(workload.payload_bytes)} gradients",
    ]
    for fit in workload.fits:
        upto = "up to " if fit.early_stopping else ""
        pieces.append(f"batch {fit.global_batch:,}")
        pieces.append(f"{upto}{fit.epochs:,} × {fit.steps:,} step{'' if fit.steps == 1 else 's'}")
    if workload.exactness == "statistical":
        pieces.append(f"same curve up to chance ({', '.join(workload.rounding) or 'dropout'})")
    return labelled("script", pieces, basis, width)


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
