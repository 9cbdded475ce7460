"""The probe's view of agents that are Ray actors."""

import time
from collections.abc import Sequence
from typing import Any, Final

from launcher.node_agents import NodeAgents
from launcher.probe_session import AgentLostError, Ticket
from launcher.worker.greeting import Endpoint

_START_S: Final = 30.0  # an agent starts in 0.2 to 3 s, with a fifth of a core in 10 to 20 s
_START_GRACE_S: Final = 4.0
_ANSWER_S: Final = 2.0  # to fetch an answer that is there


class RayAgents:
    """The agents of a probe on Ray nodes, which `agents` starts and ends."""

    def __init__(self, agents: NodeAgents) -> None:
        self._actor_by_node = agents.started()

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
