"""Every link between the nodes as arrays, with assumed values where nothing was measured."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.schema import Link, Network, Node

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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

    `one_way_s`, `s_per_byte` and `doubt` have shape `(N, N)`; `known` says which were measured.
    `one_way_s` is what a hop takes on average: half the RTT, and what jitter and lost messages
    add. `doubt`, in [0, 1), is the fraction of it that a disturbed probe may have made up.
    """

    index: dict[str, int]
    one_way_s: Floats
    s_per_byte: Floats
    known: Bools
    doubt: Floats

    def rtt_s(self, src: str, dst: str) -> float:
        """Round-trip time between two nodes, in seconds."""
        return 2.0 * float(self.one_way_s[self.index[src], self.index[dst]])


def links_between(nodes: Sequence[Node], network: Network | None) -> Links:
    """Links of `nodes` (in their order): measured where the probe has an answer, else assumed.

    A pair that the probe never tried takes the table's value for its distance. A pair that it
    tried in vain is taken for no better than the worst link that it did measure.
    """
    index = {node.id: i for i, node in enumerate(nodes)}
    one_way_s, s_per_byte = _assumed(nodes)
    known = np.zeros(one_way_s.shape, dtype=bool)
    doubt = np.zeros(one_way_s.shape)
    if network is not None and network.links:
        columns = _columns(network.links, index)
        _fill(columns, one_way_s, s_per_byte, known)
        doubt[columns.src, columns.dst] = columns.doubt
    return Links(index, one_way_s, s_per_byte, known, doubt)


def _assumed(nodes: Sequence[Node]) -> tuple[Floats, Floats]:
    sites = np.array([_site(node.ip) for node in nodes])
    same = sites[:, None] == sites[None, :]
    rtt_s = np.where(same, ONE_SITE.rtt_s, BETWEEN_SITES.rtt_s)
    bandwidth = np.where(same, ONE_SITE.bandwidth_bytes_per_s, BETWEEN_SITES.bandwidth_bytes_per_s)
    np.fill_diagonal(rtt_s, LOOPBACK.rtt_s)
    np.fill_diagonal(bandwidth, LOOPBACK.bandwidth_bytes_per_s)
    return rtt_s / 2.0, 1.0 / bandwidth


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
    """Links as arrays of shape `(L,)`, slowest first; NaN means not known."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    one_way_s: Floats
    s_per_byte: Floats
    doubt: Floats


def _columns(links: Sequence[Link], index: dict[str, int]) -> _Columns:
    src = np.array([index.get(link.src, -1) for link in links])
    dst = np.array([index.get(link.dst, -1) for link in links])
    rtt_s = np.array([link.rtt_s for link in links], dtype=float)
    jitter_s = np.array([link.jitter_s or 0.0 for link in links])
    loss = np.array([link.loss or 0.0 for link in links])
    bandwidth = np.array([link.bandwidth_bytes_per_s or 0.0 for link in links])
    doubt = _doubt(rtt_s, jitter_s)
    counted_s = rtt_s / 2.0 + JITTER_PER_HOP * np.where(doubt > 0, rtt_s * doubt, 0.0)
    one_way_s = counted_s + loss * RETRANSMIT_S
    s_per_byte = np.divide(1.0, bandwidth, out=np.full(len(links), np.nan), where=bandwidth > 0)
    order = np.argsort(bandwidth, kind="stable")
    order = order[(src[order] >= 0) & (dst[order] >= 0)]
    return _Columns(src[order], dst[order], one_way_s[order], s_per_byte[order], doubt[order])


def _doubt(rtt_s: Floats, jitter_s: Floats) -> Floats:
    """Jitter as a fraction of RTT and jitter; 0 where the RTT is not known.

    RTT · doubt is the jitter that counts: all of a small one, never more than the RTT, for a
    jitter longer than the RTT is load on a probing machine rather than the link's own.
    """
    whole_s = np.nan_to_num(rtt_s) + jitter_s
    doubt = np.divide(jitter_s, whole_s, out=np.zeros(len(rtt_s)), where=whole_s > 0)
    return np.where(np.isnan(rtt_s), 0.0, doubt)


def _fill(columns: _Columns, one_way_s: Floats, s_per_byte: Floats, known: Bools) -> None:
    """Write measured values over the assumed ones, in place.

    Of several paths between two nodes the one with the highest bandwidth is written last.
    """
    where = (columns.src, columns.dst)
    known[where] = ~(np.isnan(columns.one_way_s) | np.isnan(columns.s_per_byte))
    for target, measured in ((one_way_s, columns.one_way_s), (s_per_byte, columns.s_per_byte)):
        worst = float(np.nanmax(measured)) if not np.isnan(measured).all() else 0.0
        pessimistic = np.maximum(target[where], worst)
        target[where] = np.where(np.isnan(measured), pessimistic, measured)
