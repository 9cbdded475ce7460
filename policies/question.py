"""What a rule for choosing n is asked, and what it answers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

ALLREDUCE: Final = "allreduce"


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """A way to train: how many workers, and how they exchange gradients.

    `exchange` is "allreduce", or an algorithm of `direct`; one worker's is "allreduce".
    """

    n_workers: int
    exchange: str = ALLREDUCE


@dataclass(frozen=True, slots=True)
class RingLink:
    """A worker's link as Jansen's model sees it: one-way latency and bandwidth."""

    latency_s: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """A past case that was measured with several arms, as a table holds it.

    `speedup` is one worker's step over the arm's.
    """

    batch: int
    rtt_s: float
    speedup: Mapping[Arm, float]


@dataclass(frozen=True, slots=True)
class Question:
    """What a rule may look at without running anything.

    Args:
        arms: what can be chosen, one worker among them.
        batch: rows of a step, over all workers.
        payload_bytes: size of the gradients.
        rtt_s: of the slowest pair of nodes.
        alone_s: step of one worker by rows, as profiled.
        links_for: the links of a ring of n workers.
        table: cases that were measured before.
        price: what a second of an arm costs; one for all where only time counts.
        limit_s: the longest step that budget and deadline allow; none where an arm is missing.
    """

    arms: tuple[Arm, ...]
    batch: int
    payload_bytes: float
    rtt_s: float
    alone_s: Callable[[float], float]
    links_for: Callable[[int], Sequence[RingLink]]
    table: Sequence[Case] = ()
    price: Mapping[Arm, float] = field(default_factory=dict)
    limit_s: Mapping[Arm, float] = field(default_factory=dict)

    @property
    def alone(self) -> Arm:
        """The smallest arm."""
        return min(self.arms)

    def with_exchange(self, exchange: str) -> tuple[Arm, ...]:
        """One worker, and the arms of more that exchange gradients so, by n."""
        return tuple(sorted(a for a in self.arms if a == self.alone or a.exchange == exchange))

    def loss(self, arm: Arm, step_s: float) -> float:
        """What an arm with this step costs by the second; seconds where only time counts."""
        return self.price.get(arm, 1.0) * step_s

    def best(self, step_s: Mapping[Arm, float]) -> Arm:
        """The arm of least loss within the limits, else the one that exceeds its own least."""
        over = {arm: s / self.limit_s.get(arm, math.inf) for arm, s in step_s.items()}
        within = [arm for arm in step_s if over[arm] <= 1.0]
        if not within:
            return min(step_s, key=lambda arm: (over[arm], arm))
        return min(within, key=lambda arm: (self.loss(arm, step_s[arm]), arm))


@dataclass(frozen=True, slots=True)
class Answer:
    """The arm that a rule chooses, and the steps that it expects, in seconds."""

    arm: Arm
    step_s: Mapping[Arm, float] = field(default_factory=dict)


# Runs a few steps with an arm: their time in seconds.
Observe = Callable[[Arm], float]
Rule = Callable[[Question, Observe], Answer]
