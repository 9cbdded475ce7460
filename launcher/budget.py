"""The meter of money and time: what a run has cost, and when it must stop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from policies.schema import Node

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a cluster that was brought up for a run costs besides the nodes that train.

    Attributes:
        spent_s, spent_usd: until the run's driver began.
        usd_per_h: of a head that trains nothing.
    """

    spent_s: float
    spent_usd: float
    usd_per_h: float = 0.0


@dataclass(slots=True)
class Meter:
    """Counts price × time of every node from when it is first held until it is released.

    A node counts whole as soon as the run holds any of it, however many workers it holds.

    Attributes:
        clock: monotonic seconds.
        earlier_usd: what earlier stretches of the same run cost.
    """

    clock: Callable[[], float]
    earlier_usd: float = 0.0
    _held: dict[str, tuple[float, float]] = field(default_factory=dict)  # id → ($/h, since)
    _released_usd: float = 0.0
    _upkeep: tuple[float, float] = (0.0, 0.0)  # $/h, since

    def hold(self, nodes: Iterable[Node]) -> None:
        """Start counting nodes that are not held yet."""
        now_s = self.clock()
        for node in nodes:
            self._held.setdefault(node.id, (node.price_usd_per_h, now_s))

    def keep_only(self, nodes: Iterable[Node]) -> None:
        """Stop counting every held node that is not among these."""
        keep = {node.id for node in nodes}
        now_s = self.clock()
        for node_id in [held for held in self._held if held not in keep]:
            usd_per_h, since_s = self._held.pop(node_id)
            self._released_usd += usd_per_h * (now_s - since_s) / SECONDS_PER_HOUR

    def release_all(self) -> None:
        """Stop counting."""
        self.keep_only(())
        self.keep_up(0.0)

    def forget(self, nodes: Iterable[Node]) -> None:
        """Do not count these at all: they were asked for and never came."""
        for node in nodes:
            self._held.pop(node.id, None)

    def keep_up(self, usd_per_h: float) -> None:
        """Count so much an hour until all is released: of machines that only serve the nodes."""
        self._released_usd = self.session_usd - self._held_usd
        self._upkeep = (usd_per_h, self.clock())

    def add(self, usd: float) -> None:
        """Count what is owed beside the time that nodes are held."""
        self._released_usd += usd

    @property
    def usd_per_h(self) -> float:
        """What the nodes held now, and those that serve them, cost per hour."""
        return self._upkeep[0] + sum(price for price, _ in self._held.values())

    @property
    def upkeep_usd_per_h(self) -> float:
        """What the machines that only serve the nodes cost per hour."""
        return self._upkeep[0]

    @property
    def session_usd(self) -> float:
        """What this stretch of the run has cost until now, in dollars."""
        usd_per_h, since_s = self._upkeep
        upkeep_usd = usd_per_h * (self.clock() - since_s) / SECONDS_PER_HOUR if usd_per_h else 0.0
        return self._released_usd + upkeep_usd + self._held_usd

    @property
    def _held_usd(self) -> float:
        now_s = self.clock()
        return sum(
            price * (now_s - since_s) / SECONDS_PER_HOUR for price, since_s in self._held.values()
        )

    @property
    def spent_usd(self) -> float:
        """What the run has cost until now, earlier stretches included."""
        return self.earlier_usd + self.session_usd


def seconds_left(meter: Meter, budget_usd: float | None, deadline_at_s: float | None) -> float:
    """Seconds until the budget or the deadline is reached, at today's rate (inf if neither)."""
    left_s = float("inf")
    if budget_usd is not None and meter.usd_per_h > 0:
        left_s = (budget_usd - meter.session_usd) / meter.usd_per_h * SECONDS_PER_HOUR
    if deadline_at_s is not None:
        left_s = min(left_s, deadline_at_s - meter.clock())
    return left_s
