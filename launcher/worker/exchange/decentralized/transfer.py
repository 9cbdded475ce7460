"""Direct knowledge transfer: those behind pull a better worker's weights and merge them."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.worker.exchange.decentralized.message import Standing


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """When weights are pulled, and what becomes of them.

    Attributes:
        every_steps: steps between two looks at the losses; 0 switches transfer off.
        merge: λ, the pulled weights' part: w := (1 − λ) · w + λ · w_best.
        behind: a worker is behind when its loss is so much above the best one's, relative.
        as_good: workers whose losses are so little above the best one's are as good as it,
            relative; of these, the one over the cheapest path is asked.
        most_steps: that the transfer may take; None for any number. While weights travel, the
            link carries no gradients, and what arrives is so much older.
    """

    every_steps: int = 100
    merge: float = 0.75
    behind: float = 0.1
    as_good: float = 0.02
    most_steps: float | None = 10.0

    def __post_init__(self) -> None:
        if self.every_steps < 0 or not 0 < self.merge <= 1:
            raise ValueError(f"every_steps must be 0 or more and 0 < merge <= 1: {self}")


def source_of(
    options: TransferOptions,
    own: Standing,
    standing_by_peer: Mapping[int, Standing],
    capacity_bytes: Mapping[int, int],
    size_bytes: int,
) -> int | None:
    """The peer to pull weights from; None where this worker is behind nobody within reach.

    Args:
        options: see there.
        own: how far this worker is.
        standing_by_peer: how far the others are.
        capacity_bytes: what the link to each of them carries in a step.
        size_bytes: of the weights.
    """
    losses = {
        peer: standing.loss
        for peer, standing in standing_by_peer.items()
        if standing.loss is not None and _is_near(options, capacity_bytes.get(peer, 0), size_bytes)
    }
    if own.loss is None or not losses:
        return None
    best = min(losses.values())
    if not is_behind(options, own, best):
        return None
    good = [peer for peer, loss in losses.items() if loss <= best + options.as_good * abs(best)]
    return max(good, key=lambda peer: (capacity_bytes.get(peer, 0), -losses[peer], -peer))


def _is_near(options: TransferOptions, capacity_bytes: int, size_bytes: int) -> bool:
    return options.most_steps is None or options.most_steps * capacity_bytes >= size_bytes


def is_behind(options: TransferOptions, own: Standing, loss: float | None) -> bool:
    """Whether another worker's loss is so much below this one's that its weights are worth it.

    Args:
        options: see there.
        own: how far this worker is.
        loss: of the other one; None if not known.
    """
    if own.loss is None or loss is None:
        return False
    return own.loss > loss + options.behind * abs(loss)


def source_of_all(
    standing_by_peer: Mapping[int, Standing], capacity_bytes: Mapping[int, int]
) -> int | None:
    """The peer that a new worker takes everything from: over the cheapest path, of those in step.

    Args:
        standing_by_peer: how far the others are.
        capacity_bytes: what the link to each of them carries in a step.
    """
    farthest = max((s.step for s in standing_by_peer.values()), default=0)
    if farthest == 0:
        return None
    in_step = [peer for peer, s in standing_by_peer.items() if s.step >= 0.9 * farthest]
    return max(in_step, key=lambda peer: (capacity_bytes.get(peer, 0), -peer))
