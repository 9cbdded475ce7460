"""One rank of the sweep: builds the models that it is told to, and times their steps.

Rank 0 reads orders from its standard input, a JSON object a line, and passes them on; every
rank carries them out with the launcher's own engine, as a training process would.
"""

import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TF_PORT, DIRECT_PORT = 7001, 7101
SECRET = b"of the sweep".ljust(32)
CONTROL_BYTES = 4096
BATCHES = 4  # of data, which are repeated


@dataclass(frozen=True, slots=True)
class Built:
    """A model that stays, with its data, and what its gradients send.

    Of an embedding's table that is half of the rows that a batch looks up, with their indices, as
    the profiler counts them.
    """

    model: Any
    data: Any
    payload_bytes: int
    n_slices: int


def serve(rank: int, hosts: Sequence[str], strategy: str, algorithm: str) -> None:
    """Carry out orders until the input ends."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if strategy == "allreduce" and len(hosts) > 1:
        task = {"type": "worker", "index": rank}
        workers = [f"{host}:{TF_PORT}" for host in hosts]
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "workloads")]
    from launcher.worker.data_parallel import DataParallel
    from launcher.worker.devices import set_up_devices

    set_up_devices(1)
    parallel = DataParallel(_exchange(rank, hosts, strategy, algorithm))
    parallel.install(["keras"])
    models: dict[tuple[str, int], Built] = {}
    while (order := _order(parallel.exchange)) is not None:
        found = _carried_out(order, models, parallel)
        if rank == 0:
            print(json.dumps(found), flush=True)


def _exchange(rank: int, hosts: Sequence[str], strategy: str, algorithm: str) -> Any:
    import importlib

    if len(hosts) == 1:
        from launcher.worker.exchange.alone import Alone

        return Alone()
    if strategy == "allreduce":
        from launcher.worker.exchange.collective import CollectiveExchange

        return CollectiveExchange.from_tf_config()
    from launcher.worker.exchange.direct import DirectExchange
    from launcher.worker.exchange.transport.mesh import open_mesh

    mesh = open_mesh(rank, [[f"{host}:{DIRECT_PORT}"] for host in hosts], SECRET)
    module = importlib.import_module(f"launcher.worker.exchange.algorithms.{algorithm}")
    return DirectExchange(mesh, getattr(module, algorithm))


def _order(exchange: Any) -> dict[str, Any] | None:
    """The next order, which rank 0 reads for all; None at the end."""
    import numpy as np

    text = sys.stdin.readline().strip().encode() if exchange.rank == 0 else b""
    told = np.zeros(CONTROL_BYTES, np.int32)
    told[: len(text)] = np.frombuffer(text, np.uint8)
    if exchange.world_size > 1:
        (told,) = exchange.sum_arrays([told], "orders")
    text = bytes(told.astype(np.uint8)).rstrip(b"\0")
    return json.loads(text) if text else None


def _carried_out(order: dict[str, Any], models: dict, parallel: Any) -> dict[str, Any]:
    """Make the steps of an order; what they took, in seconds."""
    key = order["workload"], order["batch"]
    if key not in models:
        models[key] = _built(*key, parallel)
    built = models[key]
    if "shares" in order:
        parallel.shares = tuple(order["shares"])
    times = _step_times(built.model, built.data, order["batch"], order["steps"])
    return {
        "n_params": int(built.model.count_params()),
        "payload_bytes": built.payload_bytes,
        "n_slices": built.n_slices,
        "steps": len(times),
        "mean_s": statistics.fmean(times),
        "median_s": statistics.median(times),
        "std_s": statistics.stdev(times) if len(times) > 1 else 0.0,
    }


def _built(workload: str, batch: int, parallel: Any) -> Built:
    """A compiled model with its data."""
    import keras
    from zoo import ZOO

    keras.utils.set_random_seed(1)
    entry = ZOO[workload]
    model = entry.make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    parallel.prepare(model)
    tables = [layer for layer in model.layers if isinstance(layer, keras.layers.Embedding)]
    whole = 4 * sum(math.prod(v.shape) for v in model.trainable_variables)
    spared = [
        4 * layer.input_dim * layer.output_dim
        - batch * math.prod(entry.shape) * (4 * layer.output_dim + 4) // 2
        for layer in tables
    ]
    return Built(model, entry.data(batch * BATCHES), whole - sum(spared), len(tables))


def _step_times(model: Any, data: Any, batch: int, steps: int) -> list[float]:
    """The time of each of `steps` steps, the first one (which waits for the data) left out."""
    import keras
    import tensorflow as tf

    ends_s: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            ends_s.append(time.perf_counter())

    dataset = tf.data.Dataset.from_tensor_slices(data).batch(batch).repeat()
    model.fit(dataset, steps_per_epoch=steps + 1, epochs=1, verbose=0, callbacks=[Clock()])
    return [later - sooner for sooner, later in itertools.pairwise(ends_s)]


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], sys.argv[4])
