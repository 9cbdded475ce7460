"""Follow one segment of training: take what it reports, and stop it in time."""

import logging
from dataclasses import dataclass, field
from typing import Literal, Protocol

from launcher.book import Book
from launcher.budget import Meter, seconds_left
from launcher.errors import LauncherError, TrainingFailedError
from launcher.interrupts import Interrupts
from launcher.standing import Standing, View
from launcher.worker.job import Event
from policies.schema import Decision, Plan

logger = logging.getLogger(__name__)

POLL_S = 0.2
STOP_S = 6.0  # to stop at an agreed step, keep a checkpoint and release the nodes
FORCE_S = 2.0  # before the limit, the nodes are released whatever happens
TURN_DECAY = 0.9  # of the longest time between two looks, which tells how busy this machine is
ABORT_S = 10.0  # workers that were ended by force are waited for at most so long

End = Literal["done", "budget", "deadline", "interrupted", "failed", "moved"]


class Training(Protocol):
    """A segment that runs: Ray Train's, or a fake in tests."""

    plan: Plan
    error: BaseException | None

    def is_running(self) -> bool:
        """Whether the workers are still held."""

    def events(self, timeout_s: float, alone_s: float) -> list[Event]:
        """What the workers reported since the last call.

        If `alone_s` pass without another call, they are to stop at a checkpoint by themselves.
        """

    def stop(self) -> None:
        """Ask all ranks to stop at one agreed step."""

    def abort(self) -> None:
        """End the workers at once, whatever they do."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Training cannot go on as it is: workers are gone, or stuck. `nodes` do not answer."""

    text: str
    nodes: tuple[str, ...] = ()
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Training is to go on from a checkpoint: under another plan, or one to be decided then."""

    text: str
    decision: Decision | None = None


class Lookout(Protocol):
    """Watches what the workers cannot report themselves."""

    def look(self, standing: Standing) -> Lost | Move | None:
        """What is to be done about it; called several times a second."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a stretch of training may use. `deadline_at_s` is on the meter's clock."""

    budget_usd: float | None
    deadline_at_s: float | None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a segment ended; `error` is set when it failed.

    Attributes:
        files: "model", "artifacts" → path in storage.
        metrics: of the last epoch.
        lost: the loss that ended it, as the lookout saw it.
        move: what is to be done next, when it ended for that.
        peer: rank of the worker that others lost, if they said which.
        is_cut: whether that worker may live, but be out of the others' reach.
    """

    end: End
    error: LauncherError | None = None
    total_steps: int = 0
    script_ended: bool = False
    files: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    lost: Lost | None = None
    move: Move | None = None
    peer: int | None = None
    is_cut: bool = False


class Supervisor:
    """Runs beside one segment until it ends, on the driver's main thread.

    Args:
        steps_per_epoch: of the first fit, to tell what is left.
        expected_step_s: as predicted, until steps are measured.
        steps_before: that earlier segments made.
        lookout: watches nodes and workers; None: nobody does.
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
        lookout: Lookout | None = None,
    ) -> None:
        self._training, self._book, self._meter = training, book, meter
        self._allowance, self._interrupts, self._lookout = allowance, interrupts, lookout
        self._standing = Standing(
            book,
            view,
            meter,
            allowance.budget_usd,
            steps_per_epoch=steps_per_epoch,
            steps_before=steps_before,
        )
        self._expected_step_s = expected_step_s
        self._stopping: End | None = None
        self._lost: Lost | None = None
        self._move: Move | None = None
        self._aborted_at_s: float | None = None
        self._turned_at_s, self._turn_s = meter.clock(), 0.0

    def run(self) -> Ended:
        """Until the segment has ended, or must not go on."""
        with self._interrupts.counted():
            return self._run()

    def _run(self) -> Ended:
        while True:
            self._turn()
            running = self._is_running()
            for event in self._training.events(POLL_S if running else 0.0, self._spare_s()):
                self._standing.take(event)
            if not running:
                return self._ended(self._how_it_ended())
            forced = self._limits()
            if forced is not None:
                self._training.abort()
                return self._ended(forced)
            self._look()
            self._book.beat()

    def _turn(self) -> None:
        """Know how long it may be until the next look."""
        now_s = self._meter.clock()
        self._turn_s = max(now_s - self._turned_at_s, TURN_DECAY * self._turn_s)
        self._turned_at_s = now_s

    def _is_running(self) -> bool:
        """Whether workers are held that may still report something."""
        waited_s = self._meter.clock() - (self._aborted_at_s or 0.0)
        is_overdue = self._aborted_at_s is not None and waited_s > ABORT_S
        return self._training.is_running() and not is_overdue

    # ------------------------------------------------------------------ losses and moves

    def _look(self) -> None:
        """End the workers at once when some are lost; ask them to stop for a better plan."""
        if self._aborted_at_s is not None:
            return
        found = self._lookout.look(self._standing) if self._lookout is not None else None
        if isinstance(found, Lost):
            self._lost = found
            self._standing.error = self._standing.error or TrainingFailedError(found.text)
        elif isinstance(found, Move) and self._stopping is None:
            self._move = found
            self._ask_to_stop("moved", found.text)
        if isinstance(self._standing.error, TrainingFailedError):
            self._aborted_at_s = self._meter.clock()
            self._training.abort()

    # ------------------------------------------------------------------ limits

    def _limits(self) -> End | None:
        """Ask to stop when it is time; the end to report when it can wait no longer."""
        if self._interrupts.count >= 2:
            return "interrupted"
        if self._interrupts.count and self._stopping in (None, "moved"):
            self._ask_to_stop(
                "interrupted", "stopping at a checkpoint (once more to stop at once, without one)"
            )
        left_s = self._left_s()
        limit = self._nearest_limit()
        if left_s < self._reserve_s() and self._stopping in (None, "moved"):
            self._ask_to_stop(limit, f"the {limit} is nearly reached: stopping at a checkpoint")
        return limit if left_s < FORCE_S + self._turn_s else None

    def _left_s(self) -> float:
        return seconds_left(self._meter, self._allowance.budget_usd, self._allowance.deadline_at_s)

    def _spare_s(self) -> float:
        """How long training may go on before it has to be stopped."""
        return max(0.0, self._left_s() - self._reserve_s())

    def _nearest_limit(self) -> End:
        money_s = seconds_left(self._meter, self._allowance.budget_usd, None)
        time_s = seconds_left(self._meter, None, self._allowance.deadline_at_s)
        return "budget" if money_s <= time_s else "deadline"

    def _reserve_s(self) -> float:
        """What a stop needs: the step that runs, an evaluation, the checkpoint, the release."""
        at = self._standing
        step_s = at.step_times[-1] if at.step_times else self._expected_step_s or 0.0
        return STOP_S + self._turn_s + 2 * step_s + 2 * at.checkpoint_s + at.evaluation_s

    def _ask_to_stop(self, end: End, text: str) -> None:
        self._stopping = end
        self._standing.stage(text)
        self._training.stop()

    # ------------------------------------------------------------------ the end

    def _how_it_ended(self) -> End:
        at = self._standing
        if at.error is not None:
            return "failed"
        if at.script_ended:
            return "done"
        if self._stopping is not None:
            return self._stopping
        cause = self._training.error
        text = f"{type(cause).__name__}: {_first_line(cause)}" if cause else "no reason given"
        at.error = TrainingFailedError(f"The workers ended before the script did ({text}).")
        return "failed"

    def _ended(self, end: End) -> Ended:
        at = self._standing
        at.keep_segment(end)
        return Ended(
            end,
            at.error,
            at.total_steps,
            at.script_ended,
            at.files,
            at.metrics,
            self._lost,
            self._move if end == "moved" else None,
            at.peer,
            at.is_cut,
        )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else ""
