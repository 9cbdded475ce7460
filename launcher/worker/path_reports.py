"""Tells the driver now and then what went over each network, where there are several."""

import contextlib
from dataclasses import asdict

from launcher.errors import PeerLostError
from launcher.worker.channel import Channel
from launcher.worker.exchange import Exchange


class PathReports:
    """Reports after the 1st, 2nd, 4th, 8th … epoch and at the end; all ranks take part in each.

    So there are few of them, however short epochs are, and all ranks agree on when.

    Args:
        exchange: of this rank.
        channel: the line to the driver (silent on ranks other than 0).
    """

    def __init__(self, exchange: Exchange, channel: Channel) -> None:
        self._exchange, self._channel = exchange, channel
        self._n_epochs = 0

    def epoch_ended(self) -> None:
        """Counts an epoch; collective."""
        self._n_epochs += 1
        if self._n_epochs & (self._n_epochs - 1) == 0:
            self._report()

    def script_ended(self) -> None:
        """The last report; collective.

        A worker that failed after training does not come: its own error is what counts then.
        """
        with contextlib.suppress(PeerLostError):
            self._report()

    def _report(self) -> None:
        uses = self._exchange.path_uses()
        if uses:
            self._channel.emit("paths", uses=[asdict(use) for use in uses])
