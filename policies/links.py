"""Every link between the nodes as arrays: measured, else inferred from others, else assumed."""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from policies.alike_links import assume_alike
from policies.arrays import Bools, Floats, Ints
from policies.completion import completed
from policies.schema import DEFAULT_PATH, Link, Network, Node


@dataclass(frozen=True, slots=True)
class AssumedLink:
    """What an unmeasured link is taken for."""

    rtt_s: float
    bandwidth_bytes_per_s: float


# Loopback: what two processes of one small machine reach over TCP. One site: 0.5 ms and
# 1 Gbit/s, the least that clouds sell and what the lab hosts had. Between sites: 30 ms and
# 100 Mbit/s, two regions of one continent.
LOOPBACK: Final = AssumedLink(rtt_s=0.0001, bandwidth_bytes_per_s=1.0e9)
ONE_SITE: Final = AssumedLink(rtt_s=0.0005, bandwidth_bytes_per_s=1.25e8)
BETWEEN_SITES: Final = AssumedLink(rtt_s=0.030, bandwidth_bytes_per_s=1.25e7)

# Linux waits at least this long before it sends a lost segment again (TCP_RTO_MIN).
RETRANSMIT_S: Final = 0.2
# At each hop a ring waits for the slower of two neighbours. The mean of the slower of two delays
# lies 0.44 (normal) to 0.50 (exponential) times p90 - median above the median, and one way has
# 1/√2 of the round trip's jitter.
JITTER_PER_HOP: Final = 0.33


@dataclass(frozen=True, slots=True)
class Links:
    """Links between N nodes, row = source, column = destination, diagonal = loopback.

    `one_way_s`, `s_per_byte` and `doubt` have shape `(N, N)`; `known` says which were measured,
    `inferred` which follow from measured links of both nodes (see `completion`); what is
    neither is assumed. `one_way_s` is what a hop takes on average: half the RTT, and what jitter
    and lost messages add. `doubt`, in [0, 1), is the fraction of it that a disturbed probe may
    have made up. `nic_s_per_byte` is the inverse bandwidth of each node's interface, sending
    and receiving, shape `(2, N)`: that of its widest measured link, whoever was at its end.
    """

    index: dict[str, int]
    one_way_s: Floats
    s_per_byte: Floats
    known: Bools
    inferred: Bools
    doubt: Floats
    nic_s_per_byte: Floats

    def among(self, names: Sequence[str]) -> "Links":
        """The links between some of the nodes, named in their order."""
        if list(names) == list(self.index):
            return self
        at = np.array([self.index[name] for name in names], dtype=np.int64)
        cut = np.ix_(at, at)
        return Links(
            {name: i for i, name in enumerate(names)},
            self.one_way_s[cut],
            self.s_per_byte[cut],
            self.known[cut],
            self.inferred[cut],
            self.doubt[cut],
            self.nic_s_per_byte[:, at],
        )

    def rtt_s(self, src: str, dst: str) -> float:
        """Round-trip time between two nodes, in seconds."""
        return 2.0 * float(self.one_way_s[self.index[src], self.index[dst]])


def links_between(
    nodes: Sequence[Node], network: Network | None, path: str = DEFAULT_PATH
) -> Links:
    """Links of `nodes` (in their order) over one path.

    A pair that the probe did not try is inferred from the links of its two nodes, no wider than
    the widest that was measured from its source and to its destination, or takes the table's
    value for its distance where a node has none; with a node that is yet to be started, it is
    taken for one like those of its type. A pair that it tried in vain is taken for no better than
    the worst link that it did measure.
    """
    index = {node.id: i for i, node in enumerate(nodes)}
    one_way_s, s_per_byte = _assumed(nodes)
    known = np.zeros(one_way_s.shape, dtype=bool)
    inferred, doubt = known.copy(), np.zeros(one_way_s.shape)
    nic = _assumed_nic(s_per_byte)
    tried = () if network is None else [x for x in network.links if _is_tried(x, path)]
    if network is not None and tried:
        every = _columns(tried, index)
        columns = every.inside
        ends, clean_s = (columns.src, columns.dst), columns.one_way_s - columns.resent_s
        assume_alike(nodes, *ends, clean_s, one_way_s)
        assume_alike(nodes, *ends, columns.s_per_byte, s_per_byte)
        nic = _widest(every, _assumed_nic(s_per_byte))
        vain = _in_vain(columns, len(nodes), [index[x] for x in network.silent if x in index])
        inferred = _fill(columns, vain, one_way_s, s_per_byte)
        known[columns.src, columns.dst] = ~np.isnan(columns.one_way_s + columns.s_per_byte)
        _narrow(s_per_byte, inferred & ~known, nic)
        doubt[columns.src, columns.dst] = columns.doubt
    return Links(index, one_way_s, s_per_byte, known, inferred & ~known, doubt, nic)


def _assumed_nic(s_per_byte: Floats) -> Floats:
    """Inverse bandwidths of interfaces, sending and receiving, shape `(2, N)`: the best link's."""
    apart = s_per_byte + np.diag(np.full(len(s_per_byte), np.inf))
    best = np.stack([apart.min(axis=1, initial=np.inf), apart.min(axis=0, initial=np.inf)])
    return np.where(np.isfinite(best), best, 0.0)


def _widest(columns: "_Columns", assumed: Floats) -> Floats:
    """Inverse bandwidths of interfaces: the widest measured link's, else what is assumed.

    Links to nodes that were not asked for count too, so that it does not matter who was.
    """
    least = np.full(assumed.shape, np.inf)
    apart = (columns.src != columns.dst) & ~np.isnan(columns.s_per_byte)
    for side, end in enumerate((columns.src, columns.dst)):
        known = apart & (end >= 0)
        np.minimum.at(least[side], end[known], columns.s_per_byte[known])
    return np.where(np.isfinite(least), least, assumed)


def _narrow(s_per_byte: Floats, inferred: Bools, nic: Floats) -> None:
    """Let no inferred link be wider than what leaves its source or enters its destination."""
    apart = inferred & ~np.eye(len(s_per_byte), dtype=bool)
    narrowest = np.maximum(nic[0][:, None], nic[1][None, :])
    s_per_byte[apart] = np.maximum(s_per_byte, narrowest)[apart]


def _is_tried(link: Link, path: str) -> bool:
    """Whether a link tells of a path. A node's loopback serves every path."""
    return link.basis == "measured" and (link.path == path or link.src == link.dst)


def _assumed(nodes: Sequence[Node]) -> tuple[Floats, Floats]:
    home = next((node.ip for node in nodes if node.is_up), "")
    names = [_site(node.ip if node.is_up else home) for node in nodes]
    sites = np.unique(names, return_inverse=True)[1] if names else np.zeros(0)
    same = sites[:, None] == sites[None, :]
    rtt_s = np.where(same, ONE_SITE.rtt_s, BETWEEN_SITES.rtt_s)
    bandwidth = np.where(same, ONE_SITE.bandwidth_bytes_per_s, BETWEEN_SITES.bandwidth_bytes_per_s)
    np.fill_diagonal(rtt_s, LOOPBACK.rtt_s)
    np.fill_diagonal(bandwidth, LOOPBACK.bandwidth_bytes_per_s)
    return rtt_s / 2.0, 1.0 / bandwidth


@lru_cache(maxsize=4096)
def _site(ip: str) -> str:
    """Nodes of one private /16 are taken for one site, any other address for a site alone."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return ip
    if address.is_private and address.version == 4:
        return ip.rsplit(".", 2)[0]
    return ip


@dataclass(frozen=True, slots=True)
class _Columns:
    """Links as arrays of shape `(L,)`, slowest first; NaN means not known.

    `resent_s` is the part of `one_way_s` that lost messages add. A node that was not asked for
    has the number -1.
    """

    src: Ints
    dst: Ints
    one_way_s: Floats
    s_per_byte: Floats
    doubt: Floats
    resent_s: Floats

    @property
    def inside(self) -> "_Columns":
        """The links between nodes that were asked for."""
        return self.at(np.flatnonzero((self.src >= 0) & (self.dst >= 0)))

    def at(self, order: Ints) -> "_Columns":
        """Some of the links, in this order."""
        return _Columns(
            self.src[order],
            self.dst[order],
            self.one_way_s[order],
            self.s_per_byte[order],
            self.doubt[order],
            self.resent_s[order],
        )


def _columns(links: Sequence[Link], index: dict[str, int]) -> _Columns:
    src = np.array([index.get(link.src, -1) for link in links])
    dst = np.array([index.get(link.dst, -1) for link in links])
    rtt_s = np.array([link.rtt_s for link in links], dtype=float)
    rtt_s[~(rtt_s >= 0.0) | np.isinf(rtt_s)] = np.nan  # what no link can have is not known
    jitter_s = np.array([link.jitter_s or 0.0 for link in links])
    loss = np.array([link.loss or 0.0 for link in links])
    bandwidth = np.array([link.bandwidth_bytes_per_s or 0.0 for link in links])
    doubt = _doubt(rtt_s, jitter_s)
    counted_s = rtt_s / 2.0 + JITTER_PER_HOP * np.where(doubt > 0, rtt_s * doubt, 0.0)
    resent_s = loss * RETRANSMIT_S
    one_way_s = counted_s + resent_s
    s_per_byte = np.divide(1.0, bandwidth, out=np.full(len(links), np.nan), where=bandwidth > 0)
    found = _Columns(src, dst, one_way_s, s_per_byte, doubt, resent_s)
    return found.at(np.argsort(bandwidth, kind="stable"))


def _doubt(rtt_s: Floats, jitter_s: Floats) -> Floats:
    """Jitter as a fraction of RTT and jitter; 0 where the RTT is not known.

    RTT · doubt is the jitter that counts: all of a small one, never more than the RTT, for a
    jitter longer than the RTT is load on a probing machine rather than the link's own.
    """
    whole_s = np.nan_to_num(rtt_s) + jitter_s
    doubt = np.divide(jitter_s, whole_s, out=np.zeros(len(rtt_s)), where=whole_s > 0)
    return np.where(np.isnan(rtt_s), 0.0, doubt)


def _in_vain(columns: _Columns, n_nodes: int, silent: Iterable[int]) -> Bools:
    """Pairs that the probe tried without an answer, and all pairs of silent nodes."""
    vain = np.zeros((n_nodes, n_nodes), dtype=bool)
    vain[columns.src, columns.dst] = np.isnan(columns.one_way_s)
    for i in silent:
        vain[i, :] = vain[:, i] = True
    np.fill_diagonal(vain, val=False)
    return vain


def _fill(columns: _Columns, vain: Bools, one_way_s: Floats, s_per_byte: Floats) -> Bools:
    """Write measured and inferred values over the assumed ones, in place.

    Lost messages are a link's own: they are not inferred for any other.

    Returns:
        Which links have a measured or inferred value.
    """
    where = (columns.src, columns.dst)
    clean_s, inverse = np.full_like(one_way_s, np.nan), np.full_like(s_per_byte, np.nan)
    clean_s[where], inverse[where] = columns.one_way_s - columns.resent_s, columns.s_per_byte
    whole_s, whole = completed(clean_s, inverse)
    answered = ~np.isnan(columns.one_way_s)
    whole_s[columns.src[answered], columns.dst[answered]] = columns.one_way_s[answered]
    for target, found, measured in (
        (one_way_s, whole_s, columns.one_way_s),
        (s_per_byte, whole, columns.s_per_byte),
    ):
        target[...] = np.where(np.isnan(found), target, found)
        if not np.isnan(measured).all():
            target[vain] = np.maximum(target[vain], np.nanmax(measured))
    found_both: Bools = ~np.isnan(whole_s + whole) & ~vain
    return found_both
