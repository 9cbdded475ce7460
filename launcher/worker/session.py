"""Watch a script's `fit` calls: progress, checkpoints, stopping and resuming.

A *position* is where training stands: which `fit` of the script, which epoch, which step.
All ranks pass the same positions, because the orders that the driver gives to rank 0 travel
with the gradient exchange (`DataParallel.agreed`).
"""

import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from launcher.worker import fits, snapshot, state
from launcher.worker.channel import Channel
from launcher.worker.checkpoints import Checkpoints
from launcher.worker.data_check import DataCheck
from launcher.worker.data_parallel import DataParallel
from launcher.worker.fits import FitCall
from launcher.worker.job import ORDER_CHECKPOINT, ORDER_NONE, ORDER_STOP
from launcher.worker.script import Stopped

REPORT_EVERY_S = 0.5


class Session:
    """What happens around every `fit` of one script, on one rank.

    Args:
        parallel: the data-parallel engine of this process.
        channel: the line to the driver (silent on ranks other than 0).
        checkpoints: writes checkpoints; used on rank 0.
        resume: what an earlier checkpoint holds, to go on from; or None.
        epoch_ended: called at each epoch's end, on all ranks.
        hints, parallel_draws: of ranks seeing different data, see `DataCheck`.
    """

    def __init__(
        self,
        parallel: DataParallel,
        channel: Channel,
        checkpoints: Checkpoints,
        *,
        rank: int,
        resume: dict[str, Any] | None,
        epoch_ended: Callable[[], None] = lambda: None,
        hints: tuple[str, ...] = (),
        parallel_draws: tuple[str, ...] = (),
    ) -> None:
        self._data_check = DataCheck(parallel, channel, hints, parallel_draws)
        self._epoch_ended = epoch_ended
        self._parallel, self._channel, self._checkpoints = parallel, channel, checkpoints
        self._rank, self._resume = rank, resume
        self.model: Any = None
        self._finished: list[dict[str, Any]] = list(resume["finished"]) if resume else []
        self._models: list[weakref.ref[Any]] = []  # a script may drop one, with all its memory
        self._fit = -1  # ordinal of the current fit
        self._epoch, self._step, self._pending = 0, 0, ORDER_NONE
        self._ordered = ORDER_NONE
        self._fit_began_s = time.monotonic()
        self._callbacks: list[Any] = []
        self._given: dict[tuple[int, str], int] = {}
        self._random_before: dict[str, Any] = {}
        self._durations_s: list[float] = []
        self._is_first_step = True
        self._step_ended_s: float | None = None
        self._reported_s = 0.0
        self._total_steps = int(resume["position"]["total_steps"]) if resume else 0

    def order(self, code: int) -> None:
        """Take an order from the driver (on rank 0, from the channel's thread).

        It stands until it is obeyed, also between two fits.
        """
        self._ordered = code
        self._parallel.request(code)

    def finish(self) -> None:
        """After the script's last line: keep its files and its models."""
        if self._rank != 0:
            return
        self._checkpoints.write_artifacts(wait=True)
        is_known = self.model is not None and self._parallel.has_whole(self.model)
        models = [self.model] if is_known else []
        models += [m for m in self._parallel.own.models.trained() if m is not self.model]
        self._checkpoints.write_models(models)

    def keep_files(self, wait: bool) -> None:
        """In a loop of the script's own: keep its files, with the position before the loop."""
        if wait or self._checkpoints.pace.is_due_between():
            self._save(finished=True, wait=wait)

    # ------------------------------------------------------------------ fits.Watcher

    def run_fit(self, call: FitCall, train: Callable[[], Any]) -> Any:
        """Train, or return at once what an earlier segment has trained."""
        self._fit += 1
        self.model = call.model
        if not any(model() is call.model for model in self._models):
            self._models.append(weakref.ref(call.model))
        if self._resume is not None and self._fit < len(self._finished):
            return self._finished_fit(call)
        self._callbacks = call.callbacks
        self._given = state.given_data(self._callbacks) if self._rank == 0 else {}
        call.add_callback(_callback(call.framework, self))
        self._is_first_step, self._step_ended_s = True, None
        self._epoch, self._step = int(call.arguments.get("initial_epoch") or 0), 0
        self._parallel.reset()
        self._parallel.request(self._ordered)
        self._fit_began_s = time.monotonic()
        if self._resumes_here:
            self._go_to_position(call)
        return train()

    def run_step(self, model: Any, execute: Callable[[], Any]) -> Any:
        """One execution of the training function, and what was ordered before it."""
        self._before_step()
        logs = execute()
        self._after_step(model, logs)
        return logs

    # ------------------------------------------------------------------ resuming

    @property
    def _resumes_here(self) -> bool:
        return self._resume is not None and self._fit == self._resume["position"]["fit"]

    def _go_to_position(self, call: FitCall) -> None:
        assert self._resume is not None
        position = self._resume["position"]
        if self._resume["current"] is None:  # stopped between two fits
            self._resume = None
            return
        self._random_before = state.random_state()
        self._parallel.replay(position["epoch"] - self._epoch, position["step"])
        call.arguments["initial_epoch"] = position["epoch"]
        self._epoch, self._step = position["epoch"], position["step"]
        for callback in self._callbacks:
            if type(callback).__name__ == "CSVLogger":
                callback.append = True
        fits.build(call.model, call.arguments)

    def _finished_fit(self, call: FitCall) -> Any:
        """The History of a fit that an earlier segment finished, with its weights."""
        kept = self._finished[self._fit]
        if kept["state"] is not None:
            fits.build(call.model, call.arguments)
            self._parallel.load_model_state(call.model, kept["state"])
        history = call.framework.callbacks.History()
        history.history, history.epoch = dict(kept["history"]), list(kept["epoch"])
        history.params = dict(kept["params"])
        history.set_model(call.model)
        call.model.history = history
        state.load_callback_states(call.callbacks, kept["callbacks"])
        assert self._resume is not None
        if self._fit == self._resume["position"]["fit"] - 1:
            state.load_random_state(self._resume["random"])
        return history

    def _restore_progress(self) -> None:
        """Set back what callbacks did at the beginning of training and, again, of the epoch."""
        assert self._resume is not None
        current = self._resume["current"]
        self._parallel.load_model_state(self.model, current["state"])
        state.load_callback_states([*self._callbacks, self.model.history], current["callbacks"])
        if current["metrics"] is not None:
            self._parallel.load_metric_state(self.model, current["metrics"])

    def _check_replayed(self) -> None:
        """Random generators as they were; a warning if the data came in another order.

        Data that draw from the global generators are read ahead, by more or less: passing over
        them again has brought the generators where they belong.
        """
        assert self._resume is not None
        kept = self._resume["current"]["data_hash"]
        if kept is not None and kept != str(self._parallel.data_hash()):
            self._channel.emit(
                "warning",
                text="After resuming, the data of this epoch come in another order than before "
                "the stop: the curve will differ a little from an uninterrupted run's.",
            )
        if state.is_random_state(self._random_before):
            state.load_random_state(self._resume["random"])
        self._resume = None

    # ------------------------------------------------------------------ callbacks of Keras

    def train_begin(self, params: dict[str, Any]) -> None:
        """All of the script's callbacks have begun; variables exist."""
        if self._resumes_here:
            assert self._resume is not None
            self._parallel.load_model_state(self.model, self._resume["current"]["state"])
            self.model._initial_epoch = self._epoch  # beats BackupAndRestore (Keras 3)
        self._parallel.prepare(self.model)
        self._channel.emit(
            "fit", fit=self._fit, epochs=params.get("epochs"), steps=params.get("steps")
        )

    def epoch_begin(self, epoch: int) -> None:
        """Keep what the last epoch brought, or restore what an earlier segment did."""
        if self._resumes_here and self._is_first_step:
            self._parallel.go_to(self._epoch, self._step)
            self._restore_progress()
            return
        self._epoch, self._step = epoch, 0
        self._parallel.go_to(epoch, 0)
        if self._pending == ORDER_STOP:
            self._obey(ORDER_STOP)
        else:
            is_due = not self._is_first_step and self._checkpoints.pace.is_due_between()
            if self._parallel.agree(is_due):
                self._save(wait=False)

    def epoch_end(self, epoch: int, params: dict[str, Any], logs: dict[str, Any]) -> None:
        """Report the epoch; make sure that all ranks saw the same data."""
        self._data_check.check()
        self._epoch_ended()
        self._flush_steps()
        evaluation_s = time.perf_counter() - self._step_ended_s if self._step_ended_s else 0.0
        numbers = {name: _number(value) for name, value in logs.items()}
        self._channel.emit(
            "epoch",
            fit=self._fit,
            epoch=epoch + 1,
            epochs=params.get("epochs"),
            steps=self._step,
            evaluation_s=evaluation_s,
            checkpoint_s=self._checkpoints.pace.cost_s,
            logs={name: value for name, value in numbers.items() if value is not None},
        )
        self._step_ended_s = None

    def train_end(self, params: dict[str, Any]) -> None:
        """Remember the finished fit, so that a resumed run need not train it again."""
        self._parallel.settle()
        if self._resumes_here:
            self._resume = None
        if getattr(self.model, "_initial_epoch", None) is not None:
            self.model._initial_epoch = None
        self._finished.append(self._finished_state(params))
        self._flush_steps()
        stop = self._pending == ORDER_STOP
        self._pending = ORDER_NONE
        took_s, pace = time.monotonic() - self._fit_began_s, self._checkpoints.pace
        if stop or pace.is_due_between() or pace.is_cheap_for(took_s):
            self._save(finished=True, wait=stop)
        if stop:
            raise Stopped

    def _finished_state(self, params: dict[str, Any]) -> dict[str, Any]:
        number = next(i for i, model in enumerate(self._models) if model() is self.model)
        for earlier in self._finished:
            if earlier["model"] == number:
                earlier["state"] = None  # a later fit of the same model supersedes it
        history = self.model.history
        return {
            "model": number,
            "history": {name: _plain(values) for name, values in history.history.items()},
            "epoch": [int(epoch) for epoch in history.epoch],
            "params": {k: v for k, v in params.items() if snapshot.is_plain(v)},
            "state": self._parallel.finished_state(self.model),
            "callbacks": state.callback_states(self._callbacks, self._given),
        }

    # ------------------------------------------------------------------ steps

    def _before_step(self) -> None:
        if self._is_first_step and self._resumes_here:
            self._check_replayed()
        if self._pending:
            self._obey(self._pending)
            if self._step_ended_s is not None:
                self._step_ended_s = time.perf_counter()  # the pause is no part of the next step

    def _after_step(self, model: Any, logs: Any) -> None:
        now_s = time.perf_counter()
        executed = fits.steps_per_execution(model)
        self._step += executed
        self._total_steps += executed
        self._pending = self._parallel.agreed()
        if self._step_ended_s is not None:
            self._durations_s.append((now_s - self._step_ended_s) / executed)
            self._checkpoints.pace.stepped(now_s - self._step_ended_s)
        self._step_ended_s = now_s
        if self._is_first_step:
            self._is_first_step = False
            self._data_check.check()
            self._channel.emit("first_step", fit=self._fit)
            self._step_ended_s = None  # tracing, not training
        if self._rank == 0 and not self._pending and self._checkpoints.pace.is_due_in_epoch():
            self._parallel.request(max(ORDER_CHECKPOINT, self._ordered))
        if now_s - self._reported_s > REPORT_EVERY_S:
            self._reported_s = now_s
            self._report(logs)

    def _report(self, logs: Any) -> None:
        self._flush_steps()
        self._channel.emit(
            "progress",
            fit=self._fit,
            epoch=self._epoch,
            step=self._step,
            loss=_number(logs.get("loss")) if isinstance(logs, dict) else None,
            total_steps=self._total_steps,
        )

    def _flush_steps(self) -> None:
        self._channel.emit("steps", durations_s=self._durations_s, total_steps=self._total_steps)
        self._durations_s = []

    # ------------------------------------------------------------------ saving

    def _obey(self, code: int) -> None:
        """Save, and stop if that was agreed; every rank gets here at the same step."""
        self._pending = ORDER_NONE
        if code == ORDER_CHECKPOINT:
            self._parallel.request(self._ordered)
        if code >= ORDER_STOP:
            self._parallel.settle()
        self._save(wait=code >= ORDER_STOP)
        if code >= ORDER_STOP:
            raise Stopped

    def _save(self, *, wait: bool, finished: bool = False) -> None:
        """Keep where training stands. Collective in mid-epoch (metric states).

        All that is kept is a copy: it is packed while training goes on.
        """
        began_s, metrics = time.perf_counter(), None
        if not finished:
            self._parallel.collect(self.model)
            metrics = self._parallel.metric_state(self.model) if self._step else None
        if self._rank != 0:
            return
        position = {
            "fit": self._fit + 1 if finished else self._fit,
            "epoch": 0 if finished else self._epoch,
            "step": 0 if finished else self._step,
            "total_steps": self._total_steps,
            **({} if finished else self._parallel.positions(self.model)),
        }
        self._checkpoints.write(
            {
                "position": position,
                "finished": [dict(each) for each in self._finished],
                "current": None if finished else self._current(metrics),
                "random": state.random_state(),
            },
            began_s=began_s,
            wait=wait,
        )

    def _current(self, metrics: list[np.ndarray] | None) -> dict[str, Any]:
        return {
            "state": self._parallel.model_state(self.model),
            "metrics": metrics,
            "callbacks": state.callback_states([*self._callbacks, self.model.history], self._given),
            "data_hash": str(self._parallel.data_hash()) if self._step else None,
        }


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _plain(values: list[Any]) -> list[Any]:
    """Floats where Keras holds NumPy numbers; what cannot be kept becomes None."""
    numbers = [_number(value) for value in values]
    return [
        value if number is None and snapshot.is_plain(value) else number
        for value, number in zip(values, numbers, strict=True)
    ]


def _callback(framework: Any, session: Session) -> Any:
    class SessionCallback(framework.callbacks.Callback):
        """Tells the session what Keras is about to do; last of the script's callbacks."""

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            session.train_begin(self.params or {})

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            session.epoch_begin(epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            session.epoch_end(epoch, self.params or {}, logs or {})

        def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
            session.train_end(self.params or {})

    return SessionCallback()
