"""What a run may train on, as it changes: nodes that are lost, leave, join or have slowed down."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from launcher.cluster import Cluster
from launcher.prepare import Measured
from policies.moving import Moves
from policies.schema import Network, Node
from policies.slowed import slowed


@dataclass(slots=True)
class Surroundings:
    """The one place that knows which nodes are candidates, and what was measured of them.

    Attributes:
        cluster: with the nodes that were checked, measured and profiled.
        lost: nodes that gave no sign of life, while Ray may still count them.
        leaving: nodes that have had their notice.
        slow: nodes that compute slower than they did.
        moves: those made so far because they paid.
    """

    cluster: Cluster
    measured: Measured
    lost: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    moves: Moves = field(default_factory=Moves)

    @property
    def gone(self) -> set[str]:
        """Nodes that are no candidates any more."""
        return self.lost | self.leaving

    @property
    def candidates(self) -> Cluster:
        """The cluster with the nodes that may be planned with."""
        return self.without(self.gone)

    def without(self, nodes: Collection[str]) -> Cluster:
        """The cluster without some nodes."""
        kept = tuple(node for node in self.cluster.nodes if node.id not in nodes)
        return replace(self.cluster, nodes=kept)

    def with_only(self, nodes: Collection[Node]) -> Cluster:
        """The cluster with other nodes in it."""
        return replace(self.cluster, nodes=tuple(nodes))

    def nodes(self, ids: Collection[str]) -> tuple[Node, ...]:
        """Nodes by their ids, lost ones included."""
        return tuple(node for node in self.cluster.nodes if node.id in ids)

    def has(self, nodes: Collection[str]) -> bool:
        """Whether all of these may be planned with."""
        return set(nodes) <= {node.id for node in self.candidates.nodes}

    def names(self, nodes: Collection[str]) -> str:
        """What people call some nodes."""
        ip_by_id = {node.id: node.ip for node in self.cluster.nodes}
        return ", ".join(ip_by_id.get(node, node[:8]) for node in dict.fromkeys(nodes))

    def renew(self, cluster: Cluster, measured: Measured) -> None:
        """Take in a cluster that was measured anew."""
        self.cluster, self.measured = cluster, measured
        self.lost -= {node.id for node in cluster.nodes}
        self.slow.clear()

    def join(self, nodes: Collection[Node], measured: Measured) -> None:
        """Take in nodes that were found fit, with what was measured of them."""
        new = {node.id for node in nodes}
        kept = tuple(node for node in self.cluster.nodes if node.id not in new)
        self.cluster = replace(self.cluster, nodes=(*kept, *nodes))
        self.lost -= new
        self.measured = measured

    def remap(self, network: Network) -> None:
        """Take in a new map of some of the links; it replaces what was known of them."""
        known = self.measured.network
        fresh = {(link.src, link.dst, link.path): link for link in network.links}
        old = [x for x in known.links if (x.src, x.dst, x.path) not in fresh]
        self.measured = replace(
            self.measured, network=replace(known, links=(*old, *fresh.values()))
        )

    def slow_down(self, factor_by_node: Mapping[str, float]) -> None:
        """Note that nodes compute slower than they did, by a factor each."""
        nodes, workload = slowed(self.cluster.nodes, self.measured.workload, factor_by_node)
        self.cluster = replace(self.cluster, nodes=nodes)
        self.measured = replace(self.measured, workload=workload)
        self.slow |= set(factor_by_node)
