"""Tells the driver how far apart workers are that do not wait for each other."""

from typing import Protocol

from launcher.worker.channel import Channel
from launcher.worker.exchange.decentralized.figures import Figures


class Drifting(Protocol):
    """An engine whose workers may drift apart; `decentralized.Decentralized` is one."""

    def figures(self) -> Figures | None:
        """How the exchange went; None where there was none."""
        ...


class DriftReports:
    """Reports at the end of each epoch, and of the script.

    Args:
        engine: of this rank.
        channel: the line to the driver (silent on ranks other than 0).
    """

    def __init__(self, engine: Drifting, channel: Channel) -> None:
        self._engine, self._channel = engine, channel

    def epoch_ended(self) -> None:
        """Tells how things are."""
        found = self._engine.figures()
        if found is not None:
            self._channel.emit(
                "drift",
                mean_staleness=round(found.mean_staleness, 2),
                oldest=found.oldest,
                n_dropped=found.n_dropped,
                n_transfers=found.n_transfers,
            )
