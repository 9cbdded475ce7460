"""Follow one segment of training: show it, record it, and stop it in time."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Any, Literal, Protocol

from launcher.book import Book, now
from launcher.budget import Meter, seconds_left
from launcher.errors import (
    LauncherError,
    ScriptError,
    ScriptFailedError,
    StorageError,
    TrainingFailedError,
)
from launcher.interrupts import Interrupts
from launcher.record import CheckpointRecord, StepTime, timestamp
from launcher.worker.job import Event
from launcher.worker.step_times import typical_step_s
from policies.schema import Plan

logger = logging.getLogger(__name__)

POLL_S = 0.2
STOP_S = 5.0  # to stop at an agreed step, keep a checkpoint and release the nodes
FORCE_S = 1.0  # before the limit, the nodes are released whatever happens
MAX_STEP_TIMES = 20_000

End = Literal["done", "budget", "deadline", "interrupted", "failed"]


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


class Training(Protocol):
    """A segment that runs: Ray Train's, or a fake in tests."""

    plan: Plan
    error: BaseException | None

    def is_running(self) -> bool:
        """Whether the workers are still held."""

    def events(self, timeout_s: float) -> list[Event]:
        """What the workers reported since the last call."""

    def stop(self) -> None:
        """Ask all ranks to stop at one agreed step."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a stretch of training may use. `deadline_at_s` is on the meter's clock."""

    budget_usd: float | None
    deadline_at_s: float | None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a segment ended; `error` is set when it failed."""

    end: End
    error: LauncherError | None = None
    total_steps: int = 0
    script_ended: bool = False
    files: dict[str, str] = field(default_factory=dict)  # "model", "artifacts" → path in storage
    metrics: dict[str, float] = field(default_factory=dict)  # of the last epoch


class Supervisor:
    """Runs beside one segment until it ends, on the driver's main thread.

    Args:
        steps_per_epoch: of the first fit, to tell what is left.
        expected_step_s: as predicted, until steps are measured.
        steps_before: that earlier segments made.
    """

    def __init__(
        self,
        training: Training,
        book: Book,
        meter: Meter,
        allowance: Allowance,
        view: View,
        interrupts: Interrupts,
        *,
        steps_per_epoch: int | None,
        expected_step_s: float | None,
        steps_before: int = 0,
    ) -> None:
        self._training, self._book, self._meter = training, book, meter
        self._allowance, self._view, self._interrupts = allowance, view, interrupts
        self._steps_per_epoch = steps_per_epoch
        self._cost_before_usd = meter.spent_usd
        self._stopping: End | None = None
        self._error: LauncherError | None = None
        self._script_ended = False
        self._step_times: list[float] = []
        self._expected_step_s = expected_step_s
        self._fit, self._epoch, self._step = 0, 0, 0
        self._epochs: int | None = None
        self._loss: float | None = None
        self._steps_before = self._total_steps = steps_before
        self._checkpoint_s, self._evaluation_s = 0.0, 0.0
        self._warned: set[str] = set()
        self._files: dict[str, str] = {}
        self._metrics: dict[str, float] = {}
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "output": lambda d: self._view.output(d["text"], d["stream"]),
            "stage": lambda d: self._stage(d["text"]),
            "fit": self._on_fit,
            "first_step": self._on_first_step,
            "steps": self._on_steps,
            "progress": self._on_progress,
            "epoch": self._on_epoch,
            "checkpoint": self._on_checkpoint,
            "artifacts": lambda d: self._files.update(artifacts=d["path"]),
            "model": lambda d: self._files.update(model=d["path"]),
            "warning": lambda d: self._warn_once(d["text"]),
            "error": self._on_error,
            "end": self._on_end,
        }

    def run(self) -> Ended:
        """Until the segment has ended, or must not go on."""
        with self._interrupts.counted():
            return self._run()

    def _run(self) -> Ended:
        while True:
            running = self._training.is_running()
            for event in self._training.events(POLL_S if running else 0.0):
                self._handlers[event.kind](event.detail)
            if not running:
                return self._ended(self._how_it_ended())
            forced = self._limits()
            if forced is not None:
                return self._ended(forced)
            self._book.beat()

    # ------------------------------------------------------------------ limits

    def _limits(self) -> End | None:
        """Ask to stop when it is time; the end to report when it can wait no longer."""
        if self._interrupts.count >= 2:
            return "interrupted"
        if self._interrupts.count and self._stopping is None:
            self._ask_to_stop(
                "interrupted", "stopping at a checkpoint (once more to stop at once, without one)"
            )
        left_s = seconds_left(
            self._meter, self._allowance.budget_usd, self._allowance.deadline_at_s
        )
        limit = self._nearest_limit()
        if left_s < self._reserve_s() and self._stopping is None:
            self._ask_to_stop(limit, f"the {limit} is nearly reached: stopping at a checkpoint")
        return limit if left_s < FORCE_S else None

    def _nearest_limit(self) -> End:
        money_s = seconds_left(self._meter, self._allowance.budget_usd, None)
        time_s = seconds_left(self._meter, None, self._allowance.deadline_at_s)
        return "budget" if money_s <= time_s else "deadline"

    def _reserve_s(self) -> float:
        step_s = self._step_times[-1] if self._step_times else self._expected_step_s or 0.0
        return STOP_S + 2 * step_s + 2 * self._checkpoint_s + self._evaluation_s

    def _ask_to_stop(self, end: End, text: str) -> None:
        self._stopping = end
        self._stage(text)
        self._training.stop()

    # ------------------------------------------------------------------ the end

    def _how_it_ended(self) -> End:
        if self._error is not None:
            return "failed"
        if self._script_ended:
            return "done"
        if self._stopping is not None:
            return self._stopping
        cause = self._training.error
        text = f"{type(cause).__name__}: {_first_line(cause)}" if cause else "no reason given"
        self._error = TrainingFailedError(f"The workers ended before the script did ({text}).")
        return "failed"

    def _ended(self, end: End) -> Ended:
        self._keep_segment(end)
        return Ended(
            end, self._error, self._total_steps, self._script_ended, self._files, self._metrics
        )

    def _keep_segment(self, end: str | None = None) -> None:
        segment = self._book.record.segments[-1]
        self._book.segment(
            replace(
                segment,
                ended=timestamp(now()) if end else None,
                end=end,
                steps=self._total_steps - self._steps_before,
                step_s=self._measured(),
                cost_usd=self._meter.spent_usd - self._cost_before_usd,
            )
        )

    def _measured(self) -> StepTime | None:
        times = self._step_times
        if len(times) < 2:
            return None
        p90_s = quantiles(times, n=10, method="inclusive")[-1]
        return StepTime(median(times), p90_s, typical_step_s(times))

    # ------------------------------------------------------------------ events

    def _stage(self, text: str) -> None:
        self._view.stage(text)
        self._book.write(self._book.record.happened("stage", text, now()))

    def _on_fit(self, detail: dict[str, Any]) -> None:
        self._fit, self._epochs, self._epoch, self._step = detail["fit"], detail["epochs"], 0, 0
        if detail.get("steps"):
            self._steps_per_epoch = detail["steps"]

    def _on_first_step(self, detail: dict[str, Any]) -> None:  # noqa: ARG002
        segment = self._book.record.segments[-1]
        if segment.first_step_at is None:
            self._book.segment(replace(segment, first_step_at=timestamp(now())))

    def _on_steps(self, detail: dict[str, Any]) -> None:
        self._step_times.extend(detail["durations_s"])
        del self._step_times[:-MAX_STEP_TIMES]
        self._total_steps = detail["total_steps"]

    def _on_progress(self, detail: dict[str, Any]) -> None:
        self._epoch, self._step, self._loss = detail["epoch"], detail["step"], detail["loss"]
        self._total_steps = detail["total_steps"]
        self._check_loss(self._loss)
        self._view.training(self._status())

    def _on_epoch(self, detail: dict[str, Any]) -> None:
        self._epoch, self._epochs, self._step = detail["epoch"], detail["epochs"], 0
        self._steps_per_epoch = detail["steps"] or self._steps_per_epoch
        self._evaluation_s = max(self._evaluation_s, detail["evaluation_s"])
        self._loss = detail["logs"].get("loss", self._loss)
        self._check_loss(self._loss)
        self._view.training(self._status(epoch_ended=True, metrics=detail["logs"]))
        self._metrics = detail["logs"]
        self._keep_segment()

    def _on_checkpoint(self, detail: dict[str, Any]) -> None:
        self._checkpoint_s = detail["took_s"]
        record = self._book.record
        kept = CheckpointRecord(
            timestamp(now()), detail["position"], detail["path"], detail["bytes"]
        )
        self._book.write(replace(record, checkpoints=(*record.checkpoints, kept)))

    def _on_error(self, detail: dict[str, Any]) -> None:
        if self._error is not None:
            return  # the first one is the cause; others follow from it
        if detail["kind"] == "script":
            self._error = ScriptFailedError(detail["rank"], detail["text"])
        elif detail["kind"] == "storage":
            self._error = StorageError(detail["text"])
        elif detail["kind"] == "lost":
            self._error = TrainingFailedError(detail["text"])
        else:
            self._error = ScriptError(detail["text"])

    def _on_end(self, detail: dict[str, Any]) -> None:
        self._script_ended = detail["how"] == "done"

    def _check_loss(self, loss: float | None) -> None:
        if loss is not None and not math.isfinite(loss):
            self._warn_once(
                f"the loss is {loss}: training goes on, but it will hardly recover. "
                "Ctrl-C stops it; a smaller learning rate often helps.",
                about="loss",
            )

    def _warn_once(self, text: str, about: str | None = None) -> None:
        if (about or text) in self._warned:
            return
        self._warned.add(about or text)
        self._view.warn(text)
        self._book.write(self._book.record.happened("warning", text, now()))

    def _status(
        self, *, epoch_ended: bool = False, metrics: dict[str, float] | None = None
    ) -> TrainingStatus:
        recent = self._step_times[-50:]
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
            budget_usd=self._allowance.budget_usd,
            eta_s=self._eta_s(step_s),
            epoch_ended=epoch_ended,
            metrics=metrics or {},
        )

    def _eta_s(self, step_s: float | None) -> float | None:
        if step_s is None or not self._epochs or not self._steps_per_epoch:
            return None
        left = (self._epochs - self._epoch) * self._steps_per_epoch - self._step
        return max(0.0, left * step_s + (self._epochs - self._epoch) * self._evaluation_s)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else ""
