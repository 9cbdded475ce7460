"""Simulated machines and networks, with what happens to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Deliver = Callable[[float], None]
"""Lets a message arrive at a time in seconds."""


@dataclass(frozen=True, slots=True)
class Link:
    """A directed pair of workers.

    Attributes:
        one_way_s: latency.
        bytes_per_s: what it carries.
    """

    one_way_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Slowed:
    """From a time on, a worker has another speed."""

    at_s: float
    rank: int
    examples_per_s: float


@dataclass(frozen=True, slots=True)
class Killed:
    """A worker dies, and is there again later, with nothing."""

    at_s: float
    rank: int
    back_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class World:
    """What the workers run on.

    Attributes:
        examples_per_s: of each worker.
        step_s: what each step takes besides its examples.
        links: by pair of ranks.
        events: what happens.
    """

    examples_per_s: tuple[float, ...]
    links: Mapping[tuple[int, int], Link]
    step_s: float = 0.01
    events: tuple[Slowed | Killed, ...] = field(default=())

    @property
    def n_workers(self) -> int:
        """How many workers there are."""
        return len(self.examples_per_s)

    def speed(self, rank: int, now_s: float) -> float:
        """Examples per second of a worker at a time."""
        speed = self.examples_per_s[rank]
        for event in self.events:
            if isinstance(event, Slowed) and event.rank == rank and event.at_s <= now_s:
                speed = event.examples_per_s
        return speed


class Wires:
    """Messages one after another over the link of each pair."""

    def __init__(self, links: Mapping[tuple[int, int], Link]) -> None:
        self._links = links
        self._free_at_s = dict.fromkeys(links, 0.0)
        self.sent_bytes = dict.fromkeys(links, 0)

    def queued_bytes(self, pair: tuple[int, int], now_s: float) -> int:
        """What waits to leave."""
        return int(max(0.0, self._free_at_s[pair] - now_s) * self._links[pair].bytes_per_s)

    def send(self, pair: tuple[int, int], n_bytes: int, now_s: float, deliver: Deliver) -> float:
        """Sends a message; how long the link is busy with it, in seconds."""
        link = self._links[pair]
        busy_s = n_bytes / link.bytes_per_s
        self._free_at_s[pair] = max(now_s, self._free_at_s[pair]) + busy_s
        self.sent_bytes[pair] += n_bytes
        deliver(self._free_at_s[pair] + link.one_way_s)
        return busy_s


class Ring(Wires):
    """A ring all-reduce instead: all messages of a step arrive when its rounds are over.

    2 (n − 1) rounds, each as long as its slowest edge takes for 1/n of the gradient.
    """

    def __init__(self, links: Mapping[tuple[int, int], Link], n_workers: int) -> None:
        super().__init__(links)
        self._n = n_workers
        self._waiting: list[tuple[tuple[int, int], int, Deliver]] = []

    def send(self, pair: tuple[int, int], n_bytes: int, now_s: float, deliver: Deliver) -> float:
        """Keeps a message until all of this step are there, the last one being sent now."""
        self._waiting.append((pair, n_bytes, deliver))
        if len(self._waiting) == self._n * (self._n - 1):
            n = self._n
            edges = [self._links[rank, (rank + 1) % n] for rank in range(n)]
            round_s = max(e.one_way_s + n_bytes / n / e.bytes_per_s for e in edges)
            for rank in range(n):
                self.sent_bytes[rank, (rank + 1) % n] += 2 * (n - 1) * n_bytes // n
            for _, _, each in self._waiting:
                each(now_s + 2 * (n - 1) * round_s)
            self._waiting.clear()
        return 0.0


def sites(
    sizes: Sequence[int], near: Link, far: Mapping[tuple[int, int], Link]
) -> dict[tuple[int, int], Link]:
    """Links between workers at sites.

    Args:
        sizes: workers at each site, whose ranks follow one another.
        near: the links inside of a site.
        far: the links between two sites, by their places in ascending order.
    """
    site_by_rank = [site for site, n in enumerate(sizes) for _ in range(n)]
    ranks = range(len(site_by_rank))
    links = {}
    for a in ranks:
        for b in ranks:
            ends = (min(site_by_rank[a], site_by_rank[b]), max(site_by_rank[a], site_by_rank[b]))
            if a != b:
                links[a, b] = near if ends[0] == ends[1] else far[ends]
    return links
