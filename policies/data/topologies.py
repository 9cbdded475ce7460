"""Simulated networks on which completing a map and placing a ring are judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Floats, Ints
from policies.schema import Link, Network, Node

GBIT: Final = 1.25e8
# What a probe is off, as standard deviation of the logarithm.
RTT_NOISE: Final = 0.03
BANDWIDTH_NOISE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes and the truth between them: RTT and bandwidth, shape `(N, N)`."""

    nodes: tuple[Node, ...]
    rtt_s: Floats
    bandwidth_bytes_per_s: Floats

    def probed(self, pairs: Sequence[tuple[str, str]], rng: np.random.Generator) -> Network:
        """What a probe of these pairs finds, both directions of each."""
        index = {node.id: i for i, node in enumerate(self.nodes)}
        links = []
        for a, b in pairs:
            rtt_s = float(self.rtt_s[index[a], index[b]] * np.exp(rng.normal(0, RTT_NOISE)))
            for src, dst in ((a, b), (b, a)):
                rate = float(self.bandwidth_bytes_per_s[index[src], index[dst]])
                rate *= float(np.exp(rng.normal(0, BANDWIDTH_NOISE)))
                links.append(Link(src, dst, "default", rtt_s, 0.0, 0.0, rate))
        return Network(tuple(links), "", 0.0)

    @property
    def all_pairs(self) -> list[tuple[str, str]]:
        """Every pair of nodes once."""
        ids = [node.id for node in self.nodes]
        return [(a, b) for i, a in enumerate(ids) for b in ids[i + 1 :]]


def flat(n_nodes: int, rng: np.random.Generator) -> Topology:
    """One switch: 0.3 ms and a little more per node; a fifth has interfaces of a tenth the rate."""
    access_s = rng.exponential(0.00003, n_nodes)
    rtt_s = 0.0003 + access_s[:, None] + access_s[None, :]
    rate = np.where(rng.random(n_nodes) < 0.2, 1.0, 10.0) * GBIT
    return _topology(np.zeros(n_nodes, int), rtt_s, np.minimum(rate[:, None], rate[None, :]), rng)


def two_level(n_nodes: int, rng: np.random.Generator) -> Topology:
    """Racks of 24 on average: 0.1 ms and 10 Gbit/s inside, 0.5 ms and 2.5 between any two."""
    rack = rng.integers(0, max(2, n_nodes // 24), n_nodes)
    same = rack[:, None] == rack[None, :]
    return _topology(rack, np.where(same, 1e-4, 5e-4), np.where(same, 10.0, 2.5) * GBIT, rng)


def unaddressed(n_nodes: int, rng: np.random.Generator) -> Topology:
    """Two levels whose addresses tell nothing of the racks."""
    found = two_level(n_nodes, rng)
    ips = [node.ip for node in found.nodes]
    shuffled = [ips[i] for i in rng.permutation(n_nodes)]
    nodes = tuple(
        Node(n.id, ip, n.cpus, n.gpus, None, n.price_usd_per_h, n.price_source, n.kind)
        for n, ip in zip(found.nodes, shuffled, strict=True)
    )
    return Topology(nodes, found.rtt_s, found.bandwidth_bytes_per_s)


def geo(n_nodes: int, rng: np.random.Generator) -> Topology:
    """Five to eight regions on a map, up to some 150 ms apart.

    A pair gets the least of the source's uplink, the other's downlink and the pipe between
    their regions, which differs by direction; uplinks and downlinks differ from node to node.
    """
    n_regions = int(rng.integers(5, 9))
    region = rng.integers(0, n_regions, n_nodes)
    place = rng.uniform(0.0, 1.0, (n_regions, 2))
    apart = np.hypot(*(place[:, None, :] - place[None, :, :]).transpose(2, 0, 1))
    detour = np.triu(rng.uniform(1.0, 1.4, (n_regions, n_regions)), 1)
    between_s = 0.010 + 0.100 * apart * (detour + detour.T)
    np.fill_diagonal(between_s, 0.0005)
    pipe = np.exp(rng.uniform(np.log(0.05), np.log(0.5), (n_regions, n_regions))) * GBIT
    np.fill_diagonal(pipe, 10.0 * GBIT)
    access_s = rng.exponential(0.0001, n_nodes)
    rtt_s = between_s[np.ix_(region, region)] + access_s[:, None] + access_s[None, :]
    up, down = (rng.choice([0.2, 1.0, 5.0], n_nodes, p=[0.1, 0.6, 0.3]) * GBIT for _ in range(2))
    rate = np.minimum(pipe[np.ix_(region, region)], np.minimum(up[:, None], down[None, :]))
    return _topology(region, rtt_s, rate, rng)


TOPOLOGIES: Final[Mapping[str, Callable[[int, np.random.Generator], Topology]]] = {
    "flat": flat,
    "two-level": two_level,
    "two-level, no addresses": unaddressed,
    "geo": geo,
}


def _topology(group: Ints, rtt_s: Floats, rate: Floats, rng: np.random.Generator) -> Topology:
    """Every pair is a few per cent off; nodes of a group share a /16."""
    n_nodes, seen = len(group), dict.fromkeys(range(int(group.max()) + 1), 0)
    nodes = []
    for i, at in enumerate(group.tolist()):
        seen[at] += 1
        ip = f"10.{at}.{seen[at] // 200}.{seen[at] % 200 + 1}"
        nodes.append(Node(f"n{i:04}", ip, 8.0, 0.0, None, 0.3, "label", "c5"))
    off = np.triu(rng.normal(0.0, 0.05, (n_nodes, n_nodes)), 1)
    rate_off = np.exp(rng.normal(0.0, 0.03, (n_nodes, n_nodes)))
    return Topology(tuple(nodes), rtt_s * np.exp(off + off.T), rate * rate_off)
