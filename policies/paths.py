"""Over which networks the nodes can talk: one path for all workers of a plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.arrays import Floats
from policies.links import Links, links_between
from policies.memo import remembered
from policies.schema import DEFAULT_PATH, Network, Node, Plan


@dataclass(frozen=True, slots=True)
class Path:
    """A network, the nodes that have an address on it in the order of their ids, their links."""

    name: str
    nodes: tuple[Node, ...]
    links: Links

    def s_per_byte(self, nodes: Sequence[str]) -> Floats:
        """Inverse bandwidths of the ring through `nodes`, shape `(n,)`."""
        src = np.array([self.links.index[node] for node in nodes])
        found: Floats = self.links.s_per_byte[src, np.roll(src, -1)]
        return found

    def one_way_s(self, nodes: Sequence[str]) -> Floats:
        """Latencies of the ring through `nodes`, in seconds, shape `(n,)`."""
        src = np.array([self.links.index[node] for node in nodes])
        found: Floats = self.links.one_way_s[src, np.roll(src, -1)]
        return found


@dataclass(frozen=True, slots=True)
class Paths:
    """All paths by name; `DEFAULT_PATH`, which joins all nodes, comes first.

    `together` is what a pair of nodes reaches over all networks that both are on.
    """

    by_name: Mapping[str, Path]
    together: Path

    @property
    def default(self) -> Path:
        """The network that Ray uses."""
        return self.by_name[DEFAULT_PATH]

    @property
    def others(self) -> tuple[Path, ...]:
        """The networks that Ray does not use."""
        return tuple(path for name, path in self.by_name.items() if name != DEFAULT_PATH)

    def of(self, plan: Plan) -> Path:
        """A plan's path, all of them for `direct`; that of Ray where the plan's is gone."""
        if plan.strategy == "direct" and plan.options.path == DEFAULT_PATH:
            return self.together
        return self.by_name.get(plan.options.path, self.default)

    def links_of(self, plan: Plan) -> Links:
        """The links over which a plan's workers talk."""
        return self.of(plan).links


def paths_between(nodes: Iterable[Node], network: Network | None) -> Paths:
    """Every path on which at least two of the nodes answered."""
    return _paths_between(tuple(sorted(nodes, key=lambda node: node.id)), network)


@remembered
def _paths_between(ordered: tuple[Node, ...], network: Network | None) -> Paths:
    found = {DEFAULT_PATH: Path(DEFAULT_PATH, ordered, links_between(ordered, network))}
    if network is None:
        return Paths(found, found[DEFAULT_PATH])
    for name in sorted({each.path for each in network.interfaces} - {DEFAULT_PATH}):
        members = _members(ordered, network, name)
        if len(members) > 1:
            found[name] = Path(name, members, links_between(members, network, name))
    return Paths(found, _together(tuple(found.values())))


def _together(paths: Sequence[Path]) -> Path:
    """Ray's own network with the bandwidth of the others beside it.

    A message over several networks takes all their bandwidths together, a short one the nearest
    network. Each network is taken for a wire of its own.
    """
    default, *others = paths
    if not others:
        return default
    links = default.links
    one_way_s, bandwidth = links.one_way_s.copy(), 1.0 / links.s_per_byte
    nic = _bandwidth(links.nic_s_per_byte)
    for path in others:
        at = np.array([links.index[node.id] for node in path.nodes])
        cut = np.ix_(at, at)
        apart = ~np.eye(len(at), dtype=bool)
        one_way_s[cut] = np.minimum(one_way_s[cut], path.links.one_way_s)
        bandwidth[cut] += apart / path.links.s_per_byte
        nic[:, at] += _bandwidth(path.links.nic_s_per_byte)
    inverse = np.divide(1.0, nic, out=np.zeros_like(nic), where=nic > 0)
    wider = replace(links, one_way_s=one_way_s, s_per_byte=1.0 / bandwidth, nic_s_per_byte=inverse)
    return replace(default, links=wider)


def _bandwidth(s_per_byte: Floats) -> Floats:
    return np.divide(1.0, s_per_byte, out=np.zeros_like(s_per_byte), where=s_per_byte > 0)


def _members(nodes: Sequence[Node], network: Network, name: str) -> tuple[Node, ...]:
    """Nodes with an address on a path on which they answered more often than not."""
    addressed = {each.node for each in network.interfaces if each.path == name}
    n_answers: dict[str, int] = dict.fromkeys(addressed, 0)
    for link in network.links:
        if (
            link.path == name
            and link.src != link.dst
            and addressed.issuperset((link.src, link.dst))
        ):
            for node in (link.src, link.dst):
                n_answers[node] += 1 if link.rtt_s is not None else -1
    return tuple(node for node in nodes if n_answers.get(node.id, 0) > 0)
