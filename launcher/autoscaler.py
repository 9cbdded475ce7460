"""Ray's autoscaler: which nodes it may start, and the one place that asks it for nodes.

Ray Train's coordinator, an actor that outlives every job, sends the autoscaler its own request
every 20 s, which replaces any other. So nodes are asked for through that same actor: it adds up
what all its callers want, and forgets what a caller has not renewed.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from launcher.cluster_nodes import NODE_GROUP
from launcher.node_types import Autoscaling, autoscaling_of
from launcher.worker.autoscaling_config import autoscaling_words

log = logging.getLogger(__name__)

KEEP_S: Final = 40.0  # a request that nobody renews for so long is forgotten …
RENEW_S: Final = 10.0  # … and 20 s later no longer sent
_ANSWER_S: Final = 20.0  # the first call starts the actor
_READ_S: Final = 30.0  # a task on the head starts in 1 to 3 s
_HEAD = "node:__internal_head__"  # a resource that only the head has


@dataclass(frozen=True, slots=True)
class Bundle:
    """Room for one worker: a whole node with these labels."""

    cpus: float
    gpus: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def resources(self) -> dict[str, float]:
        """As Ray writes it."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


class Autoscaler(Protocol):
    """Whoever starts nodes: Ray's autoscaler, or a fake in tests."""

    def ask(self, bundles: Sequence[Bundle]) -> None:
        """Want the cluster to have room for these, until `release` or for `KEEP_S`."""

    def release(self) -> None:
        """Want nothing any more."""

    def failures(self) -> dict[str, str]:
        """Why nodes could not be started, by node type."""


class RayAutoscaler:
    """Asks for nodes in the name of one run.

    Args:
        run: its name.
        address: `host:port` of the cluster.
    """

    def __init__(self, run: str, address: str) -> None:
        self._requester, self._address = f"launch-{run}", address
        self._coordinator: Any = None

    def ask(self, bundles: Sequence[Bundle]) -> None:
        """See `Autoscaler`."""
        import ray

        if self._coordinator is None:
            from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator

            self._coordinator = (
                default_autoscaling_coordinator.get_or_create_autoscaling_coordinator()
            )
        asked = self._coordinator.request_resources.remote(
            requester_id=self._requester,
            resources=[bundle.resources for bundle in bundles],
            label_selectors=[dict(bundle.labels) for bundle in bundles],
            expire_after_s=KEEP_S,
        )
        ray.get(asked, timeout=_ANSWER_S)

    def release(self) -> None:
        """See `Autoscaler`."""
        import ray

        if self._coordinator is not None:
            done = self._coordinator.cancel_request.remote(requester_id=self._requester)
            ray.get(done, timeout=_ANSWER_S)

    def failures(self) -> dict[str, str]:
        """See `Autoscaler`."""
        from ray.autoscaler.v2.sdk import get_cluster_status

        try:
            failed = get_cluster_status(self._address).failed_launches
        except (RuntimeError, ValueError, KeyError) as error:  # such as an older autoscaler's
            log.debug("the autoscaler's state cannot be read: %s", error)
            return {}
        return {each.ray_node_type_name: str(each.details or "") for each in failed}


class StandingRequest:
    """Bundles that are asked for as long as the context is open, renewed in the background.

    If this process dies, the request ends by itself.
    """

    def __init__(self, autoscaler: Autoscaler, bundles: Sequence[Bundle]) -> None:
        self._autoscaler, self._bundles = autoscaler, tuple(bundles)
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="launch-scaling", daemon=True)

    def __enter__(self) -> "StandingRequest":
        self._autoscaler.ask(self._bundles)
        self._renewing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Want nothing any more. What cannot be said to the autoscaler it forgets by itself."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._renewing.join(_ANSWER_S)
        self._try(self._autoscaler.release)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            self._try(lambda: self._autoscaler.ask(self._bundles))

    def _try(self, action: Any) -> None:
        from ray.exceptions import GetTimeoutError, RayError

        try:
            action()
        except (RayError, GetTimeoutError, OSError) as error:
            log.warning("the autoscaler did not hear us: %s", " ".join(str(error).split()))


def read_autoscaling(address: str) -> Autoscaling | None:
    """What the autoscaler of the connected cluster may start; None where there is none.

    Its configuration lies on the head: on another node a task reads it there (1 to 3 s), where
    a node's label shows that an autoscaler is at work.
    """
    import ray

    alive = [raw for raw in ray.nodes() if raw["Alive"]]
    head = next((raw["NodeID"] for raw in alive if _HEAD in raw["Resources"]), None)
    words = None
    if head == ray.get_runtime_context().get_node_id():
        words = autoscaling_words(address)
    elif head is not None and any(NODE_GROUP in (raw.get("Labels") or {}) for raw in alive):
        words = _read_on(head, address)
    return autoscaling_of(words or _reported())


def _read_on(node: str, address: str) -> dict[str, Any] | None:
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    read = ray.remote(num_cpus=0, max_retries=0)(autoscaling_words)
    try:
        found = ray.get(read.options(scheduling_strategy=there).remote(address), timeout=_READ_S)
    except (RayError, GetTimeoutError) as error:
        log.warning("the head does not tell which nodes can be started: %s", error)
        return None
    return dict(found) if found else None


def _reported() -> dict[str, Any]:
    """What a hosted autoscaler has told Ray of its node groups, in the words of a cluster file."""
    from ray._private.state import state

    config = state.get_cluster_config()
    if config is None:
        return {}
    types = {
        group.name: {"resources": dict(group.resources), "max_workers": group.max_count}
        for group in config.node_group_configs
    }
    return {"available_node_types": types, "max_workers": -1}
