"""Which transfers of a probe run now, and which wait for their nodes."""

from collections import defaultdict
from collections.abc import Iterator, Set

from launcher.probe_routes import Route
from launcher.transfer_lanes import Lanes
from launcher.transfer_plan import MAX_ROUTES, planned_starts

_NEAR, _FAR, _LAST = range(3)


class TransferQueue:
    """Transfers that wait, and the nodes that are busy with those that run.

    Near ones go first, they are done in no time. The far ones of a node go in a planned order, for
    the sake of which it may wait a moment; if they are many, the longest first. A node's loopback
    is measured when it has nothing else to do.
    """

    def __init__(self) -> None:
        self._rank: dict[Route, tuple[int, float]] = {}
        self._waiting_by_node: defaultdict[str, set[Route]] = defaultdict(set)
        self._lanes = Lanes()
        self._freed: set[str] = set()  # nodes whose waiting transfers are worth another look
        self._planned: dict[Route, float] = {}
        self._is_planned = False

    def __len__(self) -> int:
        return len(self._rank)

    def add(self, route: Route, rtt_s: float, *, is_far: bool) -> None:
        """Let a transfer wait."""
        self._rank[route] = _LAST if route.is_loopback else _FAR if is_far else _NEAR, -rtt_s
        for node in route.nodes:
            self._waiting_by_node[node].add(route)
        self._is_planned = False
        self.free(route.src)

    def free(self, node: str) -> None:
        """A node may be asked again."""
        self._freed.add(node)

    def drop(self, node: str) -> None:
        """Nothing over this node is wanted any more."""
        for route in list(self._waiting_by_node[node]):
            self._forget(route)
            self._freed |= route.nodes

    def clear(self) -> None:
        """Nothing is wanted any more."""
        self._rank.clear()
        self._waiting_by_node.clear()

    def start(self, blocked: Set[str]) -> Iterator[Route]:
        """Transfers that can run now, each of which runs from then on.

        Args:
            blocked: nodes that shall not be asked at the moment.
        """
        if not self._is_planned:
            self._planned, self._is_planned = self._plan(), True
        seen = {route for node in self._freed for route in self._waiting_by_node[node]}
        self._freed.clear()
        for route in sorted(seen, key=self._order):
            if route not in self._rank or not blocked.isdisjoint(route.nodes):
                continue
            if not self._is_next(route, blocked):
                self._freed.add(route.src)  # it may be next whenever another one's node is blocked
            elif self._lanes.admit(route, is_far=self._is_far(route)):
                self._lanes.begin(route, is_far=self._is_far(route))
                self._forget(route)
                yield route

    def end(self, route: Route) -> None:
        """A transfer has ended."""
        self._lanes.end(route)
        self._freed |= route.nodes

    def _plan(self) -> dict[Route, float]:
        far = {route: -rank[1] for route, rank in self._rank.items() if self._is_far(route)}
        return planned_starts(far) if len(far) <= MAX_ROUTES else {}

    def _is_far(self, route: Route) -> bool:
        return self._rank[route][0] == _FAR

    def _is_next(self, route: Route, blocked: Set[str]) -> bool:
        """Whether nothing that it would be in the way of comes before it by the plan."""
        if (start := self._planned.get(route)) is None:
            return True
        return all(
            self._planned.get(other, start) >= start
            for other in self._waiting_by_node[route.src] | self._waiting_by_node[route.dst]
            if other.src == route.src or other.dst == route.dst or other == route.back
            if blocked.isdisjoint(other.nodes)
        )

    def _order(self, route: Route) -> tuple[tuple[int, float], float, str, str, str]:
        return self._rank[route], self._planned.get(route, 0.0), route.src, route.dst, route.path

    def _forget(self, route: Route) -> None:
        del self._rank[route]
        for node in route.nodes:
            self._waiting_by_node[node].discard(route)
