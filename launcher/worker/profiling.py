"""Run the script up to its first `fit`, time a few steps at two batch sizes, throw all away."""

import inspect
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from launcher.errors import LauncherError, ScriptError
from launcher.worker import script
from launcher.worker.echo import Echo
from launcher.worker.fits import FitCall, steps_per_execution, watch
from launcher.worker.job import Job
from launcher.worker.measurement import Measurement, Refusal
from launcher.worker.model_facts import item_bytes, n_batch_norms, random_layers
from launcher.worker.output import Tail, captured_output
from launcher.worker.script import Ending, ExitCodeError, Stopped, UserScriptError
from launcher.worker.staging.use import data_in_use
from launcher.worker.step_times import typical_step_s

if TYPE_CHECKING:
    from launcher.worker.own_loop_profile import OwnLoopProfile
    from launcher.worker.pipeline.costs import LayerProfile
    from launcher.worker.pipeline.layer_profile import Found

WARM_UP_STEPS = 2
MIN_STEPS, MAX_STEPS = 5, 60
MEASURE_S = 1.2  # per batch size, if the steps are short
SMALL_SHARE = 4  # the second batch size is a quarter of the first
COUNT_S = 20.0  # to count the steps of a dataset of unknown length
NEVER = 10**9
OWN_LOOP = (
    "The script trains in a loop of its own, and --parallelism model splits models that model.fit "
    "trains. Use model.fit, or --parallelism data."
)


class _ProfileDone(Stopped):
    """Ends the script at its first `fit`."""

    def __init__(self, measurement: Measurement) -> None:
        super().__init__()
        self.measurement = measurement


class _Enough(Stopped):
    """Ends the measured `fit`."""


def profile(job: Job) -> Measurement | Refusal:
    """Profile the script in this process, which ends afterwards.

    Writes nothing that the user can see: the script runs in a private copy of its folder, its
    callbacks are left out and its output is dropped.
    """
    import ray

    called_s = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="launch-profile-")) / (
        Path(job.shown_root).name or "root"
    )
    try:
        script.unpack(ray.get(job.archive), folder)
        with data_in_use(job.data, 0):
            measurement = _profile(job, folder, called_s)
        return replace(measurement, took_s=time.perf_counter() - called_s)
    except UserScriptError as error:
        return Refusal("script", error.text)
    except LauncherError as error:
        return Refusal("refused", str(error))
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def _profile(job: Job, folder: Path, called_s: float) -> Measurement:
    from launcher.worker.loop import start_engine

    began_s = time.perf_counter()
    echo = Echo()
    parallel = start_engine(job, 0, lambda: echo)
    import_s = time.perf_counter() - began_s
    profiler = Profiler(parallel, echo, import_s, job.parallelism)
    for name in job.frameworks:
        watch(__import__(name), profiler)
    profiler.watch_own_loops()
    script.seed_everything(job.seed, job.frameworks if parallel is not None else ())
    profiler.started_s = time.perf_counter()
    printed = Tail()
    try:
        with captured_output(printed.take):
            script.run_script(job, folder, profiler.ending)
    except _ProfileDone as done:
        return replace(done.measurement, ready_s=profiler.started_s - called_s)
    except ExitCodeError as error:
        raise UserScriptError(printed.text + error.text) from None
    if profiler.own_loop is not None and parallel.own.n_applied:
        measurement = profiler.own_measurement()
        return replace(measurement, ready_s=profiler.started_s - called_s)
    raise ScriptError(
        f"{job.argv0} ended without training anything. launch needs a script that calls "
        "model.fit, applies gradients with a Keras optimizer, or defines "
        f"train_loop_per_worker(config).{printed.quoted}"
    )


class Profiler:
    """Measures the first `fit` instead of carrying it out."""

    def __init__(
        self, parallel: Any, echo: Echo, import_s: float, parallelism: str = "data"
    ) -> None:
        self._parallel, self._echo, self._import_s = parallel, echo, import_s
        self._parallelism = parallelism
        self._rows = _watch_rows(parallel) if parallel is not None else None
        self.started_s = 0.0
        self.ending = Ending()
        self.own_loop: OwnLoopProfile | None = None
        self._timing = _Timing()

    def watch_own_loops(self) -> None:
        """Measure a training loop of the script's own, if one comes before the first `fit`."""
        if self._parallel is None:
            return
        from launcher.worker.own_loop_profile import OwnLoopProfile

        self.own_loop = OwnLoopProfile(self._parallel, self._echo, self._end_own_loop)
        self._parallel.own.watcher = self.own_loop

    def own_measurement(self) -> Measurement:
        """What is known of the script's own loop."""
        assert self.own_loop is not None
        if self._parallelism == "model":
            raise ScriptError(OWN_LOOP)
        return self.own_loop.measurement(self._import_s, self.started_s)

    def _end_own_loop(self) -> None:
        with self.ending.noted():
            raise _ProfileDone(self.own_measurement())

    def run_fit(self, call: FitCall, train: Callable[[], Any]) -> Any:
        """Measure; ends the script."""
        with self.ending.noted():
            raise _ProfileDone(self._measure(call, train))

    def run_step(self, model: Any, execute: Callable[[], Any]) -> Any:
        """One execution of the training function."""
        logs = execute()
        rows = int(self._rows.numpy()) if self._rows is not None else 1
        self._timing.step(steps_per_execution(model), rows)
        return logs

    def _measure(self, call: FitCall, train: Callable[[], Any]) -> Measurement:
        arguments = call.arguments
        self._compute_alone()
        epochs = int(arguments.get("epochs", 1)) - int(arguments.get("initial_epoch") or 0)
        early = any("EarlyStopping" in type(callback).__name__ for callback in call.callbacks)
        arguments |= {"epochs": NEVER, "initial_epoch": 0, "verbose": 0, "validation_freq": NEVER}
        layers, full = self._whole(call, train)
        if self._parallel is None:
            full.rows = _batch_rows(arguments)
        limit = _max_workers(arguments, full.rows)
        points = [(full.rows, full.step_s)]
        if layers is not None and layers.is_only:
            rows = max(1, full.rows // SMALL_SHARE)
            points.append((rows, layers.step_s(rows / full.rows)))
        elif full.rows > 1 and limit[0] != 1 and self._parallel is not None:
            points.append(self._small(call, train, full.rows))
        variables = call.model.trainable_variables
        return Measurement(
            global_batch=full.rows,
            batch_rows=tuple(rows for rows, _ in points),
            step_s=tuple(step_s for _, step_s in points),
            steps=full.steps or _count_steps(arguments.get("x")),
            epochs=max(0, epochs),
            validation_steps=_validation_steps(arguments, full.rows),
            early_stopping=early,
            n_params=int(sum(np.prod(v.shape) for v in call.model.weights)),
            payload_bytes=self._payload_bytes(variables),
            n_tensors=len(variables),
            random_layers=random_layers(call.model),
            n_batch_norms=n_batch_norms(call.model),
            n_slices=self._echo.n_slices,
            max_workers=limit[0],
            max_workers_reason=limit[1],
            layers=layers,
            import_s=self._import_s,
            setup_s=full.first_step_at_s - self.started_s,
        )

    def _small(self, call: FitCall, train: Callable[[], Any], n_rows: int) -> tuple[int, float]:
        """Rows and time of a step of one of several workers."""
        share = min(SMALL_SHARE, n_rows)
        self._echo.world_size = share
        self._parallel.shares = (1.0,) * share
        call.model.train_function = None  # is traced again
        return max(1, round(n_rows / share)), self._timed(call, train).step_s

    def _whole(
        self, call: FitCall, train: Callable[[], Any]
    ) -> "tuple[LayerProfile | None, _Timing]":
        """What the layers take, where that is to be known, and a few steps of the whole model.

        Where the whole does not fit in memory, its steps are what its layers add up to.
        """
        if self._parallelism == "data" or self._parallel is None:
            return None, self._timed(call, train)
        from launcher.worker.pipeline.layer_profile import layer_profile

        def apart(measure: Callable[[], Any]) -> Any:
            with self._parallel.call("fit"):
                return self._parallel.run_step(lambda _: measure(), call.model, None, "test")

        found = layer_profile(call, train, apart, is_asked=self._parallelism == "model")
        if not found.profile.is_only:
            return found.profile, self._timed(call, train)
        return found.profile, _Added(found)

    def _payload_bytes(self, variables: Sequence[Any]) -> int:
        """Of the gradients; slices count what a sum of as many bytes would take."""
        whole = sum(np.prod(v.shape) * item_bytes(v) for v in variables)
        return int(max(1.0, whole - self._echo.spared_bytes))

    def _compute_alone(self) -> None:
        """As a single worker, after what the script may have read itself."""
        self._echo.world_size = 1
        if self._parallel is not None:
            self._parallel.state.gathers = True
            self._parallel.state.on_slices = self._echo.note_slices
            self._parallel.shares = (1.0,)
            self._parallel.own.rest()

    def _timed(self, call: FitCall, train: Callable[[], Any]) -> "_Timing":
        """A few steps of the `fit`, without the script's callbacks."""
        self._timing = timing = _Timing()
        call.arguments["callbacks"] = [_watch_params(call.framework, timing)]
        try:
            train()
        except _Enough:
            return timing
        raise ScriptError(
            "model.fit ended before a few steps could be measured: the data it was given are "
            "empty or ran out. Check the dataset (a generator can be read only once)."
        )


def _watch_rows(parallel: Any) -> Any:
    """A variable that holds the rows of the last global batch."""
    import tensorflow as tf

    rows = tf.Variable(0, dtype=tf.int64, trainable=False)
    begin = parallel.state.begin_shared

    def begin_shared(shared: Any, *, training: bool) -> None:
        rows.assign(tf.cast(shared.n_rows, tf.int64))
        begin(shared, training=training)

    parallel.state.begin_shared = begin_shared
    return rows


def _watch_params(framework: Any, timing: "_Timing") -> Any:
    class Watch(framework.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            timing.steps = (self.params or {}).get("steps")

    return Watch()


class _Timing:
    """Counts and times the steps of one `fit`."""

    def __init__(self) -> None:
        self.steps: int | None = None
        self.rows = 0
        self.first_step_at_s = 0.0
        self._times: list[float] = []
        self._last_s = 0.0
        self._skip = WARM_UP_STEPS - 1

    @property
    def step_s(self) -> float:
        """Mean over the measured steps."""
        return typical_step_s(self._times)

    def step(self, executed: int, rows: int) -> None:
        """One execution of the training function has ended, of steps of so many rows."""
        now_s = time.perf_counter()
        self.rows = max(self.rows, rows)
        if not self.first_step_at_s:
            self.first_step_at_s = now_s
        elif self._skip:
            self._skip -= 1
        else:
            self._times.append((now_s - self._last_s) / executed)
            long_enough = sum(self._times) * executed > MEASURE_S
            if len(self._times) >= MAX_STEPS or (len(self._times) >= MIN_STEPS and long_enough):
                raise _Enough
        self._last_s = time.perf_counter()


class _Added(_Timing):
    """Stands for steps of a model that is too large to make any here."""

    def __init__(self, found: "Found") -> None:
        super().__init__()
        self.rows, self.steps = found.rows, found.steps
        self.first_step_at_s = time.perf_counter()
        self._times = [found.profile.step_s(1.0)]


def _max_workers(arguments: dict[str, Any], global_batch: int) -> tuple[int | None, str | None]:
    for name, what in (("x", "the input is"), ("validation_data", "the validation data are")):
        if inspect.isgenerator(arguments.get(name)):
            return 1, (
                f"{what} a Python generator, whose stream cannot be shared out "
                "(use tf.data.Dataset.from_generator or a PyDataset)"
            )
    return global_batch, f"a batch has {global_batch} rows"


def _batch_rows(arguments: dict[str, Any]) -> int:
    """Rows of a batch, from the arguments of `fit`."""
    import tensorflow as tf

    x = arguments.get("x")
    if isinstance(x, tf.data.Dataset):
        return _n_rows(next(iter(x.take(1))))
    return int(arguments.get("batch_size") or 32)


def _count_steps(x: Any) -> int | None:
    """Count the batches of a dataset of unknown length, for a limited time."""
    import tensorflow as tf

    if not isinstance(x, tf.data.Dataset):
        return None
    began_s, count = time.perf_counter(), 0
    for _ in x:
        count += 1
        if time.perf_counter() - began_s > COUNT_S:
            return None
    return count


def _validation_steps(arguments: dict[str, Any], global_batch: int) -> int:
    """Evaluation batches after each epoch; 0 where there are none or their number is unknown."""
    import tensorflow as tf

    if arguments.get("validation_steps"):
        return int(arguments["validation_steps"])
    batch = int(arguments.get("validation_batch_size") or global_batch)
    data = arguments.get("validation_data")
    if isinstance(data, tf.data.Dataset):
        return max(0, int(data.cardinality()))
    if isinstance(data, (tuple, list)) and data:
        return -(-_n_rows(data[0]) // batch)
    if data is not None and hasattr(data, "__len__"):
        return len(data)
    split = float(arguments.get("validation_split") or 0.0)
    return -(-int(_n_rows(arguments.get("x")) * split) // batch)


def _n_rows(x: Any) -> int:
    import tensorflow as tf

    first = next(iter(tf.nest.flatten(x)), None)
    shape = getattr(first, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 0
