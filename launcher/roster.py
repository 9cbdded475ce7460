"""Who is in the cluster while training runs: nodes that joined, nodes that are to leave."""

import logging
import time
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
    """Ray's own books. What cannot be read at a moment is looked up again at the next one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._said: set[str] = set()

    def free(self) -> tuple[Node, ...]:
        """See `Roster`."""
        from ray.exceptions import RayError

        try:
            return refresh(self._cluster, 0.0).nodes
        except (ClusterError, RayError, RuntimeError) as error:  # such as a price that is no price
            self._say(error)
            return ()

    def leaving(self) -> Mapping[str, float | None]:
        """See `Roster`.

        `ray.train.get_preemption_info` tells workers the same, from the same table.
        """
        from ray._private.state import state
        from ray.exceptions import RayError

        try:
            found: Mapping[str, int] = state.get_draining_nodes() or {}
        except (RayError, RuntimeError) as error:
            self._say(error)
            return {}
        return seconds_left_by_node(found, time.time())

    def _say(self, error: Exception) -> None:
        text = str(error)
        if text not in self._said:
            logger.warning("Ray's books cannot be read: %s", text)
        self._said.add(text)


def seconds_left_by_node(
    deadline_ms_by_node: Mapping[str, int], now_s: float
) -> dict[str, float | None]:
    """What is left of each node's notice; None where there is no deadline (Ray's 0).

    Args:
        deadline_ms_by_node: in milliseconds since the epoch.
        now_s: seconds since the epoch.
    """
    return {
        node: max(0.0, ms / 1000.0 - now_s) if ms > 0 else None
        for node, ms in deadline_ms_by_node.items()
    }
