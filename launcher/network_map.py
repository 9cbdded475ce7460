"""Which pairs of nodes meet when, and how links that were not measured are filled in."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from policies.schema import Link

Pair = tuple[str, str]


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """All pairs of nodes in rounds in which no node occurs twice.

    The circle method of round-robin tournaments: n − 1 rounds for an even n, n for an odd one.
    """
    if len(nodes) < 2:
        return []
    circle: list[str | None] = [*nodes]
    if len(circle) % 2:
        circle.append(None)
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        halves = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(a, b) for a, b in halves if a is not None and b is not None])
        circle.insert(1, circle.pop())
    return found


def complete(links: Mapping[Pair, Link], missing: Sequence[Pair]) -> list[Link]:
    """Links for pairs that were not measured, assumed from measured ones.

    Nodes lie in groups (rack, site, continent): two that both have a short way to a third have
    one to each other. So the path over the best third node counts: as round trip the longer of
    its two, as bandwidth the narrower. Without a common neighbour, the median of all links.

    Args:
        links: measured links by directed pair; those without a round trip are passed over.
        missing: directed pairs to fill in.

    Returns:
        One link per missing pair, `basis="assumed"`; its loss is not known.
    """
    near: defaultdict[str, dict[str, _Hop]] = defaultdict(dict)
    for (src, dst), link in links.items():
        if src != dst and link.rtt_s is not None:
            near[src][dst] = _Hop(link.rtt_s, link.jitter_s or 0.0, link.bandwidth_bytes_per_s)
    everywhere = _typical([hop for hops in near.values() for hop in hops.values()])
    return [_assumed(pair, near, everywhere) for pair in missing]


def silent_link(src: str, dst: str, path: str) -> Link:
    """A link of which nothing is known."""
    return Link(src, dst, path, None, None, None, None)


@dataclass(frozen=True, slots=True)
class _Hop:
    rtt_s: float
    jitter_s: float
    bytes_per_s: float | None


def _assumed(pair: Pair, near: Mapping[str, Mapping[str, _Hop]], everywhere: _Hop | None) -> Link:
    src, dst = pair
    first, last = near.get(src, {}), near.get(dst, {})
    ways = [_joined(first[via], last[via]) for via in first.keys() & last.keys()]
    hop = min(ways, key=lambda way: way.rtt_s, default=everywhere)
    link = replace(silent_link(src, dst, "default"), basis="assumed")
    if hop is None:
        return link
    return replace(
        link, rtt_s=hop.rtt_s, jitter_s=hop.jitter_s, bandwidth_bytes_per_s=hop.bytes_per_s
    )


def _joined(a: _Hop, b: _Hop) -> _Hop:
    rates = [hop.bytes_per_s for hop in (a, b) if hop.bytes_per_s is not None]
    return _Hop(max(a.rtt_s, b.rtt_s), max(a.jitter_s, b.jitter_s), min(rates, default=None))


def _typical(hops: Sequence[_Hop]) -> _Hop | None:
    if not hops:
        return None
    rates = [hop.bytes_per_s for hop in hops if hop.bytes_per_s is not None]
    return _Hop(
        median(hop.rtt_s for hop in hops),
        median(hop.jitter_s for hop in hops),
        median(rates) if rates else None,
    )
