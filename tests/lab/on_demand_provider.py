"""A node provider for Ray's autoscaler on a lab's head: writes down which hosts it wants.

Whoever runs the lab reads that and starts Ray on them, for the head cannot reach into other hosts.
"""

import json
import threading
from pathlib import Path
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

HEAD = "h1"


class OnDemandProvider(NodeProvider):
    """Hosts of a lab, each wanted as long as a file of its name lies in a folder.

    Args:
        provider_config: `folder`, and the `hosts` besides the head that may be wanted.
        cluster_name: of no matter.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._folder = Path(provider_config["folder"])
        self._lock = threading.Lock()

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Hosts that are wanted, and the head, with these tags."""
        found = [HEAD, *(path.name for path in self._folder.iterdir())]
        return [name for name in found if tag_filters.items() <= self.node_tags(name).items()]

    def is_running(self, node_id: str) -> bool:
        """Whether it is wanted."""
        return node_id == HEAD or (self._folder / node_id).exists()

    def is_terminated(self, node_id: str) -> bool:
        """Whether it is wanted no more."""
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        """Its tags; none once it is wanted no more."""
        if node_id == HEAD:
            kind = {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: "head"}
            return {**kind, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
        try:
            tags: dict[str, str] = json.loads((self._folder / node_id).read_text())
        except FileNotFoundError:
            return {}
        return tags

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        """Add to its tags."""
        with self._lock:
            self._write(node_id, {**self.node_tags(node_id), **tags})

    def internal_ip(self, node_id: str) -> str:
        """Its address."""
        return f"10.99.0.{node_id.removeprefix('h')}"

    def external_ip(self, node_id: str) -> str:
        """Its address."""
        return self.internal_ip(node_id)

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> None:
        """Want so many hosts more."""
        with self._lock:
            free = [h for h in self.provider_config["hosts"] if not (self._folder / h).exists()]
            for name in free[:count]:
                self._write(name, {**tags, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE})
            if len(free) < count:
                raise RuntimeError(f"no host is left: {count} wanted, {len(free)} free")

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: Any, labels: Any
    ) -> None:
        """Want so many hosts more."""
        self.create_node(node_config, tags, count)

    def terminate_node(self, node_id: str) -> None:
        """Want a host no more."""
        (self._folder / node_id).unlink(missing_ok=True)

    def _write(self, name: str, tags: dict[str, str]) -> None:
        beside = self._folder.parent / f".{name}.new"
        beside.write_text(json.dumps(tags))
        beside.replace(self._folder / name)
