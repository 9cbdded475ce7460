"""How decentralized training went on one worker, for records and people."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """How the exchange went on this worker.

    Attributes:
        n_steps: that it has taken.
        n_transfers: how often it took over or merged another's weights.
        n_dropped: gradients that came too late to be applied.
        mean_staleness: of those that were applied, in steps.
        oldest: of those that were applied, in steps.
        loss: of its recent steps; None if not known.
        n_percent: N of what went last over the link to each peer.
    """

    n_steps: int
    n_transfers: int
    n_dropped: int
    mean_staleness: float
    oldest: int
    loss: float | None
    n_percent: Mapping[int, float]
