"""Run the script up to its first `fit`, time a few steps at two batch sizes, throw all away."""

import inspect
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from launcher.errors import LauncherError, ScriptError
from launcher.worker import script
from launcher.worker.job import Job
from launcher.worker.measurement import Measurement, Refusal
from launcher.worker.output import captured_output
from launcher.worker.script import UserScriptError

WARM_UP_STEPS = 2
MIN_STEPS, MAX_STEPS = 5, 60
MEASURE_S = 1.2  # per batch size, if the steps are short
SMALL_SHARE = 4  # the second batch size is a quarter of the first
COUNT_S = 20.0  # to count the steps of a dataset of unknown length
NEVER = 10**9


class _ProfileDone(BaseException):  # noqa: N818
    """Ends the script at its first `fit`."""

    def __init__(self, measurement: Measurement) -> None:
        super().__init__()
        self.measurement = measurement


class _Enough(BaseException):  # noqa: N818
    """Ends the measured `fit`."""


class _Echo:
    """An exchange that stands for `world_size` workers and returns what it is given.

    With it the engine computes exactly what one rank of `world_size` would, without a network.
    """

    rank = 0

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def sum_tensors(self, tensors: Any, purpose: str) -> list[Any]:  # noqa: ARG002
        return list(tensors)

    def sum_arrays(self, arrays: Any, purpose: str) -> list[Any]:  # noqa: ARG002
        return list(arrays)


def profile(job: Job) -> Measurement | Refusal:
    """Profile the script in this process, which ends afterwards.

    Writes nothing that the user can see: the script runs in a private copy of its folder, its
    callbacks are left out and its output is dropped.
    """
    import ray

    folder = Path(tempfile.mkdtemp(prefix="launch-profile-")) / (
        Path(job.shown_root).name or "root"
    )
    try:
        script.unpack(ray.get(job.archive), folder)
        return _profile(job, folder)
    except UserScriptError as error:
        return Refusal("script", error.text)
    except LauncherError as error:
        return Refusal("refused", str(error))
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def _profile(job: Job, folder: Path) -> Measurement:
    from launcher.worker.loop import start_engine

    began_s = time.perf_counter()
    parallel = start_engine(job, rank=0, world_size=1)
    import_s = time.perf_counter() - began_s
    profiler = Profiler(parallel, import_s)
    profiler.install(job.frameworks)
    script.seed_everything(job.seed, job.frameworks)
    profiler.started_s = time.perf_counter()
    try:
        with captured_output(lambda _stream, _text: None):
            script.run_script(job, folder)
    except _ProfileDone as done:
        return done.measurement
    raise ScriptError(
        f"{job.argv0} ended without calling model.fit, so there is nothing to train. "
        "launch needs a script that calls model.fit, or defines train_loop_per_worker(config)."
    )


class Profiler:
    """Replaces `fit` by a measurement of it."""

    def __init__(self, parallel: Any, import_s: float) -> None:
        self._parallel, self._import_s = parallel, import_s
        self.started_s = 0.0

    def install(self, frameworks: tuple[str, ...]) -> None:
        """Replace `fit` of the frameworks' models."""
        for name in frameworks:
            framework = __import__(name)
            owner = next(cls for cls in framework.Model.__mro__ if "fit" in vars(cls))
            owner.fit = self._measured_fit(owner.fit, framework)

    def _measured_fit(self, fit: Callable[..., Any], framework: Any) -> Callable[..., Any]:
        signature = inspect.signature(fit)

        def measured_fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(model, *args, **kwargs)
            raise _ProfileDone(self._measure(fit, framework, model, bound))

        return measured_fit

    def _measure(
        self, fit: Callable[..., Any], framework: Any, model: Any, bound: inspect.BoundArguments
    ) -> Measurement:
        arguments = bound.arguments
        epochs = int(arguments.get("epochs", 1)) - int(arguments.get("initial_epoch") or 0)
        early = any("EarlyStopping" in type(c).__name__ for c in _flat(arguments.get("callbacks")))
        arguments |= {"epochs": NEVER, "initial_epoch": 0, "verbose": 0, "validation_freq": NEVER}
        full = _timed_fit(fit, framework, model, bound)
        setup_s = full.first_step_at_s - self.started_s
        rows, times = [full.rows], [full.step_s]
        limit = _max_workers(arguments.get("x"), full.rows)
        if full.rows >= 2:
            share = min(SMALL_SHARE, full.rows)
            part = self._timed_share(fit, framework, model, bound, share)
            rows.append(max(1, round(full.rows / share)))
            times.append(part)
        variables = model.trainable_variables
        return Measurement(
            global_batch=full.rows,
            batch_rows=tuple(rows),
            step_s=tuple(times),
            steps=full.steps or _count_steps(arguments.get("x")),
            epochs=max(0, epochs),
            validation_steps=_validation_steps(arguments, full.rows),
            early_stopping=early,
            n_params=int(sum(np.prod(v.shape) for v in model.variables)),
            payload_bytes=int(sum(np.prod(v.shape) * _item_bytes(v) for v in variables)),
            n_tensors=len(variables),
            random_layers=_random_layers(model),
            max_workers=limit[0],
            max_workers_reason=limit[1],
            import_s=self._import_s,
            setup_s=setup_s,
        )

    def _timed_share(
        self,
        fit: Callable[..., Any],
        framework: Any,
        model: Any,
        bound: inspect.BoundArguments,
        share: int,
    ) -> float:
        """Step time of one of `share` equal ranks."""
        self._parallel.use(_Echo(share))
        model.train_function = None
        return _timed_fit(fit, framework, model, bound).step_s


class _Timing:
    """Counts and times the steps of one `fit`."""

    def __init__(self) -> None:
        self.steps: int | None = None
        self.rows = 0
        self.first_step_at_s = 0.0
        self._times: list[float] = []
        self._last_s = 0.0

    @property
    def step_s(self) -> float:
        """Median over the measured steps."""
        return median(self._times)

    def step(self, executed: int) -> None:
        """One execution of the training function has ended."""
        now_s = time.perf_counter()
        if not self.first_step_at_s:
            self.first_step_at_s = now_s
            self._skip = WARM_UP_STEPS - 1
        elif self._skip:
            self._skip -= 1
        else:
            self._times.append((now_s - self._last_s) / executed)
            long_enough = sum(self._times) * executed > MEASURE_S
            if len(self._times) >= MAX_STEPS or (len(self._times) >= MIN_STEPS and long_enough):
                raise _Enough
        self._last_s = time.perf_counter()


def _timed_fit(
    fit: Callable[..., Any], framework: Any, model: Any, bound: inspect.BoundArguments
) -> _Timing:
    from launcher.worker.data_parallel import batch_rows

    timing = _Timing()

    class Watch(framework.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            timing.steps = (self.params or {}).get("steps")
            function = self.model.train_function

            def train_function(iterator: Any) -> Any:
                logs = function(iterator)
                timing.rows = max(timing.rows, batch_rows())
                timing.step(int(getattr(self.model, "steps_per_execution", None) or 1))
                return logs

            self.model.train_function = train_function

    bound.arguments["callbacks"] = [Watch()]
    try:
        fit(*bound.args, **bound.kwargs)
    except _Enough:
        return timing
    raise ScriptError(
        "model.fit ended before a few steps could be measured: the data it was given is empty "
        "or ran out. Check the dataset (a generator can be read only once)."
    )


def _flat(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    if isinstance(callbacks, (list, tuple)):
        return [item for entry in callbacks for item in _flat(entry)]
    return [callbacks]


def _max_workers(x: Any, global_batch: int) -> tuple[int | None, str | None]:
    if inspect.isgenerator(x):
        return 1, (
            "the input is a Python generator, whose stream cannot be shared out "
            "(use tf.data.Dataset.from_generator or a PyDataset)"
        )
    return global_batch, f"a batch has {global_batch} rows"


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


def _item_bytes(variable: Any) -> int:
    return np.dtype(getattr(variable.dtype, "as_numpy_dtype", variable.dtype)).itemsize


def _random_layers(model: Any) -> tuple[str, ...]:
    """What makes a distributed run only statistically the same as one machine's."""
    found = set()
    for layer in model._flatten_layers():
        name = type(layer).__name__
        if "Dropout" in name or "Noise" in name or getattr(layer, "dropout", 0):
            found.add("dropout")
        if name.startswith("Random") or "Augment" in name:
            found.add("augmentation")
        if getattr(layer, "compute_dtype", "float32") in ("float16", "bfloat16"):
            found.add("mixed precision")
    return tuple(sorted(found))
