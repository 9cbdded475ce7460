"""Measures nodes and links while training runs on some of them: little, and seldom."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from launcher.checkup import checkup
from launcher.cluster import Cluster
from launcher.errors import ClusterError
from launcher.prepare import Measured, holdings, needs_of, versions
from launcher.probe import probe
from launcher.profiler import ProfileCache, fingerprint, profile
from launcher.sentries import Sentries
from launcher.site_data import AnyData
from launcher.stretch import Stretch
from launcher.worker.job import Job
from policies.schema import Network, Node, Workload

logger = logging.getLogger(__name__)

DEADLINE_S: Final = 5.0
BYTES_PER_NODE: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Nodes that joined and are fit, and all that was measured, theirs included."""

    nodes: tuple[Node, ...]
    measured: Measured


class Inspection(Protocol):
    """Measures: with Ray, or a fake in tests. All of it blocks for seconds."""

    def links(self, nodes: Sequence[Node]) -> Network:
        """The links between nodes of a plan, with little traffic."""

    def speeds(self, nodes: Collection[str]) -> Mapping[str, float]:
        """How much each node computes beside what runs on it."""

    def newcomers(
        self, nodes: Sequence[Node], beside: Sequence[Node], known: Measured
    ) -> Newcomers:
        """Check, probe and, where their kind is new, profile nodes that joined.

        Raises:
            LauncherError: they cannot train, and why.
        """


class RayInspection:
    """Measures the nodes of a Ray cluster.

    Args:
        cluster: as it was joined.
        job: what is to be profiled.
        sentries: stand on the nodes in use.
        data: of the run.
    """

    def __init__(
        self, stretch: Stretch, cluster: Cluster, job: Job, sentries: Sentries, data: AnyData
    ) -> None:
        self._stretch, self._cluster, self._job, self._data = stretch, cluster, job, data
        self._sentries = sentries

    def links(self, nodes: Sequence[Node]) -> Network:
        """See `Inspection`."""
        return probe(
            replace(self._cluster, nodes=tuple(nodes)),
            deadline_s=DEADLINE_S,
            max_bytes=BYTES_PER_NODE * len(nodes),
        )

    def speeds(self, nodes: Collection[str]) -> Mapping[str, float]:
        """See `Inspection`."""
        return self._sentries.speeds(nodes)

    def newcomers(
        self, nodes: Sequence[Node], beside: Sequence[Node], known: Measured
    ) -> Newcomers:
        """See `Inspection`."""
        stretch = self._stretch
        joined = replace(self._cluster, nodes=tuple(nodes))
        checked = checkup(joined, needs_of(stretch.request, stretch.shipped))
        fit = checked.fit_part(joined)
        network = self.links([*beside, *fit.nodes])
        heard = tuple(node for node in fit.nodes if node.id not in network.silent)
        if not heard:
            raise ClusterError("no agent on it answered: are all ports open between the nodes?")
        self._data.look(heard)
        workload = self._workload(replace(joined, nodes=heard), known.workload)
        measured = replace(
            known, network=with_links_of(known.network, network, heard), workload=workload
        )
        return Newcomers(heard, measured)

    def _workload(self, joined: Cluster, known: Workload) -> Workload:
        """With the speeds of kinds of nodes that were not there before."""
        kinds = {speed.kind for speed in known.node_kinds}
        fresh = tuple(node for node in joined.nodes if node.kind not in kinds)
        if not fresh:
            return known
        stretch = self._stretch
        held = holdings(replace(joined, nodes=fresh), stretch.request)
        stretch.meter.hold([each.node for each in held])
        cache = ProfileCache(stretch.environment.state_dir / "profiles")
        content, known_versions = stretch.shipped.fingerprint, versions()
        keys = [fingerprint(content, self._job, known_versions, each) for each in held]
        found, _ = profile(self._job, held, keys, cache, self._data.brought_beside)
        new = tuple(speed for speed in found.node_kinds if speed.kind not in kinds)
        return replace(known, node_kinds=(*known.node_kinds, *new))


def with_links_of(known: Network, fresh: Network, joined: Collection[Node]) -> Network:
    """The map as it was, with what was measured of the links of nodes that joined."""
    new = {node.id for node in joined}
    kept = tuple(link for link in known.links if not {link.src, link.dst} & new)
    added = tuple(link for link in fresh.links if {link.src, link.dst} & new)
    places = tuple(each for each in known.interfaces if each.node not in new)
    places += tuple(each for each in fresh.interfaces if each.node in new)
    silent = tuple(node for node in known.silent if node not in new)
    return replace(known, links=(*kept, *added), interfaces=places, silent=silent)
