"""Watch a script's `fit` calls: progress, checkpoints, stopping and resuming.

A *position* is where training stands: which `fit` of the script, which epoch, which step.
All ranks pass the same positions, because the orders that the driver gives to rank 0 travel
with the gradient exchange (`DataParallel.agreed`).
"""

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from launcher.worker import script, snapshot, state
from launcher.worker.channel import Channel
from launcher.worker.data_parallel import DataParallel
from launcher.worker.job import ORDER_CHECKPOINT, ORDER_NONE, ORDER_STOP
from launcher.worker.script import Stopped

LOSS_EVERY_S = 0.5
CHECKPOINT_SHARE = 0.02  # of the time, at most
KEEP_AFTER_S = 5.0
MAX_ARTIFACTS_BYTES = 1 << 30


class Session:
    """What happens around every `fit` of one script, on one rank.

    Args:
        parallel: the data-parallel engine of this process.
        channel: the line to the driver (silent on ranks other than 0).
        folder: the private copy in which the script runs.
        listing: the files in it before the script started.
        checkpoint_every_s: least time between two checkpoints in mid-epoch; None for never.
        resume: state of a checkpoint to go on from, or None.
    """

    def __init__(
        self,
        parallel: DataParallel,
        channel: Channel,
        folder: Path,
        listing: dict[str, tuple[int, int]],
        *,
        rank: int,
        checkpoint_every_s: float | None,
        resume: dict[str, Any] | None,
    ) -> None:
        self.parallel, self.channel, self.rank = parallel, channel, rank
        self.model: Any = None
        self._folder, self._listing = folder, listing
        self._every_s = checkpoint_every_s
        self._resume = resume
        self._finished: list[dict[str, Any]] = list(resume["finished"]) if resume else []
        self._models: dict[int, tuple[int, Any]] = {}
        self._fit = -1  # ordinal of the current fit
        self._depth = 0
        self._epoch, self._step, self._pending = 0, 0, ORDER_NONE
        self._callbacks: list[Any] = []
        self._durations: list[float] = []
        self._first_step_of_fit = True
        self._last_end_s: float | None = None
        self._loss_at_s = 0.0
        self._checkpoint_at_s = time.monotonic()
        self._checkpoint_took_s = 0.0
        self._kept_artifacts = dict(listing)
        self._total_steps = int(resume["position"].get("total_steps", 0)) if resume else 0

    # ------------------------------------------------------------------ patches

    def install(self, frameworks: tuple[str, ...]) -> None:
        """Wrap `fit` and the training step of the frameworks' models."""
        for name in frameworks:
            framework = __import__(name)
            owner = _defining_class(framework.Model, "fit")
            owner.fit = self._wrapped_fit(owner.fit, framework)
            owner = _defining_class(framework.Model, "make_train_function")
            owner.make_train_function = self._wrapped_maker(owner.make_train_function)

    def _wrapped_fit(self, fit: Callable[..., Any], framework: Any) -> Callable[..., Any]:
        signature = inspect.signature(fit)

        def fit_in_session(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth:  # a fit inside a callback of another fit is the script's own affair
                return fit(model, *args, **kwargs)
            self._depth += 1
            try:
                bound = signature.bind(model, *args, **kwargs)
                return self._run_fit(fit, framework, model, bound)
            finally:
                self._depth -= 1

        fit_in_session.__signature__ = signature  # type: ignore[attr-defined]
        fit_in_session.__doc__ = fit.__doc__
        return fit_in_session

    def _wrapped_maker(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def make_train_function(model: Any, force: bool = False) -> Any:
            made = make(model, force)
            function = model.train_function
            if function is not None and not getattr(function, "_in_session", False):
                model.train_function = self._wrapped_step(model, function)
            return model.train_function if made is not None else made

        return make_train_function

    def _wrapped_step(self, model: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def train_function(iterator: Any) -> Any:
            if model is not self.model or not self._depth:
                return function(iterator)  # train_on_batch
            self._before_step(model)
            logs = function(iterator)
            self._after_step(model, logs)
            return logs

        train_function._in_session = True  # type: ignore[attr-defined]
        return train_function

    # ------------------------------------------------------------------ one fit

    def _run_fit(
        self, fit: Callable[..., Any], framework: Any, model: Any, bound: inspect.BoundArguments
    ) -> Any:
        self._fit += 1
        self.model = model
        self._models.setdefault(id(model), (len(self._models), model))
        if self._resume is not None and self._fit < len(self._finished):
            return self._stored_fit(framework, model, bound)
        self._begin(framework, model, bound)
        return fit(*bound.args, **bound.kwargs)

    def _begin(self, framework: Any, model: Any, bound: inspect.BoundArguments) -> None:
        given = bound.arguments.get("callbacks")
        own = _callback_class(framework)(self)
        if isinstance(given, framework.callbacks.CallbackList):
            given.append(own)
            self._callbacks = list(given.callbacks)
        else:
            self._callbacks = _as_list(given)
            bound.arguments["callbacks"] = [*self._callbacks, own]
        self._first_step_of_fit, self._last_end_s = True, None
        self._epoch, self._step = int(bound.arguments.get("initial_epoch") or 0), 0
        self.parallel.reset()
        if self._resumes_here:
            self._prepare_resume(model, bound)

    @property
    def _resumes_here(self) -> bool:
        return self._resume is not None and self._fit == self._resume["position"]["fit"]

    def _prepare_resume(self, model: Any, bound: inspect.BoundArguments) -> None:
        assert self._resume is not None
        position = self._resume["position"]
        if self._resume["current"] is None:  # stopped between two fits
            self._resume = None
            return
        self.parallel.replay(position["epoch"] - self._epoch, position["step"])
        bound.arguments["initial_epoch"] = position["epoch"]
        self._epoch, self._step = position["epoch"], position["step"]
        for callback in self._callbacks:
            if type(callback).__name__ == "CSVLogger":
                callback.append = True
        build(model, bound.arguments)

    def _stored_fit(self, framework: Any, model: Any, bound: inspect.BoundArguments) -> Any:
        """The History of a fit that an earlier segment finished, with its weights."""
        kept = self._finished[self._fit]
        if kept["state"] is not None:
            build(model, bound.arguments)
            state.load_model_state(model, kept["state"])
        history = framework.callbacks.History()
        history.history, history.epoch = dict(kept["history"]), list(kept["epoch"])
        history.params = dict(kept["params"])
        history.set_model(model)
        model.history = history
        state.load_callback_states(_as_list(bound.arguments.get("callbacks")), kept["callbacks"])
        if self._resumes_after_this:
            assert self._resume is not None
            state.load_random_state(self._resume["random"])
        return history

    @property
    def _resumes_after_this(self) -> bool:
        return self._resume is not None and self._fit == self._resume["position"]["fit"] - 1

    # ------------------------------------------------------------------ events of a fit

    def train_begin(self, params: dict[str, Any]) -> None:
        """All callbacks have begun; variables exist."""
        if self._resumes_here:
            assert self._resume is not None
            state.load_model_state(self.model, self._resume["current"]["state"])
            self.model._initial_epoch = self._epoch  # beats BackupAndRestore (Keras 3)
        self.parallel.prepare(self.model)
        self.channel.emit("fit", fit=self._fit, epochs=params.get("epochs"))

    def epoch_begin(self, epoch: int) -> None:
        """Set back what `on_train_begin` reset; keep what the last epoch brought."""
        resuming = self._resumes_here and self._first_step_of_fit
        if not resuming:
            self._epoch, self._step = epoch, 0
            if self._pending == ORDER_STOP:
                self._obey(ORDER_STOP)
            elif not self._first_step_of_fit and self._checkpoint_is_due():
                self._save(finished=False, wait=False)
            return
        assert self._resume is not None
        current = self._resume["current"]
        state.load_callback_states([*self._callbacks, self.model.history], current["callbacks"])
        if current["metrics"] is not None:
            self.parallel.load_metric_state(self.model, current["metrics"])

    def epoch_end(self, epoch: int, params: dict[str, Any], logs: dict[str, Any]) -> None:
        """Report the epoch; make sure that all ranks saw the same data."""
        self.parallel.check_data()
        self._flush_steps()
        since_last_step_s = time.perf_counter() - self._last_end_s if self._last_end_s else 0.0
        numbers = {name: _number(value) for name, value in logs.items()}
        self.channel.emit(
            "epoch",
            fit=self._fit,
            epoch=epoch + 1,
            epochs=params.get("epochs"),
            steps=self._step,
            evaluation_s=since_last_step_s,
            logs={name: value for name, value in numbers.items() if value is not None},
        )
        self._last_end_s = None

    def train_end(self, params: dict[str, Any]) -> None:
        """Remember the finished fit, so that a resumed run need not train it again."""
        if self._resumes_here:
            self._resume = None
        if getattr(self.model, "_initial_epoch", None) is not None:
            self.model._initial_epoch = None
        history = self.model.history
        key = self._models[id(self.model)][0]
        for earlier in self._finished:
            if earlier["model"] == key:
                earlier["state"] = None  # a later fit of the same model supersedes it
        self._finished.append(
            {
                "model": key,
                "history": {k: [float(v) for v in vs] for k, vs in history.history.items()}
                if _all_numbers(history.history)
                else {},
                "epoch": [int(epoch) for epoch in history.epoch],
                "params": {k: v for k, v in params.items() if snapshot.is_plain(v)},
                "state": state.model_state(self.model),
                "callbacks": state.callback_states(self._callbacks),
            }
        )
        self._flush_steps()
        if self._pending == ORDER_STOP or self._checkpoint_is_due():
            self._save(finished=True, wait=self._pending == ORDER_STOP)
        if self._pending == ORDER_STOP:
            raise Stopped
        self._pending = ORDER_NONE
        self.parallel.request(ORDER_NONE)

    def _before_step(self, model: Any) -> None:
        if self._first_step_of_fit and self._resumes_here:
            assert self._resume is not None
            self._check_replayed(self._resume)
            state.load_random_state(self._resume["random"])
            self._resume = None
        if self._pending:
            self._obey(self._pending)
            self._last_end_s = None

    def _after_step(self, model: Any, logs: Any) -> None:
        now_s = time.perf_counter()
        executed = int(getattr(model, "steps_per_execution", None) or _spe(model))
        if self._last_end_s is not None:
            self._durations.append((now_s - self._last_end_s) / executed)
        self._last_end_s = now_s
        self._step += executed
        self._total_steps += executed
        self._pending = self.parallel.agreed()
        if self._first_step_of_fit:
            self._first_step_of_fit = False
            self.parallel.check_data()
            self.channel.emit("first_step", fit=self._fit)
            self._last_end_s = None
        self._ask_for_checkpoint()
        if now_s - self._loss_at_s > LOSS_EVERY_S:
            self._loss_at_s = now_s
            self._report_progress(model, logs)

    # ------------------------------------------------------------------ reporting

    def _report_progress(self, model: Any, logs: Any) -> None:
        loss = logs.get("loss") if isinstance(logs, dict) else None
        self._flush_steps()
        self.channel.emit(
            "progress",
            fit=self._fit,
            epoch=self._epoch,
            step=self._step,
            loss=_number(loss),
            total_steps=self._total_steps,
        )

    def _flush_steps(self) -> None:
        if self._durations:
            self.channel.emit(
                "steps", fit=self._fit, durations_s=self._durations, total_steps=self._total_steps
            )
            self._durations = []

    # ------------------------------------------------------------------ checkpoints

    def _ask_for_checkpoint(self) -> None:
        if self.rank != 0 or self._every_s is None or self._pending:
            return
        every_s = max(self._every_s, self._checkpoint_took_s / CHECKPOINT_SHARE)
        if time.monotonic() - self._checkpoint_at_s > every_s:
            self._checkpoint_at_s = time.monotonic()
            self.parallel.request(ORDER_CHECKPOINT)

    def _checkpoint_is_due(self) -> bool:
        """Whether a checkpoint between epochs or fits is cheap against what it would save."""
        since_s = time.monotonic() - self._checkpoint_at_s
        return since_s > min(KEEP_AFTER_S, self._checkpoint_took_s / CHECKPOINT_SHARE)

    def order(self, code: int) -> None:
        """Take an order from the driver (called by the channel's thread on rank 0)."""
        self.parallel.request(code)

    def _obey(self, code: int) -> None:
        """Save, and stop if that was agreed; every rank gets here at the same step."""
        self._pending = ORDER_NONE
        if code == ORDER_CHECKPOINT:
            self.parallel.request(ORDER_NONE)
        self._save(finished=False, wait=code >= ORDER_STOP)
        if code >= ORDER_STOP:
            raise Stopped

    def _save(self, *, finished: bool, wait: bool) -> None:
        """Hand a checkpoint to the keeper. Collective in mid-epoch (metric states)."""
        metrics = None
        if not finished and self._step:
            metrics = self.parallel.metric_state(self.model)
        if self.rank != 0:
            return
        started_s = time.monotonic()
        position = {
            "fit": self._fit + 1 if finished else self._fit,
            "epoch": 0 if finished else self._epoch,
            "step": 0 if finished else self._step,
            "total_steps": self._total_steps,
        }
        data = snapshot.dump(
            {
                "position": position,
                "finished": self._finished,
                "current": None if finished else self._current(metrics),
                "random": state.random_state(),
            }
        )
        self._send_artifacts(wait=wait)
        self.channel.call("keep_checkpoint", position, data, wait=wait)
        self._checkpoint_at_s = time.monotonic()
        self._checkpoint_took_s = self._checkpoint_at_s - started_s

    def _current(self, metrics: list[np.ndarray] | None) -> dict[str, Any]:
        return {
            "state": state.model_state(self.model),
            "metrics": metrics,
            "callbacks": state.callback_states([*self._callbacks, self.model.history]),
            "data_hash": str(self.parallel.data_hash()) if self._step else None,
        }

    def _check_replayed(self, resume: dict[str, Any]) -> None:
        kept = resume["current"]["data_hash"]
        if kept is not None and kept != str(self.parallel.data_hash()):
            self.channel.emit(
                "warning",
                text="After resuming, the data of this epoch come in another order than before "
                "the stop: the curve will differ a little from an uninterrupted run.",
            )

    def _send_artifacts(self, *, wait: bool) -> None:
        """Hand over the files that the script left since it started, if any changed."""
        now = script.listing(self._folder)
        if now == self._kept_artifacts:
            return
        names = [name for name, status in now.items() if self._listing.get(name) != status]
        size = sum(now[name][0] for name in names)
        if size > MAX_ARTIFACTS_BYTES:
            self.channel.emit(
                "warning",
                text=f"The script has written {size / 1e9:.1f} GB: too much to be kept with a "
                "checkpoint.",
            )
            return
        self._kept_artifacts = now
        self.channel.call(
            "keep_artifacts", script.pack_files(self._folder, names), len(names), wait=wait
        )

    def finish(self) -> None:
        """After the script's last line: keep its files and its model."""
        self._send_artifacts(wait=True)
        if self.rank == 0 and self.model is not None:
            name, data = saved_model(self.model)
            if name:
                self.channel.call("keep_model", name, data, wait=True)


def saved_model(model: Any) -> tuple[str, bytes]:
    """The model as a `.keras` file, or its weights where Keras cannot save the model."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for name, save in (
            ("model.keras", model.save),
            ("model.weights.h5", model.save_weights),
        ):
            path = Path(folder, name)
            try:
                save(str(path))
            except (ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError):
                continue
            return name, path.read_bytes()
    return "", b""


def build(model: Any, arguments: dict[str, Any]) -> None:
    """Create the model's variables from the shape of its data, if they do not exist yet."""
    if getattr(model, "built", False) and model.variables:
        return
    import tensorflow as tf

    x = arguments.get("x")
    if isinstance(x, tf.data.Dataset):
        spec = x.element_spec
        x = tf.nest.map_structure(_zeros, spec[0] if isinstance(spec, tuple) else spec)
    elif hasattr(x, "__getitem__") and not hasattr(x, "shape") and not isinstance(x, (dict, list)):
        batch = x[0]  # a PyDataset
        x = batch[0] if isinstance(batch, tuple) else batch
    else:
        x = tf.nest.map_structure(lambda array: tf.convert_to_tensor(array[:1]), x)
    model(x)


def _zeros(spec: Any) -> Any:
    import tensorflow as tf

    return tf.zeros([1 if size is None else size for size in spec.shape], spec.dtype)


def _defining_class(owner: type, name: str) -> type:
    return next(cls for cls in owner.__mro__ if name in vars(cls))


def _as_list(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    if isinstance(callbacks, (list, tuple)):
        return [item for entry in callbacks for item in _as_list(entry)]
    return [callbacks]


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _all_numbers(history: dict[str, list[Any]]) -> bool:
    return all(_number(value) is not None for values in history.values() for value in values)


def _spe(model: Any) -> int:
    return int(np.asarray(getattr(model, "_steps_per_execution", None) or 1))


def _callback_class(framework: Any) -> Callable[[Session], Any]:
    class SessionCallback(framework.callbacks.Callback):  # type: ignore[misc]
        """Tells the session what Keras is about to do; last of the user's callbacks."""

        def __init__(self, session: Session) -> None:
            super().__init__()
            self._session = session

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            self._session.train_begin(self.params or {})

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self._session.epoch_begin(epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._session.epoch_end(epoch, self.params or {}, logs or {})

        def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
            self._session.train_end(self.params or {})

    return SessionCallback
