"""Over which networks the nodes can talk: one path for all workers of a plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.arrays import Floats
from policies.links import Links, links_between
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
    """All paths by name; `DEFAULT_PATH`, which joins all nodes, comes first."""

    by_name: Mapping[str, Path]

    @property
    def default(self) -> Path:
        """The network that Ray uses."""
        return self.by_name[DEFAULT_PATH]

    @property
    def others(self) -> tuple[Path, ...]:
        """The networks that Ray does not use."""
        return tuple(path for name, path in self.by_name.items() if name != DEFAULT_PATH)

    def of(self, plan: Plan) -> Path:
        """A plan's path; that of Ray where the plan's is gone."""
        return self.by_name.get(plan.options.path, self.default)

    def links_of(self, plan: Plan) -> Links:
        """The links over which a plan's workers talk."""
        return self.of(plan).links


def paths_between(nodes: Iterable[Node], network: Network | None) -> Paths:
    """Every path on which at least two of the nodes answered."""
    ordered = tuple(sorted(nodes, key=lambda node: node.id))
    found = {DEFAULT_PATH: Path(DEFAULT_PATH, ordered, links_between(ordered, network))}
    if network is None:
        return Paths(found)
    for name in sorted({each.path for each in network.interfaces} - {DEFAULT_PATH}):
        members = _members(ordered, network, name)
        if len(members) > 1:
            found[name] = Path(name, members, links_between(members, network, name))
    return Paths(found)


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
