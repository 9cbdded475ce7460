"""The network in a line or two: groups of near nodes, the ways between them, what is odd."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from statistics import median
from typing import Final

from rich.text import Text

from launcher import figures as f
from launcher.layout import labelled, letter_ranges
from policies.schema import DEFAULT_PATH, Link, Network
from policies.wording import size

NEAR: Final = 4.0  # nodes whose round trip is within this factor of the shortest form a group
NEAR_S: Final = 1e-3  # … or below this
FRESH_S: Final = 60.0  # an older map says its age


def network_text(
    network: Network | None, letters: Mapping[str, str], width: int, now: datetime | None = None
) -> Text:
    """The network in a line: groups of near nodes, the ways between them, what is silent.

    Args:
        network: the map, if there is one.
        letters: of all nodes.
        width: of the terminal, in columns.
        now: to tell the age of a map that was remembered.
    """
    if network is None:
        return labelled("network", ["not known"], "assumed", width)
    between = [link for link in network.links if link.src != link.dst]
    default = [link for link in between if link.path == DEFAULT_PATH]
    nodes = {node for link in network.links for node in (link.src, link.dst)}
    n_awake = len(nodes - set(network.silent))
    n_pairs, n_all = _n_pairs(default), n_awake * (n_awake - 1) // 2
    pieces = [_extent(n_pairs, n_all, network.took_s) if default else "one node"]
    pieces += _group_pieces(default, letters)
    if not default:
        pieces += [f"loopback {_way(list(network.links))}"] if network.links else []
    pieces += _further_pieces(between, letters)
    pieces += _odd_pieces(network, letters)
    measured = "partly assumed" if default and n_pairs < n_all else "measured"
    age_s = _age_s(network, now)
    return labelled(
        "network", pieces, measured + f" {f.age_text(age_s)}" * (age_s > FRESH_S), width
    )


def budget_text(network: Network, width: int) -> Text:
    """What the probe sent, and how much it might have."""
    sent, limit = size(network.sent_bytes), size(network.max_bytes)
    return labelled("sent", [f"{sent} of at most {limit}"], "measured", width)


def _extent(n_pairs: int, n_all: int, took_s: float) -> str:
    """`6 links in 2.1 s`, or `250 of 1,225 links in 4 s`."""
    count = f"{n_pairs:,}" if n_pairs >= n_all else f"{n_pairs:,} of {n_all:,}"
    return f"{count} link{'' if max(n_pairs, n_all) == 1 else 's'} in {f.time_text(took_s)}"


def _n_pairs(links: Sequence[Link]) -> int:
    return len({frozenset((k.src, k.dst)) for k in links if k.rtt_s is not None})


def _age_s(network: Network, now: datetime | None) -> float:
    if now is None or not network.probed_at:
        return 0.0
    return (now - datetime.fromisoformat(network.probed_at)).total_seconds()


def _further_pieces(between: Sequence[Link], letters: Mapping[str, str]) -> list[str]:
    """`over 10.98.0.0/24 a–c 0.5 ms, 940 Mbit/s`, for each further network."""
    further = [k for k in between if k.path != DEFAULT_PATH and k.rtt_s is not None]
    pieces = []
    for path, found in groupby(sorted(further, key=lambda k: k.path), key=lambda k: k.path):
        links = list(found)
        names = _names({k.src for k in links}, letters)
        pieces.append(f"over {path} {names} {_way(links)}")
    return pieces


def _odd_pieces(network: Network, letters: Mapping[str, str]) -> list[str]:
    """Silent nodes, and links on which others sent while they were measured."""
    pieces = []
    if network.silent:
        silent = letter_ranges([letters.get(node, "?") for node in network.silent])
        pieces.append(f"no answer from {silent}")
    busy = [link for link in network.links if link.other_bytes_per_s]
    if busy:
        most = f.bandwidth_text(max(link.other_bytes_per_s for link in busy))
        ends = _names({node for link in busy for node in (link.src, link.dst)}, letters)
        pieces.append(f"others sent up to {most} meanwhile ({ends}): bandwidth is what was left")
    return pieces


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
