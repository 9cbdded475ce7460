"""How the loss of a run goes down, as a record keeps it: few points, evenly over the steps."""

from collections.abc import Mapping
from typing import Any, Final

from policies.schema import CurvePoint

MOST: Final = 64  # points; of more, every other one goes
METRICS: Final = ("val_loss", "loss")


class Curve:
    """The loss at the ends of epochs of the script's first `fit`."""

    def __init__(self) -> None:
        self.points: tuple[CurvePoint, ...] = ()
        self._every, self._n_epochs = 1, 0

    def note(self, epoch: Mapping[str, Any], steps: int) -> None:
        """An epoch has ended.

        Args:
            epoch: the event that tells it.
            steps: that the run has taken so far.
        """
        metric = next((name for name in METRICS if name in epoch["logs"]), None)
        if epoch["fit"] != 0 or metric is None:
            return
        self._n_epochs += 1
        if self._n_epochs % self._every == 0:
            point = CurvePoint(steps, metric, float(epoch["logs"][metric]))
            self.points = (*self.points, point)
        if len(self.points) > MOST:
            self.points, self._every = self.points[1::2], 2 * self._every
