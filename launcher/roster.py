"""Who is in the cluster while training runs: nodes that joined, nodes that are to leave."""

import logging
from collections.abc import Mapping
from typing import Protocol

from launcher.cluster import Cluster, refresh
from launcher.errors import ClusterError
from policies.schema import Node

logger = logging.getLogger(__name__)


class Roster(Protocol):
    """Reads the cluster's books: Ray's, or a fake's in tests."""

    def free(self) -> tuple[Node, ...]:
        """Nodes of which nothing is held, at this moment."""

    def leaving(self) -> Mapping[str, float | None]:
        """Nodes that have had their notice, with the seconds they still have, where known."""


class RayRoster:
    """Ray's own books."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._said: set[str] = set()

    def free(self) -> tuple[Node, ...]:
        """See `Roster`."""
        try:
            return refresh(self._cluster, 0.0).nodes
        except ClusterError as error:  # such as a node whose price label is no price
            if str(error) not in self._said:
                logger.warning("the nodes cannot be read: %s", error)
            self._said.add(str(error))
            return ()

    def leaving(self) -> Mapping[str, float | None]:
        """See `Roster`.

        `ray.train.get_preemption_info` tells workers the same, from the same table.
        """
        import time

        from ray._private.state import state

        now_s = time.time()
        deadline_ms_by_node: Mapping[str, int] = state.get_draining_nodes() or {}
        return {
            node: max(0.0, ms / 1000.0 - now_s) if ms > 0 else None
            for node, ms in deadline_ms_by_node.items()
        }
