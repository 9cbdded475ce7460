"""Which transfers may run at the same time, and which wait for their nodes."""

from collections import defaultdict
from collections.abc import Iterator, Set

from launcher.probe_routes import Route

_NEAR, _FAR, _LAST = range(3)


class TransferQueue:
    """Transfers that wait, and the nodes that are busy with those that run.

    A near transfer has its two nodes to itself, because it takes their processors. A far one
    mostly waits: a node may send over one and receive over another at the same time, but not
    both over the same way, where acknowledgements would queue behind the other's data.
    Near ones go first, they are done in no time; of the far ones, the longest. A node's loopback
    is measured when it has nothing else to do.
    """

    def __init__(self) -> None:
        self._rank: dict[Route, tuple[int, float]] = {}
        self._waiting_by_node: defaultdict[str, set[Route]] = defaultdict(set)
        self._senders: set[str] = set()
        self._receivers: set[str] = set()
        self._far: set[Route] = set()
        self._freed: set[str] = set()  # nodes whose waiting transfers are worth another look

    def __len__(self) -> int:
        return len(self._rank)

    def add(self, route: Route, rtt_s: float, *, is_far: bool) -> None:
        """Let a transfer wait."""
        self._rank[route] = _LAST if route.is_loopback else _FAR if is_far else _NEAR, -rtt_s
        for node in route.nodes:
            self._waiting_by_node[node].add(route)
        self.free(route.src)

    def free(self, node: str) -> None:
        """A node may be asked again."""
        self._freed.add(node)

    def drop(self, node: str) -> None:
        """Nothing over this node is wanted any more."""
        for route in list(self._waiting_by_node[node]):
            self._forget(route)

    def clear(self) -> None:
        """Nothing is wanted any more."""
        self._rank.clear()
        self._waiting_by_node.clear()

    def start(self, blocked: Set[str]) -> Iterator[Route]:
        """Transfers that can run now, each of which runs from then on.

        Args:
            blocked: nodes that shall not be asked at the moment.
        """
        seen = {route for node in self._freed for route in self._waiting_by_node[node]}
        self._freed.clear()
        for route in sorted(seen, key=self._order):
            if route in self._rank and blocked.isdisjoint(route.nodes) and self._admits(route):
                self._run(route)
                yield route

    def end(self, route: Route) -> None:
        """A transfer has ended."""
        if route in self._far:
            self._far.remove(route)
            self._senders.discard(route.src)
            self._receivers.discard(route.dst)
        else:
            self._senders -= route.nodes
            self._receivers -= route.nodes
        self._freed |= route.nodes

    def _order(self, route: Route) -> tuple[tuple[int, float], str, str, str]:
        return self._rank[route], route.src, route.dst, route.path

    def _admits(self, route: Route) -> bool:
        if self._rank[route][0] == _FAR:
            taken = route.src in self._senders or route.dst in self._receivers
            return not taken and route.back not in self._far
        return route.nodes.isdisjoint(self._senders | self._receivers)

    def _run(self, route: Route) -> None:
        is_far = self._rank[route][0] == _FAR
        self._forget(route)
        if is_far:
            self._far.add(route)
        self._senders |= {route.src} if is_far else route.nodes
        self._receivers |= {route.dst} if is_far else route.nodes

    def _forget(self, route: Route) -> None:
        del self._rank[route]
        for node in route.nodes:
            self._waiting_by_node[node].discard(route)
