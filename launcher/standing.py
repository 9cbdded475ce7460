"""Where a segment of training stands, from what its workers report: recorded, and shown."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Any, Protocol

from launcher.book import Book, now
from launcher.budget import Meter
from launcher.curve import Curve
from launcher.errors import (
    LauncherError,
    ScriptError,
    ScriptFailedError,
    StorageError,
    TrainingFailedError,
)
from launcher.paths_used import paths_used
from launcher.record import CheckpointRecord, DriftRecord, StepTime, timestamp
from launcher.worker.job import Event
from launcher.worker.step_times import typical_step_s

MAX_STEP_TIMES = 20_000
N_LISTED = 10  # checkpoints in the record; fewer are in storage


class View(Protocol):
    """Where a segment is shown."""

    def stage(self, text: str) -> None:
        """Say what is going on."""

    def output(self, text: str, stream: str) -> None:
        """Pass on what the script printed."""

    def warn(self, text: str) -> None:
        """Say once that something is not as it should be."""

    def training(self, status: "TrainingStatus") -> None:
        """Show where training stands."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """Where training stands, for the live line. `None` means not known (yet)."""

    fit: int
    epoch: int
    epochs: int | None
    step: int
    steps: int | None
    loss: float | None
    step_s: float | None
    cost_usd: float
    budget_usd: float | None
    eta_s: float | None
    epoch_ended: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


class Standing:
    """Takes the events of one segment.

    Args:
        budget_usd: of this stretch, to be shown.
        steps_per_epoch: of the first fit, to tell what is left.
        steps_before: that earlier segments made.
    """

    def __init__(
        self,
        book: Book,
        view: View,
        meter: Meter,
        budget_usd: float | None,
        *,
        steps_per_epoch: int | None,
        steps_before: int = 0,
    ) -> None:
        self._book, self._view, self._meter = book, view, meter
        self._budget_usd, self._steps_per_epoch = budget_usd, steps_per_epoch
        self._cost_before_usd = meter.spent_usd
        self.error: LauncherError | None = None
        self.peer: int | None = None  # the rank that others lost …
        self.is_cut = False  # … and whether it may live, but be out of reach
        self.script_ended = False
        self.step_times: list[float] = []
        self.n_timed = 0  # steps whose time was measured, of which the newest are kept
        self._fit, self._epoch, self._step = 0, 0, 0
        self._epochs: int | None = None
        self._loss: float | None = None
        self._steps_before = self.total_steps = steps_before
        self.checkpoint_s, self.evaluation_s = 0.0, 0.0
        self._evaluations_s: list[float] = []
        self._checkpoint_cost_s: float | None = None
        self._warned: set[str] = set()
        self.files: dict[str, str] = {}
        self.metrics: dict[str, float] = {}
        self._curve = Curve()
        self._handlers = self._handlers_by_kind()

    def _handlers_by_kind(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        return {
            "output": lambda d: self._view.output(d["text"], d["stream"]),
            "stage": lambda d: self.stage(d["text"]),
            "fit": self._on_fit,
            "first_step": self._on_first_step,
            "steps": self._on_steps,
            "progress": self._on_progress,
            "epoch": self._on_epoch,
            "checkpoint": self._on_checkpoint,
            "artifacts": lambda d: self.files.update(artifacts=d["path"]),
            "model": lambda d: self.files.update(model=d["path"]),
            "paths": self._on_paths,
            "drift": self._on_drift,
            "nccl": lambda d: self._happened("nccl", d["text"]),
            "warning": lambda d: self.warn_once(d["text"]),
            "error": self._on_error,
            "end": self._on_end,
        }

    @property
    def steps(self) -> int:
        """Steps of this segment."""
        return self.total_steps - self._steps_before

    @property
    def can_go_on(self) -> bool:
        """Whether a checkpoint can be gone on from where training stands: not in own loops."""
        return self._epochs is not None

    @property
    def position(self) -> dict[str, int]:
        """Where training stands, as a checkpoint's position tells it."""
        return {
            "fit": self._fit,
            "epoch": self._epoch,
            "step": self._step,
            "total_steps": self.total_steps,
        }

    def take(self, event: Event) -> None:
        """Take what a worker reported."""
        self._handlers[event.kind](event.detail)

    def keep_segment(self, end: str | None = None) -> None:
        """Write the segment as it is now; `end` says why it ended."""
        segment = self._book.record.segments[-1]
        self._book.segment(
            replace(
                segment,
                ended=timestamp(now()) if end else None,
                end=end,
                steps=self.steps,
                step_s=self._measured(),
                cost_usd=self._meter.spent_usd - self._cost_before_usd,
                evaluation_s=median(self._evaluations_s) if self._evaluations_s else None,
                checkpoint_s=self._checkpoint_cost_s,
                curve=self._curve.points,
            )
        )

    def _measured(self) -> StepTime | None:
        times = self.step_times
        if len(times) < 2:
            return None
        p90_s = quantiles(times, n=10, method="inclusive")[-1]
        return StepTime(median(times), p90_s, typical_step_s(times))

    def stage(self, text: str) -> None:
        """Say what is going on, and note when it began."""
        self._view.stage(text)
        self._happened("stage", text)

    def _happened(self, kind: str, text: str) -> None:
        self._book.write(self._book.record.happened(kind, text, now()))

    def _on_fit(self, detail: dict[str, Any]) -> None:
        self._fit, self._epochs, self._epoch, self._step = detail["fit"], detail["epochs"], 0, 0
        if detail.get("steps"):
            self._steps_per_epoch = detail["steps"]

    def _on_first_step(self, detail: dict[str, Any]) -> None:  # noqa: ARG002
        segment = self._book.record.segments[-1]
        if segment.first_step_at is None:
            self._book.segment(replace(segment, first_step_at=timestamp(now())))

    def _on_steps(self, detail: dict[str, Any]) -> None:
        self.step_times.extend(detail["durations_s"])
        self.n_timed += len(detail["durations_s"])
        del self.step_times[:-MAX_STEP_TIMES]
        self.total_steps = detail["total_steps"]

    def _on_progress(self, detail: dict[str, Any]) -> None:
        self._epoch, self._step, self._loss = detail["epoch"], detail["step"], detail["loss"]
        self.total_steps = detail["total_steps"]
        self._check_loss(self._loss)
        self._view.training(self._status())

    def _on_epoch(self, detail: dict[str, Any]) -> None:
        self._epoch, self._epochs, self._step = detail["epoch"], detail["epochs"], 0
        self._steps_per_epoch = detail["steps"] or self._steps_per_epoch
        self.evaluation_s = max(self.evaluation_s, detail["evaluation_s"])
        if detail["evaluation_s"] > 0.0:
            self._evaluations_s.append(detail["evaluation_s"])
        self._checkpoint_cost_s = detail.get("checkpoint_s") or self._checkpoint_cost_s
        self._loss = detail["logs"].get("loss", self._loss)
        self._check_loss(self._loss)
        self._view.training(self._status(epoch_ended=True, metrics=detail["logs"]))
        self.metrics = detail["logs"]
        self._curve.note(detail, self.total_steps)
        self.keep_segment()

    def _on_checkpoint(self, detail: dict[str, Any]) -> None:
        self.checkpoint_s = detail["took_s"]
        steps = int(detail["position"].get("total_steps", 0))  # a stop may tell it here only
        self.total_steps = max(self.total_steps, steps)
        record = self._book.record
        kept = CheckpointRecord(
            timestamp(now()), detail["position"], detail["path"], detail["bytes"]
        )
        listed = (*record.checkpoints, kept)[-N_LISTED:]
        self._book.write(replace(record, checkpoints=listed))

    def _on_paths(self, detail: dict[str, Any]) -> None:
        record = self._book.record
        segment = record.segments[-1]
        used = paths_used(detail["uses"], segment.plan, record.network)
        self._book.segment(replace(segment, paths=used))

    def _on_drift(self, detail: dict[str, Any]) -> None:
        self._book.segment(replace(self._book.record.segments[-1], drift=DriftRecord(**detail)))

    def _on_error(self, detail: dict[str, Any]) -> None:
        if self.error is not None:
            return  # the first one is the cause; others follow from it
        plan = self._book.record.segments[-1].plan
        if plan.strategy == "decentralized" and detail["rank"] > 0:
            last = detail["text"].strip().splitlines()[-1:]
            self.warn_once(
                f"The worker of rank {detail['rank']} failed, and the others go on without it: "
                f"{' '.join(last)}"
            )
            return
        if detail["kind"] == "script":
            self.error = ScriptFailedError(detail["rank"], detail["text"])
        elif detail["kind"] == "storage":
            self.error = StorageError(detail["text"])
        elif detail["kind"] == "lost":
            self.error = TrainingFailedError(detail["text"])
            self.peer, self.is_cut = detail.get("peer"), detail.get("is_cut", False)
        else:
            self.error = ScriptError(detail["text"])

    def _on_end(self, detail: dict[str, Any]) -> None:
        self.script_ended = detail["how"] == "done"

    def _check_loss(self, loss: float | None) -> None:
        if loss is not None and not math.isfinite(loss):
            self.warn_once(
                f"the loss is {loss}: training goes on, but it will hardly recover. "
                "Ctrl-C stops it; a smaller learning rate often helps.",
                about="loss",
            )

    def warn_once(self, text: str, about: str | None = None) -> None:
        """Warn, unless it was said before about the same thing."""
        if (about or text) in self._warned:
            return
        self._warned.add(about or text)
        self._view.warn(text)
        self._book.write(self._book.record.happened("warning", text, now()))

    def _status(
        self, *, epoch_ended: bool = False, metrics: dict[str, float] | None = None
    ) -> TrainingStatus:
        recent = self.step_times[-50:]
        step_s = typical_step_s(recent) if recent else None
        return TrainingStatus(
            fit=self._fit,
            epoch=self._epoch,
            epochs=self._epochs,
            step=self._step,
            steps=self._steps_per_epoch,
            loss=self._loss,
            step_s=step_s,
            cost_usd=self._meter.session_usd,
            budget_usd=self._budget_usd,
            eta_s=self._eta_s(step_s),
            epoch_ended=epoch_ended,
            metrics=metrics or {},
        )

    def _eta_s(self, step_s: float | None) -> float | None:
        if step_s is None or not self._epochs or not self._steps_per_epoch:
            return None
        left = (self._epochs - self._epoch) * self._steps_per_epoch - self._step
        return max(0.0, left * step_s + (self._epochs - self._epoch) * self.evaluation_s)
