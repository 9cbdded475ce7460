"""The sentries of a run: one per node, asked every second whether node and workers live."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from launcher.worker.activity import Activity
from launcher.worker.sentry import Sentry
from policies.schema import Node

logger = logging.getLogger(__name__)

ASK_EVERY_S: Final = 1.0
STACKS_S: Final = 3.0
SPEEDS_S: Final = 5.0
CLEAR_S: Final = 1.0
# Whoever asks has been asleep itself (a suspended machine, a stopped process) if it was away for
# so long: then the others' silence means nothing.
AWAY_S: Final = 3.0


class Posts(Protocol):
    """What asks the nodes: Ray actors, or a fake in tests."""

    def station(self, node: Node) -> None:
        """Start a sentry on a node."""

    def ask(self, node_id: str, watch: str) -> Any:
        """Ask what the workers of a segment do there; returns at once, a ticket."""

    def answer(self, ticket: Any) -> tuple[Activity, ...] | None:
        """The answer if it is there, else None.

        Raises:
            SentryLostError: there will be none.
        """

    def stacks(self, node_ids: Iterable[str]) -> dict[int, str]:
        """The stacks of all ranks that can be asked; blocks for `STACKS_S` at most."""

    def speeds(self, node_ids: Iterable[str]) -> dict[str, float]:
        """What nodes compute beside what runs there; blocks for `SPEEDS_S` at most."""

    def end_workers(self) -> None:
        """Kill what is left of the workers everywhere; returns at once."""

    def dismiss(self, node_ids: Iterable[str]) -> None:
        """Let the sentries on these nodes clear up, and end all; blocks for `CLEAR_S` at most."""


class SentryLostError(Exception):
    """A node's sentry has ended; whether its node has, too, is not known."""


@dataclass(slots=True)
class Hearing:
    """When each node was last heard, on the clock of whoever asks."""

    _heard_at_s: dict[str, float] = field(default_factory=dict)
    _asked_at_s: float | None = None

    def listen(self, now_s: float) -> None:
        """Note that the asker is awake; the time that it was away does not count."""
        if self._asked_at_s is not None and now_s - self._asked_at_s > AWAY_S:
            away_s = now_s - self._asked_at_s
            self._heard_at_s = {node: at_s + away_s for node, at_s in self._heard_at_s.items()}
        self._asked_at_s = now_s

    def heard(self, node: str, now_s: float) -> None:
        """Note that a node has answered."""
        self._heard_at_s[node] = now_s

    def forget(self, node: str) -> None:
        """A node that is not asked any more."""
        self._heard_at_s.pop(node, None)

    def silent_s(self, node: str, now_s: float) -> float | None:
        """For how long a node has been silent; None if it has never been heard."""
        at_s = self._heard_at_s.get(node)
        return None if at_s is None else now_s - at_s


class Sentries:
    """Keeps asking the nodes of a run.

    Args:
        posts: ask the nodes.
        clock: monotonic seconds.
    """

    def __init__(self, posts: Posts, clock: Callable[[], float] = time.monotonic) -> None:
        self._posts, self._clock = posts, clock
        self.hearing = Hearing()
        self._nodes: dict[str, Node] = {}
        self._tickets: dict[str, tuple[Any, str]] = {}  # what was asked, and of which segment
        self._asked_at_s: dict[str, float] = {}
        self._activities: dict[str, tuple[Activity, ...]] = {}
        self._watch = ""

    def watch(self, nodes: Iterable[Node], watch: str) -> None:
        """From now on ask these nodes for the workers of this segment."""
        self._watch = watch
        self._activities.clear()
        for node in nodes:
            if node.id not in self._nodes:
                self._nodes[node.id] = node
                self._posts.station(node)

    def poll(self) -> Mapping[str, tuple[Activity, ...]]:
        """Take what was answered, ask those that have; the newest answer by node. Never blocks."""
        now_s = self._clock()
        self.hearing.listen(now_s)
        for node_id in list(self._tickets):
            self._take(node_id, now_s)
        for node_id in self._nodes:
            due = now_s - self._asked_at_s.get(node_id, -ASK_EVERY_S) >= ASK_EVERY_S
            if due and node_id not in self._tickets:
                self._tickets[node_id] = (self._posts.ask(node_id, self._watch), self._watch)
                self._asked_at_s[node_id] = now_s
        return self._activities

    def _take(self, node_id: str, now_s: float) -> None:
        ticket, watch = self._tickets[node_id]
        try:
            answer = self._posts.answer(ticket)
        except SentryLostError as error:
            logger.warning("The sentry on %s has ended: %s", self._nodes[node_id].ip, error)
            del self._tickets[node_id]  # asked again: a new one on a living node will answer
            self._posts.station(self._nodes[node_id])
            return
        if answer is None:
            return
        del self._tickets[node_id]
        self.hearing.heard(node_id, now_s)
        if watch == self._watch:
            self._activities[node_id] = answer

    def drop(self, nodes: Iterable[str]) -> None:
        """Ask these nodes no more: they are lost, or leave."""
        for node_id in nodes:
            self._nodes.pop(node_id, None)
            self._tickets.pop(node_id, None)
            self._activities.pop(node_id, None)
            self.hearing.forget(node_id)

    def silent(self, nodes: Iterable[str], at_least_s: float) -> tuple[str, ...]:
        """Those that have answered before, but not for so long."""
        now_s = self._clock()
        silent_s = {node: self.hearing.silent_s(node, now_s) for node in dict.fromkeys(nodes)}
        return tuple(node for node, s in silent_s.items() if s is not None and s > at_least_s)

    def stacks(self, nodes: Iterable[str]) -> dict[int, str]:
        """The stacks of all ranks, as far as their nodes can be asked."""
        return self._posts.stacks([node for node in dict.fromkeys(nodes) if node in self._nodes])

    def speeds(self, nodes: Iterable[str]) -> dict[str, float]:
        """What each node computes beside what runs there, of those that answer in time."""
        return self._posts.speeds([node for node in dict.fromkeys(nodes) if node in self._nodes])

    def end_workers(self) -> None:
        """Kill what is left of the workers everywhere; returns at once."""
        self._posts.end_workers()

    def dismiss(self) -> None:
        """Clear up what workers have left on their nodes, and end the sentries."""
        self._posts.dismiss(list(self._nodes))


class LocalPosts:
    """The sentry of an embedded Ray: this very process, on the one node that there is."""

    def __init__(self) -> None:
        self._sentry: Sentry | None = None

    def station(self, node: Node) -> None:
        """See `Posts`."""
        self._sentry = Sentry(node.id)

    def ask(self, node_id: str, watch: str) -> Any:  # noqa: ARG002 - there is one node
        """See `Posts`."""
        return self._sentry.look(watch) if self._sentry is not None else ()

    def answer(self, ticket: Any) -> tuple[Activity, ...] | None:
        """See `Posts`."""
        found: tuple[Activity, ...] = ticket
        return found

    def stacks(self, node_ids: Iterable[str]) -> dict[int, str]:  # noqa: ARG002
        """See `Posts`."""
        return self._sentry.stacks() if self._sentry is not None else {}

    def speeds(self, node_ids: Iterable[str]) -> dict[str, float]:
        """See `Posts`."""
        sentry = self._sentry
        return {node: sentry.speed() for node in node_ids} if sentry is not None else {}

    def end_workers(self) -> None:
        """See `Posts`."""
        if self._sentry is not None:
            self._sentry.end_workers()

    def dismiss(self, node_ids: Iterable[str]) -> None:  # noqa: ARG002
        """See `Posts`."""
        self.end_workers()
        self._sentry = None


class RayPosts:
    """Sentries as Ray actors, pinned to their nodes."""

    def __init__(self) -> None:
        self._actor_by_node: dict[str, Any] = {}

    def station(self, node: Node) -> None:
        """See `Posts`."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node.id, soft=False)
        # Two threads: one that reads stacks still says that it is alive.
        remote = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(Sentry)
        self._actor_by_node[node.id] = remote.options(scheduling_strategy=here).remote(node.id)

    def ask(self, node_id: str, watch: str) -> Any:
        """See `Posts`."""
        return self._actor_by_node[node_id].look.remote(watch)

    def answer(self, ticket: Any) -> tuple[Activity, ...] | None:
        """See `Posts`."""
        import ray
        from ray.exceptions import RayError

        if not ray.wait([ticket], timeout=0)[0]:
            return None
        try:
            found: tuple[Activity, ...] = ray.get(ticket)
        except RayError as error:
            raise SentryLostError(str(error).strip().splitlines()[-1]) from error
        return found

    def stacks(self, node_ids: Iterable[str]) -> dict[int, str]:
        """See `Posts`."""
        found: dict[int, str] = {}
        for answer in self._answers("stacks", node_ids, STACKS_S).values():
            found |= answer
        return found

    def speeds(self, node_ids: Iterable[str]) -> dict[str, float]:
        """See `Posts`."""
        return self._answers("speed", node_ids, SPEEDS_S)

    def _answers(self, method: str, node_ids: Iterable[str], timeout_s: float) -> dict[str, Any]:
        """What those nodes say that answer in time."""
        import ray
        from ray.exceptions import RayError

        node_by_ticket = {
            getattr(self._actor_by_node[node], method).remote(): node for node in node_ids
        }
        if not node_by_ticket:
            return {}
        tickets = list(node_by_ticket)
        ready, _ = ray.wait(tickets, num_returns=len(tickets), timeout=timeout_s)
        found: dict[str, Any] = {}
        for ticket in ready:
            try:
                found[node_by_ticket[ticket]] = ray.get(ticket)
            except RayError as error:
                logger.debug("no answer to %s: %s", method, error)
        return found

    def end_workers(self) -> None:
        """See `Posts`."""
        for actor in self._actor_by_node.values():
            actor.end_workers.remote()

    def dismiss(self, node_ids: Iterable[str]) -> None:
        """See `Posts`."""
        import ray

        self._answers("end_workers", node_ids, CLEAR_S)
        for actor in self._actor_by_node.values():
            ray.kill(actor)
        self._actor_by_node.clear()
