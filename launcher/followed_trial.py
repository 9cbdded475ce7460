"""One trial while it runs: what its driver's journal shows, as the search needs it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from launcher.follow import Followed
from launcher.journal import Entry, KeptStatus
from launcher.record import CODEC, RunRecord, Segment, parse_timestamp
from launcher.tune_metric import metric_of
from launcher.tune_record import EpochValue, Trial, TrialStatus

LIVENESS_EVERY_S = 2.0
Order = Literal["go on", "stop early", "pause", "widen"]
REFUSED = "refused"  # too little money or time was left to begin


@dataclass(frozen=True, slots=True)
class End:
    """How a trial's driver ended; `text` is what it would have told a person."""

    status: TrialStatus | Literal["refused"]
    code: int
    text: str


class FollowedTrial:
    """Follows a trial's driver.

    Args:
        metric: to go by; None until the first epoch tells.
    """

    def __init__(
        self,
        trial: Trial,
        followed: Followed,
        metric: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trial, self.metric = trial, metric
        self.order: Order = "go on"
        self.end: End | None = None
        self.doing = "starting"  # in a word or two
        self.running_usd = trial.cost_usd  # with what the journal says of this stretch
        self._followed, self._clock = followed, clock
        self._looked_at_s = clock()

    def poll(self) -> bool:
        """Take what has come; whether that was anything.

        Raises:
            UsageError: the script does not report the metric.
        """
        entries = self._followed.entries()
        if not entries and self._clock() - self._looked_at_s > LIVENESS_EVERY_S:
            self._looked_at_s = self._clock()
            if not self._followed.is_alive():
                entries = self._followed.entries() or [_lost()]
        for entry in entries:
            self._take(entry)
        return bool(entries)

    def stop(self, order: Order) -> None:
        """Ask the driver to stop at a checkpoint, unless it was asked before."""
        if self.order == "go on":
            self.order = order
            self._followed.stop()
            self.doing = "stopping"

    def _take(self, entry: Entry) -> None:
        if entry.kind == "stage" and self.order == "go on":
            self.doing = entry.text
        elif entry.kind == "training":
            self._stand(KeptStatus.of(entry.detail))
        elif entry.kind == "result":
            self._end(entry)

    def _stand(self, status: KeptStatus) -> None:
        trial = self.trial
        if self.order == "go on":
            self.doing = "training"
        self.running_usd = max(self.running_usd, trial.cost_usd + status.cost_usd)
        trial = replace(trial, epochs=status.epochs or trial.epochs)
        if status.epoch_ended and status.epoch > trial.epoch:  # a later fit begins at 1 again
            self.metric = metric_of(self.metric, status.metrics)
            value = EpochValue(status.epoch, float(status.metrics[self.metric]))
            trial = replace(trial, values=(*trial.values, value))
        self.trial = trial

    def _end(self, entry: Entry) -> None:
        code, text = int(entry.detail["exit_code"]), entry.text
        document: Mapping[str, Any] | None = entry.detail.get("record")
        record = None if document is None else CODEC.decode(RunRecord, document)
        self.end = End(_status(code, record, self.order), code, text)
        self.trial = finished(self.trial, record, self.end)


def finished(trial: Trial, record: RunRecord | None, end: End) -> Trial:
    """A trial with what its run took, and what it left."""
    status: TrialStatus = "failed" if end.status == "refused" else end.status
    error = _last_line(end.text) if status == "failed" else None
    trial = replace(trial, status=status, error=error)
    if record is None or record.outcome is None:
        return trial
    decision = record.decision
    return replace(
        trial,
        n_workers=None if decision is None else decision.chosen.n_workers,
        cost_usd=record.outcome.cost_usd,
        time_s=record.outcome.time_s,
        training_s=sum(_segment_s(segment) for segment in record.segments),
        model=record.outcome.model,
    )


def with_last(trial: Trial, record: RunRecord, metric: str | None) -> Trial:
    """A trial with the metric that its run ended with, which nobody followed."""
    metrics = {} if record.outcome is None else record.outcome.metrics
    epochs = record.workload.fits[0].epochs if record.workload is not None else trial.epoch + 1
    if metric is None or metric not in metrics or epochs <= trial.epoch:
        return trial
    return replace(trial, values=(*trial.values, EpochValue(epochs, metrics[metric])))


def _status(code: int, record: RunRecord | None, order: Order) -> TrialStatus | Literal["refused"]:
    if code == 0:
        return "done"
    if code == 3:
        return "refused"
    if code == 130:
        if order == "go on":
            return "interrupted"
        return "stopped" if order == "stop early" else "paused"
    if code == 5 and record is not None:
        return "deadline" if record.status == "deadline" else "budget"
    return "failed"


def _segment_s(segment: Segment) -> float:
    if segment.ended is None:
        return 0.0
    begin, end = parse_timestamp(segment.started), parse_timestamp(segment.ended)
    return (end - begin).total_seconds()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it ended without a word"


def _lost() -> Entry:
    text = "launch: the trial's driver ended without a word (killed, or out of memory?)\n"
    return Entry("result", {"exit_code": 1, "text": text, "record": None})
