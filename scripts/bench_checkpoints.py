"""What a checkpoint costs: how long the step waits for it, and how long it is under way.

One worker trains models of given sizes under Adam (the state is three times the weights) with
the launcher's session, which hands checkpoints to a keeper in another process, as in a run. Times
are measured with checkpoints every few seconds, far more often than by default, and without any.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}

SIZES_MB = (5, 100)
EVERY_S = 8.0
WIDTH = 1000


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the checkpoints of one model.

    Attributes:
        copy_s: weights and optimizer state copied to NumPy, nothing else.
        pause_s: that the step waited.
        whole_s: from the pause to storage.
        slower: how much slower steps are while one is on its way.
        every_s: between two in mid-epoch, as the launcher would choose it.
    """

    weights_mb: float
    state_mb: float
    n_checkpoints: int
    step_s: float
    copy_s: float
    pause_s: float
    whole_s: float
    slower: float
    every_s: float


class Bench:
    """Trains models with the launcher's session, and watches its checkpoints.

    Args:
        keras: the framework.
        seconds: for each model.
    """

    def __init__(self, keras: Any, seconds: float) -> None:
        from launcher.worker.data_parallel import DataParallel
        from launcher.worker.exchange.alone import Alone
        from launcher.worker.fits import watch

        self._keras, self._seconds = keras, seconds
        self._parallel, self._session = DataParallel(Alone()), None
        self._parallel.install(["keras"])
        watch(keras, self)
        self._steps_s: dict[bool, list[float]] = {}  # by whether one was in flight
        self._times: list[tuple[float, float]] = []  # pause and whole way of each

    def run_fit(self, call: Any, train: Any) -> Any:
        """Called by Keras; see `launcher.worker.fits.Watcher`."""
        return self._session.run_fit(call, train)  # type: ignore[attr-defined]

    def run_step(self, model: Any, execute: Any) -> Any:
        """Called by Keras; see `launcher.worker.fits.Watcher`."""
        return self._session.run_step(model, execute)  # type: ignore[attr-defined]

    def cost(self, keeper: Any, megabytes: float) -> Cost:
        """What checkpoints of a model cost while it trains."""
        from launcher.worker.channel import Channel
        from launcher.worker.checkpoints import Checkpoints
        from launcher.worker.session import Session

        model = self._model(megabytes)
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            channel = Channel(keeper)
            checkpoints = Checkpoints(channel, Path(name), {}, EVERY_S)
            self._watch(checkpoints.pace)
            self._session = Session(self._parallel, channel, checkpoints, rank=0, resume=None)
            self._fit(model)
            channel.close()
        return self._found(model, checkpoints.pace)

    def _model(self, megabytes: float) -> Any:
        layers, keras = self._keras.layers, self._keras
        keras.utils.set_random_seed(1)
        model = keras.Sequential([layers.Input((WIDTH,))])
        for _ in range(max(1, round(megabytes * 1e6 / 4 / WIDTH**2))):
            model.add(layers.Dense(WIDTH, "tanh"))
        model.compile(keras.optimizers.Adam(1e-4), "mse")
        return model

    def _watch(self, pace: Any) -> None:
        self._steps_s, self._times = {False: [], True: []}, []
        stepped, landed = pace.stepped, pace.landed

        def note_step(took_s: float) -> None:
            self._steps_s[pace._is_in_flight].append(took_s)
            stepped(took_s)

        def note_landing() -> None:
            landed()
            self._times.append((pace.pause_s, pace.whole_s))

        pace.stepped, pace.landed = note_step, note_landing

    def _fit(self, model: Any) -> None:
        import numpy as np
        import tensorflow as tf

        stop_at_s = 0.0

        def stop(batch: int, logs: Any) -> None:  # noqa: ARG001
            nonlocal stop_at_s
            stop_at_s = stop_at_s or time.monotonic() + self._seconds
            model.stop_training = time.monotonic() > stop_at_s

        x = np.random.default_rng(0).normal(size=(64, WIDTH)).astype("float32")
        rows = tf.data.Dataset.from_tensor_slices((x, x)).batch(64).repeat()
        limit = self._keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        model.fit(rows, epochs=1, steps_per_epoch=10**6, verbose=0, callbacks=[limit])

    def _found(self, model: Any, pace: Any) -> Cost:
        from launcher.worker import state

        began_s = time.perf_counter()
        for _ in range(5):
            kept = state.model_state(model)
        copy_s = (time.perf_counter() - began_s) / 5
        n_bytes = [sum(array.nbytes for array in kept[name]) for name in ("model", "optimizer")]
        free, busy = self._steps_s[False], self._steps_s[True]
        pace._every_s = None
        return Cost(
            weights_mb=n_bytes[0] / 1e6,
            state_mb=sum(n_bytes) / 1e6,
            n_checkpoints=len(self._times),
            step_s=statistics.median(free),
            copy_s=copy_s,
            pause_s=statistics.median(pause_s for pause_s, _ in self._times),
            whole_s=statistics.median(whole_s for _, whole_s in self._times),
            slower=statistics.mean(busy) / statistics.mean(free) - 1 if busy else 0.0,
            every_s=pace._interval_s,
        )


def main() -> int:
    """Print a table and the goals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    costs = measured(30.0 if options.quick else 60.0)
    if options.json:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1))
    print("weights   state  step     copy     pause    in storage  steps meanwhile  then every")
    for cost in costs:
        print(
            f"{cost.weights_mb:4.0f} MB  {cost.state_mb:4.0f} MB  {1e3 * cost.step_s:4.0f} ms"
            f"  {1e3 * cost.copy_s:4.0f} ms  {1e3 * cost.pause_s:4.0f} ms"
            f"  {cost.whole_s:6.2f} s    {cost.slower:+10.0%}      {cost.every_s:5.0f} s"
        )
    is_met = True
    for cost in costs:
        name, extra_s = f"{cost.weights_mb:.0f} MB", cost.pause_s - cost.copy_s
        met = extra_s <= max(0.005, 0.5 * cost.copy_s)
        verdict = "met" if met else "missed"
        print(f"goal pause beyond the copy, {name}: {1e3 * extra_s:.0f} ms (target 50 %) {verdict}")
        is_met = is_met and met
    return 0 if is_met else 1


def measured(seconds: float) -> list[Cost]:
    """All sizes, on an embedded Ray with a keeper of its own."""
    import keras
    import ray

    from launcher.keeper import Keeper

    with tempfile.TemporaryDirectory(prefix="lc", dir="/tmp") as folder:
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=f"{folder}/ray",
            object_store_memory=1 << 30,
        )
        try:
            actor = ray.remote(Keeper).options(num_cpus=0, max_concurrency=8)
            bench = Bench(keras, seconds)
            return [bench.cost(actor.remote(folder, f"run-{size}"), size) for size in SIZES_MB]
        finally:
            ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
