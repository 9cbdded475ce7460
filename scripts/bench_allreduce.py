"""Step time of the engine's all-reduce against the strategy scope of legacy Keras.

Two processes over the loopback train the same model, alternately with plain Keras and the
engine, and under `MultiWorkerMirroredStrategy`'s scope as TensorFlow's own guide does it.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
GOAL = 1.03
N_WORKERS = 2
WARM_UP_STEPS = 20
MODELS = {"small": (512, 512), "wide": (2048, 1024)}
TIMEOUT_S = 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        train(arguments.way, arguments.model, arguments.steps)
        return
    sys.exit(compare(arguments.quick, arguments.json))


def compare(quick: bool, out: Path | None) -> int:
    """Alternate the ways; 0 if the goal is met for every model."""
    runs, steps = (3, 150) if quick else (7, 400)
    models = ["small"] if quick else list(MODELS)
    step_s: dict[str, dict[str, list[float]]] = {}
    for model in models:
        step_s[model] = {"scope": [], "engine": []}
        for run in range(runs):
            ways = ("scope", "engine") if run % 2 else ("engine", "scope")
            for way in ways:
                step_s[model][way].append(measure(way, model, steps))
    print(
        f"{'model':8} {'scope':>10} {'engine':>10}   step, median of {runs} runs, n = {N_WORKERS}"
    )
    missed = 0
    for model, by_way in step_s.items():
        medians = {way: statistics.median(times) for way, times in by_way.items()}
        ratio = medians["engine"] / medians["scope"]
        print(f"{model:8} {medians['scope'] * 1e3:7.2f} ms {medians['engine'] * 1e3:7.2f} ms")
        met = ratio <= GOAL
        missed += not met
        print(
            f"goal {model} engine/scope: {ratio:.3f} (target {GOAL}) {'met' if met else 'missed'}"
        )
    if out is not None:
        out.write_text(json.dumps(step_s))
    return 1 if missed else 0


def measure(way: str, model: str, steps: int) -> float:
    """Median step time of rank 0, in seconds."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(N_WORKERS)]
    processes = []
    for rank in range(N_WORKERS):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment |= {"TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, __file__, "--rank", str(rank), "--way", way]
        command += ["--model", model, "--steps", str(steps)]
        processes.append(
            subprocess.Popen(
                command,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        )
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return float(outputs[0].split()[-1])


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for open_socket in sockets:
        open_socket.bind(("127.0.0.1", 0))
    ports = [open_socket.getsockname()[1] for open_socket in sockets]
    for open_socket in sockets:
        open_socket.close()
    return ports


def train(way: str, model_name: str, steps: int) -> None:
    """One worker: trains and prints the median step time in seconds."""
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    scope = _scope(way)
    import tf_keras as keras

    ends: list[float] = []

    class Timer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
            ends.append(time.perf_counter())

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).random((64 * steps, 64), np.float32)
    first, second = MODELS[model_name]
    with scope:
        layers = [
            keras.layers.Dense(first, "relu"),
            keras.layers.Dense(second),
            keras.layers.Dense(10),
        ]
        model = keras.Sequential([keras.layers.Input((64,)), *layers])
        model.compile("adam", "mse")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :10])).batch(64)
    model.fit(dataset, epochs=1, verbose=0, callbacks=[Timer()])
    print(float(np.median(np.diff(ends[WARM_UP_STEPS:]))), flush=True)
    time.sleep(1.0)  # the peer may still be in its last collective
    os._exit(0)


def _scope(way: str) -> contextlib.AbstractContextManager[object]:
    """What a model is built in, once the way to train on both workers is set up."""
    if way == "engine":
        from launcher.worker.data_parallel import DataParallel
        from launcher.worker.exchange.collective import CollectiveExchange

        parallel = DataParallel(CollectiveExchange.from_tf_config())
        parallel.install(["tf_keras"])
        return contextlib.nullcontext()
    import tensorflow as tf

    communication = tf.distribute.experimental
    ring = communication.CommunicationImplementation.RING
    options = communication.CommunicationOptions(implementation=ring)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    scope: contextlib.AbstractContextManager[object] = strategy.scope()
    return scope


if __name__ == "__main__":
    main()
