"""Which transfers may run side by side."""

from dataclasses import dataclass, field

from launcher.probe_routes import Route


@dataclass(slots=True)
class Lanes:
    """What each node does at the moment.

    A near transfer has its two nodes to itself, because it takes their processors. A far one
    mostly waits: a node may send over one and receive over another at the same time, but not
    both over the same way, where acknowledgements would queue behind the other's data.
    """

    _senders: set[str] = field(default_factory=set)
    _receivers: set[str] = field(default_factory=set)
    _far: set[Route] = field(default_factory=set)

    def admit(self, route: Route, *, is_far: bool) -> bool:
        """Whether it may run beside those that do."""
        if is_far:
            taken = route.src in self._senders or route.dst in self._receivers
            return not taken and route.back not in self._far
        return route.nodes.isdisjoint(self._senders | self._receivers)

    def begin(self, route: Route, *, is_far: bool) -> None:
        """It runs from now on."""
        if is_far:
            self._far.add(route)
        self._senders |= {route.src} if is_far else route.nodes
        self._receivers |= {route.dst} if is_far else route.nodes

    def end(self, route: Route) -> None:
        """It has ended."""
        if route in self._far:
            self._far.remove(route)
            self._senders.discard(route.src)
            self._receivers.discard(route.dst)
        else:
            self._senders -= route.nodes
            self._receivers -= route.nodes
