"""Links that were not measured, inferred from those that were: who sits near whom, at every scale.

Networks are trees by and large (rack, site, continent). So nodes are grouped by single linkage on
latency, cut where distances jump. A pair that was not measured is taken for the median of what was
measured between the groups of its two nodes; groups that hardly met fall back on the larger groups
that they are part of.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Bools, Floats, Ints

# More links than these per node, evenly picked, tell nothing new of what is missing.
ENOUGH_LINKS: Final = 64
# At most so many cuts of the tree of nodes, at its largest jumps.
MAX_CUTS: Final = 8
# What the larger groups say counts as much as this many links measured between the groups.
COARSE_WEIGHT: Final = 0.1
# A node's own distance from its group counts against this many links without any.
NODE_WEIGHT: Final = 2.0
NODE_ROUNDS: Final = 4
# An access line faster than its group's never takes off more than half of a latency.
LEAST: Final = 0.5
# A pipe between groups is what the best of its links reach, not the very best: noise is no pipe.
PIPE_QUANTILE: Final = 0.98
PIPE_LINKS: Final = 3
# A node whose links all stay this far below at least two pipes is limited by its own interface.
BELOW_PIPE: Final = 0.8
MIN_WIDE_LINKS: Final = 2


@dataclass(frozen=True, slots=True)
class Level:
    """A partition of the nodes: the group of each, shape `(N,)`; `parent` in the coarser one."""

    group: Ints
    n_groups: int
    parent: Ints


def completed(one_way_s: Floats, s_per_byte: Floats) -> tuple[Floats, Floats]:
    """Both arrays with every unmeasured link filled in, in O(N²) for N nodes.

    Measured values stay as they are. A node without any measured link keeps NaN.

    Args:
        one_way_s: latency of directed links, shape `(N, N)`, NaN where not measured.
        s_per_byte: inverse bandwidth, shape `(N, N)`, NaN where not measured; only read where
            the latency is known too.
    """
    links = _off_diagonal(one_way_s)
    n_all = one_way_s.size - len(one_way_s)
    if len(links[0]) in (0, n_all) and np.isnan(s_per_byte[links]).sum() == 0:
        return one_way_s.copy(), s_per_byte.copy()
    links = _enough(links, len(one_way_s))
    levels = tuple(_levels(len(one_way_s), links, one_way_s[links]))
    latency_s = _latencies(levels, links, np.maximum(one_way_s[links], 1e-9))
    wide = _off_diagonal(np.where(np.isnan(one_way_s), np.nan, s_per_byte))
    wide = _enough(wide, len(one_way_s))
    inverse = s_per_byte.copy()
    if len(wide[0]):
        inverse = 1.0 / _bandwidths(levels, wide, 1.0 / s_per_byte[wide])
    return _only_unknown(one_way_s, latency_s, links), _only_unknown(s_per_byte, inverse, wide)


def _off_diagonal(values: Floats) -> tuple[Ints, Ints]:
    src, dst = np.nonzero(~np.isnan(values))
    return src[src != dst], dst[src != dst]


def _enough(links: tuple[Ints, Ints], n_nodes: int) -> tuple[Ints, Ints]:
    every = max(1, len(links[0]) // (ENOUGH_LINKS * n_nodes))
    return links[0][::every], links[1][::every]


def _only_unknown(measured: Floats, inferred: Floats, links: tuple[Ints, Ints]) -> Floats:
    """Measured values, and inferred ones between nodes that have any measured link."""
    met = np.zeros(len(measured), dtype=bool)
    met[links[0]] = met[links[1]] = True
    fill = np.isnan(measured) & met[:, None] & met[None, :]
    np.fill_diagonal(fill, val=False)
    return np.where(fill, inferred, measured)


def _levels(n_nodes: int, links: tuple[Ints, Ints], latency_s: Floats) -> Iterator[Level]:
    """Partitions of the nodes, from one group of all to ever smaller ones."""
    tree = _spanning_tree(n_nodes, links, latency_s)
    parent = Level(np.zeros(n_nodes, dtype=np.int64), 1, np.zeros(1, dtype=np.int64))
    yield parent
    for cut_s in _cuts([edge_s for _, _, edge_s in tree]):
        group = _groups(n_nodes, [(a, b) for a, b, edge_s in tree if edge_s < cut_s])
        parent = _below(parent, group)
        yield parent


def _below(coarser: Level, group: Ints) -> Level:
    n_groups = int(group.max()) + 1
    parent = np.zeros(n_groups, dtype=np.int64)
    parent[group] = coarser.group
    return Level(group, n_groups, parent)


def _spanning_tree(
    n_nodes: int, links: tuple[Ints, Ints], latency_s: Floats
) -> list[tuple[int, int, float]]:
    """The minimum spanning forest (Kruskal 1956), its edges in the order of their latency."""
    root = list(range(n_nodes))
    tree = []
    order = np.argsort(latency_s, kind="stable")
    src, dst, s = links[0][order].tolist(), links[1][order].tolist(), latency_s[order].tolist()
    for a, b, edge_s in zip(src, dst, s, strict=True):
        x, y = _root(root, a), _root(root, b)
        if x != y:
            root[x] = y
            tree.append((a, b, edge_s))
            if len(tree) == n_nodes - 1:
                break
    return tree


def _root(root: list[int], i: int) -> int:
    while root[i] != i:
        root[i] = root[root[i]]
        i = root[i]
    return i


def _groups(n_nodes: int, edges: Sequence[tuple[int, int]]) -> Ints:
    """Connected components, numbered from 0."""
    root = list(range(n_nodes))
    for a, b in edges:
        root[_root(root, a)] = _root(root, b)
    group: Ints = np.unique([_root(root, i) for i in range(n_nodes)], return_inverse=True)[1]
    return group


def _cuts(edges_s: Sequence[float]) -> list[float]:
    """Latencies at which the tree is cut, longest first: inside its largest relative jumps.

    At least a tenth of the edges stay, for groups of single nodes are none.
    """
    edges = np.log(np.maximum(np.array(edges_s), 1e-9))
    jumps = np.diff(edges)
    jumps[: len(edges) // 10] = 0.0
    largest = np.argsort(-jumps, kind="stable")[:MAX_CUTS]
    at = np.sort(largest[jumps[largest] > 0])[::-1]
    return [float(np.exp((edges[i] + edges[i + 1]) / 2.0)) for i in at]


def _latencies(levels: Sequence[Level], links: tuple[Ints, Ints], measured_s: Floats) -> Floats:
    """Latencies between any two nodes, in seconds, shape `(N, N)`.

    What the groups leave unexplained belongs to the nodes' own access lines, which add to every
    link of theirs (median polish, Tukey 1977). Short links tell more of them, as errors are
    relative.
    """
    between_s = _grouped_medians(levels, links, np.log(measured_s))
    expected_s = between_s[links]
    left_s = measured_s - expected_s
    weight, n = expected_s**-2.0, len(between_s)
    total, most = np.bincount(links[0], weight, n), np.full(n, 1e-300)
    np.maximum.at(most, links[0], weight)
    n_telling = total / most
    own_s = np.zeros(n)
    for _ in range(NODE_ROUNDS):
        rest_s = left_s - own_s[links[0]] - own_s[links[1]]
        node, middle_s = _weighted_medians(links[0], rest_s, weight)
        own_s[node] += 0.5 * (n_telling / (n_telling + NODE_WEIGHT))[node] * middle_s
    whole_s: Floats = between_s + own_s[:, None] + own_s[None, :]
    return np.maximum(whole_s, LEAST * between_s)


def _grouped_medians(levels: Sequence[Level], links: tuple[Ints, Ints], logs: Floats) -> Floats:
    """What links are between any two nodes, shape `(N, N)`, from the logarithms of those known.

    From coarse to fine, the estimate between two groups is the median of their links, weighed by
    their number against what the larger groups say.
    """
    estimate = np.full((1, 1), np.median(logs))
    for level, apart in zip(levels, _apart(levels, links), strict=True):
        estimate = estimate[np.ix_(level.parent, level.parent)]
        pair, middle, count = _quantiles(_pairs(level, links)[apart], logs[apart], 0.5)
        flat = estimate.reshape(-1)
        flat[pair] += count / (count + COARSE_WEIGHT) * (middle - flat[pair])
    return _between_nodes(levels, np.exp(estimate))


def _apart(levels: Sequence[Level], links: tuple[Ints, Ints]) -> list[Bools]:
    """Per level, the links that no finer level sees inside one group, shape `(L,)` each.

    A finer group that hardly met another is like others between groups, not like those inside.
    """
    apart = [level.group[links[0]] != level.group[links[1]] for level in levels[1:]]
    return [*apart, links[0] != links[1]]


def _pairs(level: Level, links: tuple[Ints, Ints]) -> Ints:
    """The pair of groups of each link, as one number."""
    return level.group[links[0]] * level.n_groups + level.group[links[1]]


def _between_nodes(levels: Sequence[Level], between_groups: Floats) -> Floats:
    finest = levels[-1].group
    found: Floats = between_groups[np.ix_(finest, finest)]
    return found


def _quantiles(key: Ints, values: Floats, q: float) -> tuple[Ints, Floats, Ints]:
    """Per key that occurs: the key, a quantile of its values, and how many they are."""
    order = np.lexsort((values, key))
    found, start, count = _runs(key[order])
    at = q * (count - 1)
    low, high = start + np.floor(at).astype(np.int64), start + np.ceil(at).astype(np.int64)
    ordered = values[order]
    return found, (ordered[low] + ordered[high]) / 2.0, count


def _runs(ordered: Ints) -> tuple[Ints, Ints, Ints]:
    """The values of an array in order: each once, its first place, and how often it occurs."""
    start = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    return ordered[start], start, np.diff(start, append=len(ordered))


def _weighted_medians(key: Ints, values: Floats, weight: Floats) -> tuple[Ints, Floats]:
    """Per key that occurs: the key, and the weighted median of its values."""
    order = np.lexsort((values, key))
    found, start, count = _runs(key[order])
    sums = np.concatenate([[0.0], weight[order].cumsum()])
    half = (sums[start] + sums[start + count]) / 2.0
    at = np.clip(np.searchsorted(sums, half) - 1, start, start + count - 1)
    return found, values[order][at]


def _bandwidths(levels: Sequence[Level], links: tuple[Ints, Ints], measured: Floats) -> Floats:
    """Bytes per second between any two nodes: the least of uplink, downlink and pipe.

    What those three leave unexplained is taken from the groups, as latency is.
    """
    pipe = _pipes(levels, links, measured)
    uplink = _interfaces(len(pipe), links[0], measured, pipe[links])
    downlink = _interfaces(len(pipe), links[1], measured, pipe[links])
    expected = np.minimum(pipe, np.minimum(uplink[:, None], downlink[None, :]))
    unexplained = np.log(measured / expected[links])
    found: Floats = expected * _grouped_medians(levels, links, unexplained)
    return found


def _pipes(levels: Sequence[Level], links: tuple[Ints, Ints], measured: Floats) -> Floats:
    """What the network between two groups carries for one flow, between any two nodes."""
    estimate = np.full((1, 1), np.quantile(measured, PIPE_QUANTILE))
    for level, apart in zip(levels, _apart(levels, links), strict=True):
        estimate = estimate[np.ix_(level.parent, level.parent)]
        key = _pairs(level, links)[apart]
        pair, high, count = _quantiles(key, measured[apart], PIPE_QUANTILE)
        enough = count >= PIPE_LINKS
        estimate.reshape(-1)[pair[enough]] = high[enough]
    return _between_nodes(levels, estimate)


def _interfaces(n_nodes: int, node: Ints, measured: Floats, pipe: Floats) -> Floats:
    """Limit of each node's own interface in one direction; infinite where nothing tells of one."""
    most = np.zeros(n_nodes)
    np.maximum.at(most, node, measured)
    n_wide = np.bincount(node, pipe * BELOW_PIPE > most[node], minlength=n_nodes)
    return np.where(n_wide >= MIN_WIDE_LINKS, most, np.inf)
