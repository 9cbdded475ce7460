"""The launcher's agents on the nodes of a cluster: Ray actors, one per node."""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.worker.checkup import TOKEN_BYTES
from launcher.worker.node_agent import NodeAgent
from policies.schema import Node


class NodeAgents:
    """One agent per node, started when first needed; a context manager that ends them.

    An agent's process takes a second of its node's processor to start, so check and probe share
    them: whoever comes first starts them, on whatever thread.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.token = os.urandom(TOKEN_BYTES)
        self._nodes = tuple(nodes)
        self._actor_by_node: dict[str, Any] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> "NodeAgents":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def started(self) -> Mapping[str, Any]:
        """The actors by node id, which come up in the background; none once they have ended."""
        with self._lock:
            if self._actor_by_node is None:
                self._actor_by_node = self._start()
            return self._actor_by_node

    def stop(self) -> None:
        """End all agents."""
        import ray

        with self._lock:
            for actor in (self._actor_by_node or {}).values():
                ray.kill(actor)
            self._actor_by_node = {}

    def _start(self) -> dict[str, Any]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Two threads: an agent that measures still says that it is alive.
        remote = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(NodeAgent)
        everywhere = len(self._nodes) > 1
        found = {}
        for node in self._nodes:
            here = NodeAffinitySchedulingStrategy(node.id, soft=False)
            start = remote.options(scheduling_strategy=here).remote
            found[node.id] = start(node.ip, self.token, everywhere=everywhere)
        return found
