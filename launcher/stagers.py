"""The agents that bring data: one per node, Ray actors, or this very process."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from launcher.errors import DataError, LauncherError
from launcher.worker.staging.manifest import Manifest
from launcher.worker.staging.relay import Relay
from launcher.worker.staging.stager import Stager
from launcher.worker.staging.wanted import Look, Report, Wanted
from policies.schema import Node

LOOK_S: Final = 120.0  # an agent's process starts within seconds; a million files take a minute
ANSWER_S: Final = 30.0
RELAY_AT_ONCE: Final = 16


class Stagers(Protocol):
    """Brings data to nodes: with Ray, or a fake in tests."""

    def look(self, nodes: Sequence[Node], wanted: Wanted) -> Mapping[str, "Look | LauncherError"]:
        """What each node has, by node id, or why it cannot be told; blocks for `LOOK_S` at most."""

    def begin(self, node: Node, wanted: Wanted) -> None:
        """Start to bring what a node lacks; returns at once."""

    def reports(self, node_ids: Collection[str], timeout_s: float) -> Mapping[str, Report]:
        """How far the nodes are; waits for one to end for at most so long."""

    def serve(self, manifest: Manifest, credentials: Mapping[str, str]) -> None:
        """Have this machine read for nodes that cannot."""

    def dismiss(self) -> None:
        """End all that is going on; what has arrived is kept."""


class RayStagers:
    """An actor on each node, started when first needed."""

    def __init__(self) -> None:
        self._actor_by_node: dict[str, Any] = {}
        self._relay: Any = None
        self._shared: dict[frozenset[int], Any] = {}  # what is wanted, once in the object store

    def look(self, nodes: Sequence[Node], wanted: Wanted) -> Mapping[str, Look | LauncherError]:
        """See `Stagers`."""
        import ray

        shared = self._share(wanted)
        node_by_ref = {self._actor(node.id).look.remote(shared): node for node in nodes}
        ready, _ = ray.wait(list(node_by_ref), num_returns=len(node_by_ref), timeout=LOOK_S)
        found: dict[str, Look | LauncherError] = {}
        for ref, node in node_by_ref.items():
            found[node.id] = (
                answer_of(ref, node.ip)
                if ref in ready
                else DataError(
                    f"{node.ip} has not said for {LOOK_S:.0f} s what data it has. Is it overloaded?"
                )
            )
        return found

    def listed(self, node: Node, uri: str) -> Manifest:
        """What is at a path of a node; blocks for `LOOK_S` at most.

        Raises:
            LauncherError: there is nothing, it may not be read, or the node gives no answer.
        """
        import ray

        ref = self._actor(node.id).listed.remote(uri)
        ready, _ = ray.wait([ref], timeout=LOOK_S)
        if not ready:
            raise DataError(
                f"{node.ip} has not said for {LOOK_S:.0f} s what is in {uri}. Is it overloaded?"
            )
        answer = answer_of(ref, node.ip)
        if isinstance(answer, LauncherError):
            raise answer
        assert isinstance(answer, Manifest)
        return answer

    def begin(self, node: Node, wanted: Wanted) -> None:
        """See `Stagers`."""
        self._actor(node.id).begin.remote(self._share(wanted), self._relay)

    def reports(self, node_ids: Collection[str], timeout_s: float) -> Mapping[str, Report]:
        """See `Stagers`."""
        import ray

        refs = {self._actor(each).report.remote(timeout_s): each for each in node_ids}
        ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s + ANSWER_S)
        found = {}
        for ref, node_id in refs.items():
            name = node_id[:8]
            silent = DataError(
                f"Node {name} gave no answer for {ANSWER_S:.0f} s while data were brought. Is it "
                "overloaded?"
            )
            answer = answer_of(ref, name) if ref in ready else silent
            found[node_id] = Report(error=answer) if isinstance(answer, LauncherError) else answer
        return found

    def serve(self, manifest: Manifest, credentials: Mapping[str, str]) -> None:
        """See `Stagers`."""
        import ray

        if self._relay is None:
            options = _on(ray.get_runtime_context().get_node_id(), RELAY_AT_ONCE)
            self._relay = ray.remote(Relay).options(**options).remote()
        ray.get(self._relay.serve.remote(manifest, credentials))

    def dismiss(self) -> None:
        """See `Stagers`."""
        import ray

        for actor in (*self._actor_by_node.values(), self._relay):
            if actor is not None:
                ray.kill(actor)
        self._actor_by_node, self._relay, self._shared = {}, None, {}

    def _share(self, wanted: Wanted) -> Any:
        """A reference: a long list of files goes to each node once, whoever asks."""
        import ray

        if wanted.through_driver not in self._shared:
            self._shared[wanted.through_driver] = ray.put(wanted)
        return self._shared[wanted.through_driver]

    def _actor(self, node_id: str) -> Any:
        import ray

        if node_id not in self._actor_by_node:
            # One thread waits in `report`, one looks or begins.
            options = _on(node_id, 4)
            self._actor_by_node[node_id] = ray.remote(Stager).options(**options).remote()
        return self._actor_by_node[node_id]


def _on(node_id: str, n_threads: int) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return {"num_cpus": 0, "max_concurrency": n_threads, "scheduling_strategy": here}


def answer_of(ref: Any, name: str) -> Any:
    """What an actor has answered, or the error that it raised."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        return cause if isinstance(cause, LauncherError) else DataError(f"{name}: {cause!r}")
    except ray.exceptions.RayError as error:
        return DataError(f"{name} was lost while data were brought ({type(error).__name__}).")


class LocalStagers:
    """Threads of this process, where it drives the only node."""

    def __init__(self) -> None:
        self._stager = Stager()

    def look(self, nodes: Sequence[Node], wanted: Wanted) -> Mapping[str, Look | LauncherError]:
        """See `Stagers`."""
        try:
            found: Look | LauncherError = self._stager.look(wanted)
        except LauncherError as error:
            found = error
        return {node.id: found for node in nodes}

    def begin(self, node: Node, wanted: Wanted) -> None:  # noqa: ARG002 - there is only one
        """See `Stagers`."""
        self._stager.begin(wanted)

    def reports(self, node_ids: Collection[str], timeout_s: float) -> Mapping[str, Report]:
        """See `Stagers`."""
        report = self._stager.report(timeout_s)
        return dict.fromkeys(node_ids, report)

    def serve(self, manifest: Manifest, credentials: Mapping[str, str]) -> None:
        """See `Stagers`."""

    def dismiss(self) -> None:
        """See `Stagers`."""
        self._stager.stop()
        self._stager = Stager()
