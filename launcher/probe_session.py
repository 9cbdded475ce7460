"""Leads the probe's agents: round trips of all routes, then transfers over free nodes."""

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from launcher.network_map import Findings
from launcher.probe_routes import EndpointsByNode, Route, way
from launcher.transfer_queue import TransferQueue
from launcher.worker.greeting import CONNECT_S, Way
from launcher.worker.round_trips import Pings, RoundTrip
from launcher.worker.transfer import FAR_S
from launcher.worker.upload import Effort, Rate
from policies.schema import DEFAULT_PATH

log = logging.getLogger(__name__)

Ticket = Hashable

_LIFE_S: Final = 2.0  # an agent that doesn't say a word for so long is silent
_USUAL_S: Final = 2.5  # a transfer inside a datacenter takes 0.1 to 1 s, a far one up to 2 s …
_PATIENCE_S: Final = 5.5  # … and so much more on a bad path, if both ends are alive
_MIN_BYTES: Final = 64 << 10
_MAX_BYTES: Final = 256 << 20
_ENOUGH_BYTES: Final = 4 << 20  # what most routes need, see `transfer.receive`
_LOOPBACK = Effort(max_bytes=48 << 20, max_s=0.25, repeats=3)
_LAST_LOOKS, _LAST_LOOK_S = 10, 0.1  # so often and for so long, for what agents say at the end
_MIN_PINGS, _MAX_PINGS = 100, 300  # per path; per agent, unless it has more than three


class AgentLostError(Exception):
    """An agent failed, or can't be reached."""


class Agents(Protocol):
    """Probe agents on nodes, however they are reached."""

    def ask(self, node: str, method: str, *args: Any) -> Ticket:
        """Call a method of a node's `ProbeAgent`; its answer comes later, under the ticket."""

    def answered(self, tickets: Sequence[Ticket], timeout_s: float) -> list[Ticket]:
        """Those with an answer; waits for the first one if there is none."""

    def answer(self, ticket: Ticket) -> Any:
        """What an answered call gave. Raises AgentLostError if it failed."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What an agent was asked, for which routes, and until when that may take."""

    kind: Literal["pings", "transfer", "life"]
    node: str
    routes: tuple[Route, ...]
    due_s: float
    max_bytes: int = 0
    is_late: bool = False


@dataclass(slots=True)
class ProbeSession:
    """One probe of a set of routes.

    Args:
        agents: one per node.
        endpoints_by_path: where they answer, by network.
        routes: what to measure.
        deadline_s: on `time.monotonic`.
        max_bytes: that all transfers together may carry, headers and repeats aside.
        progress: is told in a few words what is going on.
    """

    agents: Agents
    endpoints_by_path: Mapping[str, EndpointsByNode]
    routes: Sequence[Route]
    deadline_s: float
    max_bytes: int
    progress: Callable[[str], None]
    findings: Findings = field(default_factory=Findings)
    _calls: dict[Ticket, _Call] = field(default_factory=dict)
    _suspects: set[str] = field(default_factory=set)
    _queue: TransferQueue = field(default_factory=TransferQueue)
    _rtt_s: dict[Route, float] = field(default_factory=dict)
    _left_bytes: int = 0

    def measure(self) -> Findings:
        """Measure until all is known or the deadline is over."""
        self._left_bytes = self.max_bytes
        self._ask_to_hold()
        self._ask_for_pings()
        while self._calls and self._left_s():
            seen_s = time.monotonic()  # what isn't answered now has not been answered by then
            self._settle(self.agents.answered(list(self._calls), self._next_due_s()))
            self._chase(seen_s)
            if not self._is_pinging():
                self._start_transfers()
        self._ask_for_traffic()
        return self.findings

    def _ip(self, node: str, path: str = DEFAULT_PATH) -> str:
        """A node's address, for people."""
        endpoint = self.endpoints_by_path[path].get(node)
        return endpoint.ip if endpoint else node

    def _left_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())

    def _next_due_s(self) -> float:
        first_s = min(call.due_s for call in self._calls.values())
        return max(0.0, min(first_s, self.deadline_s) - time.monotonic())

    def _ask(
        self, kind: Literal["pings", "transfer", "life"], node: str, may_take_s: float,
        method: str, *args: Any, routes: Sequence[Route] = (), max_bytes: int = 0,
    ) -> None:  # fmt: skip
        ticket = self.agents.ask(node, method, *args)
        due_s = time.monotonic() + may_take_s
        self._calls[ticket] = _Call(kind, node, tuple(routes), due_s, max_bytes)

    def _ask_to_hold(self) -> None:
        """Transfers find their streams open, which saves a far one a round trip."""
        ways_by_src: dict[str, list[Way]] = {}
        for route in self.routes:
            for each in {route, route.back} if not route.is_loopback else ():
                found = way(each, self.endpoints_by_path)
                ways_by_src.setdefault(each.src, []).append(found)
        for node, ways in ways_by_src.items():
            self.agents.ask(node, "hold", ways)

    def _ask_for_pings(self) -> None:
        """Each agent pings all its peers in one go: pings hardly disturb each other."""
        routes_by_src: dict[str, list[Route]] = {}
        for route in self.routes:
            routes_by_src.setdefault(route.src, []).append(route)
        most = max((len(routes) for routes in routes_by_src.values()), default=1)
        pings = Pings(n=max(_MIN_PINGS, min(_MAX_PINGS, _MAX_PINGS // most)))
        for node, routes in routes_by_src.items():
            ways = [way(route, self.endpoints_by_path) for route in routes]
            sending_s = len(routes) * pings.n * pings.interval_s
            may_take_s = CONNECT_S + sending_s + 2 * pings.wait_s + 1.0
            self._ask("pings", node, may_take_s, "round_trips", ways, pings, routes=routes)

    def _is_pinging(self) -> bool:
        """Whether agents that we don't doubt still send pings: a transfer would disturb them."""
        return any(c.kind == "pings" and c.node not in self._suspects for c in self._calls.values())

    def _settle(self, tickets: Sequence[Ticket]) -> None:
        """Take in what has been answered."""
        for ticket in tickets:
            call = self._calls.pop(ticket, None)
            if call is None:
                continue  # of a node that fell silent meanwhile
            try:
                answer = self.agents.answer(ticket)
            except AgentLostError as error:
                log.warning("the probe agent of %s failed: %s", self._ip(call.node), error)
                self._lose(call)
                continue
            if call.kind == "life":
                self._suspects.discard(call.node)
                self._queue.free(call.node)
            elif call.kind == "pings":
                self._take_pings(call, answer)
            else:
                self._take_rate(call, answer)

    def _take_pings(self, call: _Call, trips: Sequence[RoundTrip]) -> None:
        for route, trip in zip(call.routes, trips, strict=True):
            self.findings.round_trips[route] = trip
            if trip.rtt_s is not None:
                for each in {route, route.back}:
                    self._rtt_s[each] = trip.rtt_s
                    self._queue.add(each, trip.rtt_s, is_far=trip.rtt_s >= FAR_S)
            else:
                self._doubt(route, trip.error)
        n_known = len(self.findings.round_trips)
        self.progress(f"round trips of {n_known} of {len(self.routes)} paths")

    def _take_rate(self, call: _Call, rate: Rate) -> None:
        (route,) = call.routes
        self._queue.end(route)
        self.findings.rates[route] = rate
        # What is under way when the receiver has seen enough is at most what it has seen.
        self._left_bytes += max(0, call.max_bytes - 2 * rate.n_bytes - _MIN_BYTES)
        if rate.error:
            self._doubt(route, rate.error)
        n_known, n_all = len(self.findings.rates), len(self._rtt_s)
        self.progress(f"bandwidth of {n_known} of {n_all} directions")

    def _start_transfers(self) -> None:
        """Over each waiting route whose nodes are free, as far as the bytes go."""
        for route in self._queue.start(self._suspects):
            effort = self._effort(route, n_waiting=len(self._queue) + 1)
            if effort is None:
                log.warning("the probe's bytes are used up: %d left", self._left_bytes)
                self._queue.clear()
                return
            self._start_transfer(route, effort)

    def _start_transfer(self, route: Route, effort: Effort) -> None:
        self._left_bytes -= effort.max_bytes
        asked = (way(route, self.endpoints_by_path), effort, self._rtt_s[route])
        self._ask(
            "transfer", route.src, _USUAL_S, "rate", *asked,
            routes=[route], max_bytes=effort.max_bytes,
        )  # fmt: skip

    def _effort(self, route: Route, n_waiting: int) -> Effort | None:
        """A fair share of the bytes, or more where all can still have enough; None: too few."""
        fair = self._left_bytes // n_waiting
        at_once = len(self.endpoints_by_path[DEFAULT_PATH])
        spare = (self._left_bytes - n_waiting * _ENOUGH_BYTES) // at_once
        share = min(_MAX_BYTES, max(fair, spare))
        if share < _MIN_BYTES:
            return None
        if route.is_loopback:
            return replace(_LOOPBACK, max_bytes=min(_LOOPBACK.max_bytes, share))
        return Effort(max_bytes=share)

    def _doubt(self, route: Route, why: str | None) -> None:
        """A route failed: ask whether its ends are alive; if both are, only the way is blocked.

        On a further network a failure says nothing about the nodes.
        """
        ends = self._ip(route.src, route.path), self._ip(route.dst, route.path)
        log.warning("the path from %s to %s: %s", *ends, why)
        if route.path == DEFAULT_PATH:
            for node in route.nodes - self._suspects - self.findings.silent:
                self._suspects.add(node)
                self._ask("life", node, _LIFE_S, "endpoints")

    def _chase(self, seen_s: float) -> None:
        """Doubt what was overdue when last looked at, and give it up when it's overdue again."""
        now_s = time.monotonic()
        for ticket, call in list(self._calls.items()):
            if call.due_s > seen_s or ticket not in self._calls:
                continue
            if call.kind == "life" or call.is_late:
                del self._calls[ticket]
                self._lose(call)
            else:
                self._calls[ticket] = replace(call, due_s=now_s + _PATIENCE_S, is_late=True)
                own = [r for r in call.routes if r.src == r.dst] if call.kind == "pings" else []
                for route in own or call.routes:
                    self._doubt(route, "no answer yet")

    def _lose(self, call: _Call) -> None:
        """A call failed: its node is silent if it was asked for life, else it's asked now."""
        if call.kind == "transfer":
            self._queue.end(call.routes[0])
        if call.kind != "life":
            for route in call.routes[:1]:
                self._doubt(route, "no answer")
            return
        log.warning("%s is silent: its probe agent stopped answering", self._ip(call.node))
        self._suspects.discard(call.node)
        self.findings.silent.add(call.node)
        self._queue.drop(call.node)
        for ticket, other in self._calls_of(call.node):
            if other.kind == "transfer":
                self._queue.end(other.routes[0])
            if other.kind != "pings" or other.node == call.node:
                del self._calls[ticket]

    def _calls_of(self, node: str) -> Iterator[tuple[Ticket, _Call]]:
        for ticket, call in list(self._calls.items()):
            if call.node == node or any(node in route.nodes for route in call.routes):
                yield ticket, call

    def _ask_for_traffic(self) -> None:
        """What each agent's transfers sent; a last word that nobody waits long for."""
        nodes = self.endpoints_by_path[DEFAULT_PATH].keys() - self.findings.silent - self._suspects
        node_by_ticket = {self.agents.ask(node, "traffic"): node for node in nodes}
        n_in_vain = 0  # by looks, not by the clock: this process may have been held up itself
        while node_by_ticket and n_in_vain < _LAST_LOOKS:
            answered = self.agents.answered(list(node_by_ticket), _LAST_LOOK_S)
            n_in_vain += not answered
            for ticket in answered:
                node = node_by_ticket.pop(ticket)
                try:
                    self.findings.traffic[node] = self.agents.answer(ticket)
                except AgentLostError as error:
                    log.warning("the probe agent of %s failed: %s", self._ip(node), error)
