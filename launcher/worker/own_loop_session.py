"""Watches a script's own training loops: progress, stopping, and what is kept.

Where such a loop stands is known to the script alone. So a checkpoint holds the script's files
and the position "before the loop": resuming runs the script from its first line, with its files.
"""

import time
from collections.abc import Callable
from typing import Any

from launcher.worker.activity import ActivityFile, Phase
from launcher.worker.channel import Channel
from launcher.worker.data_parallel import DataParallel
from launcher.worker.job import ORDER_STOP
from launcher.worker.readings import Reading
from launcher.worker.script import Ending, Stopped

REPORT_EVERY_S = 0.5
FROM_THE_TOP = (
    "The script trains in a loop of its own, which cannot be entered in the middle: launch resume "
    "runs the script again from its first line, with the files that it has written. To go on from "
    "there, let it save and restore a tf.train.Checkpoint. The model is kept as it is now."
)


class OwnLoopSession:
    """Reports the steps of own loops, and stops them when that was agreed; on one rank.

    Args:
        parallel: the engine.
        channel: the line to the driver (silent on ranks other than 0).
        activity: where it is noted that a loop trains, and that it moves.
        keep: keeps the script's files, and waits for it if told so.
        keep_results: keeps files and models.
        ending: learns of it when the script is ended in a loop.
    """

    picks_rows = False

    def __init__(
        self,
        parallel: DataParallel,
        channel: Channel,
        activity: ActivityFile,
        keep: Callable[[bool], None],
        keep_results: Callable[[], None],
        ending: Ending | None = None,
    ) -> None:
        self._ending = ending or Ending()
        self._parallel, self._channel, self._activity = parallel, channel, activity
        self._keep, self._keep_results = keep, keep_results
        self._n_steps = self._n_passes = self._n_in_pass = 0
        self._durations_s: list[float] = []
        self._reported_s = 0.0

    def trained(
        self,
        reading: Reading | None,
        n_rows: int,  # noqa: ARG002
        step_s: float | None,
    ) -> None:
        """Count a step."""
        if not self._n_steps:
            self._channel.emit("fit", fit=0, epochs=None, steps=reading and reading.n_elements)
            self._channel.emit("first_step", fit=0)
        elif step_s is not None and self._n_steps > 1:  # the first two are traced
            self._durations_s.append(step_s)
        self._n_steps += 1
        self._n_in_pass += 1
        self._activity.enter(Phase.BETWEEN)
        if time.perf_counter() - self._reported_s > REPORT_EVERY_S:
            self._report()

    def between(self) -> None:
        """Stop if that was agreed; every rank gets here after the same step."""
        self._activity.tick()
        if not self.wants_end():
            return
        with self._ending.noted():
            self._report()
            self._channel.emit("warning", text=FROM_THE_TOP)
            self._keep(True)
            self._keep_results()
            raise Stopped

    def wants_end(self) -> bool:
        """Whether all ranks have agreed to stop."""
        return self._n_steps > 0 and self._parallel.agreed() >= ORDER_STOP

    def ended(self) -> None:
        """Keep the script's files after a pass over its data, if that is cheap."""
        self._activity.enter(Phase.SCRIPT)
        self._report()
        self._n_passes, self._n_in_pass = self._n_passes + 1, 0
        if not self.wants_end():
            self._keep(False)

    def warn(self, text: str) -> None:
        """Tell the user."""
        self._channel.emit("warning", text=text)

    def begins(self) -> None:
        """Nothing to do."""

    def wants_again(self) -> bool:
        """Never."""
        return False

    def rows(self, n_rows: int) -> None:
        """This rank's."""

    def arranged(self, dataset: Any) -> Any:
        """The same."""
        return dataset

    def _report(self) -> None:
        self._reported_s = time.perf_counter()
        durations_s, self._durations_s = self._durations_s, []
        self._channel.emit("steps", durations_s=durations_s, total_steps=self._n_steps)
        self._channel.emit(
            "progress",
            fit=0,
            epoch=self._n_passes,
            step=self._n_in_pass,
            loss=None,
            total_steps=self._n_steps,
        )
