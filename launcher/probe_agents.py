"""Probe agents as Ray actors, one per node."""

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from launcher.probe_session import AgentLostError, Ticket
from launcher.worker.agent import TOKEN_BYTES, ProbeAgent
from launcher.worker.greeting import Endpoint
from policies.schema import Node

_START_S: Final = 30.0  # an agent starts in 0.2 to 3 s, with a fifth of a core in 10 to 20 s
_START_GRACE_S: Final = 4.0
_ANSWER_S: Final = 2.0  # to fetch an answer that is there


class RayAgents:
    """Agents on Ray nodes; `stop` ends them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        token = os.urandom(TOKEN_BYTES)
        # Two threads: an agent that measures still says that it is alive.
        remote = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(ProbeAgent)
        self._actor_by_node: dict[str, Any] = {}
        for node in nodes:
            here = NodeAffinitySchedulingStrategy(node.id, soft=False)
            start = remote.options(scheduling_strategy=here).remote
            self._actor_by_node[node.id] = start(node.ip, token, everywhere=len(nodes) > 1)

    def started(self, at_most_s: float = _START_S) -> dict[str, tuple[Endpoint, ...]]:
        """Where those agents answer that come up in time.

        Waits for half of them, then for the rest: some seconds, and twice as long again. So a
        few silent nodes cost little, and slow ones are not taken for silent.
        """
        import ray

        ticket_by_node = {node: self.ask(node, "endpoints") for node in self._actor_by_node}
        tickets = list(ticket_by_node.values())
        asked_s = time.monotonic()
        ray.wait(tickets, num_returns=(len(tickets) + 1) // 2, timeout=at_most_s)
        half_s = time.monotonic() - asked_s
        patience_s = max(0.0, min(at_most_s - half_s, _START_GRACE_S + 2 * half_s))
        ready, _ = ray.wait(tickets, num_returns=len(tickets), timeout=patience_s)
        found = {}
        for node, ticket in ticket_by_node.items():
            if ticket in ready:
                try:
                    found[node] = self.answer(ticket)
                except AgentLostError:
                    continue
        return found

    def ask(self, node: str, method: str, *args: Any) -> Ticket:
        """See `probe_session.Agents`; the ticket is Ray's own."""
        ticket: Ticket = getattr(self._actor_by_node[node], method).remote(*args)
        return ticket

    def answered(self, tickets: Sequence[Ticket], timeout_s: float) -> list[Ticket]:
        """See `probe_session.Agents`."""
        import ray

        first, _ = ray.wait(list(tickets), num_returns=1, timeout=timeout_s)
        if not first:
            return []
        ready: list[Ticket]
        ready, _ = ray.wait(list(tickets), num_returns=len(tickets), timeout=0)
        return ready

    def answer(self, ticket: Ticket) -> Any:
        """See `probe_session.Agents`."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            return ray.get(ticket, timeout=_ANSWER_S)
        except (RayError, GetTimeoutError, OSError) as error:
            raise AgentLostError(str(error)) from error

    def stop(self) -> None:
        """End all agents."""
        import ray

        for actor in self._actor_by_node.values():
            ray.kill(actor)
