"""What a head on AWS does, as far as the launcher asks: it rents, and tells who is there.

`ssh` of the test comes here with the command that would run on the head. Ray's own node launcher
rents what the file that `ray up` left there wants from the start, and what `LAUNCH_TEST_MORE` wants
besides, as a run would.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.event_summarizer import EventSummarizer
from ray.autoscaler._private.node_launcher import BaseNodeLauncher
from ray.autoscaler._private.node_provider_availability_tracker import (
    NodeProviderAvailabilityTracker,
)
from ray.autoscaler._private.providers import _get_node_provider
from ray.autoscaler._private.util import ConcurrentCounter
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE


def main(command: str) -> None:
    """Answer what the launcher asks."""
    config = yaml.safe_load((Path.home() / "ray_bootstrap_config.yaml").read_text())
    provider = _get_node_provider(config["provider"], config["cluster_name"])
    if "lacking" in command:
        rent(config, provider)
        nodes = [[node["address"], node["resources"], node["labels"]] for node in there(provider)]
        print("launch-nodes:" + json.dumps({"nodes": nodes, "lacking": []}))
    else:
        print("launch-nodes:" + json.dumps({"now": time.time(), "nodes": there(provider)}))


def rent(config: dict[str, Any], provider: Any) -> None:
    """Rent the workers."""
    pending = ConcurrentCounter()
    launcher = BaseNodeLauncher(
        provider, pending, EventSummarizer(), NodeProviderAvailabilityTracker(), "test"
    )
    more = json.loads(os.environ.get("LAUNCH_TEST_MORE", "{}"))
    for name, about in config["available_node_types"].items():
        n_wanted = about.get("min_workers", 0) + more.get(name, 0)
        if name == config["head_node_type"]:
            continue
        while n_lacking := n_wanted - n_rented(
            provider, name
        ):  # moto rents fewer than it is asked for
            pending.inc(name, n_lacking)
            launcher.launch_node(config, n_lacking, name)


def n_rented(provider: Any, name: str) -> int:
    """How many machines of a type are rented."""
    return len(provider.non_terminated_nodes({TAG_RAY_USER_NODE_TYPE: name}))


def there(provider: Any) -> list[dict[str, Any]]:
    """All machines, as Ray would tell of them."""
    return [
        {
            "address": provider.internal_ip(name),
            "resources": {"CPU": 8.0},
            "labels": {"launch/price-usd-per-hour": "0.34"},
            "begun_at": time.time(),
            "ended_at": None,
        }
        for name in provider.non_terminated_nodes({})
    ]


if __name__ == "__main__":
    main(sys.argv[1])
