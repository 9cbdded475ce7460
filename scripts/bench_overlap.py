"""What it brings to exchange gradients while the backward pass still computes, in the lab.

The same processes train the same models under `direct`, in turn with all gradients in one message
after the backward pass and with buckets that leave during it. Needs root; run it on a quiet
machine.
"""

import argparse
import contextlib
import importlib
import io
import itertools
import json
import os
import runpy
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ranks import ranks  # noqa: E402 - beside this file

MODELS = ("small_cnn", "larger_cnn", "wide_mlp")
LINKS = ((0.0005, 12.5e6), (0.010, 12.5e6), (0.010, 125e6))  # RTT, bytes/s of an interface
COUNTS = (2, 4)
ALGORITHM_BY_COUNT = {2: "one_shot", 4: "two_shot"}
CPUS = 0.45
ROUNDS = 3
LIMIT_S, MIN_STEPS, MAX_STEPS = 4.0, 6, 20  # of a measurement
PORT = 7301
SECRET = b"of the benchmark of overlap".ljust(32)


@dataclass(frozen=True, slots=True)
class Row:
    """Median steps of one cell by round, in seconds: one message, and buckets."""

    n: int
    model: str
    rtt_s: float
    rate_bytes_per_s: float
    whole_s: list[float]
    buckets_s: list[float]

    @property
    def gain(self) -> float:
        """The part of a step that overlap saves, in the median round."""
        pairs = zip(self.whole_s, self.buckets_s, strict=True)
        return statistics.median(1 - buckets / whole for whole, buckets in pairs)

    def __str__(self) -> str:
        whole_s, buckets_s = (statistics.median(x) for x in (self.whole_s, self.buckets_s))
        return (
            f"{self.n:>2}  {self.model:<11}{1e3 * self.rtt_s:>5g} ms"
            f"{self.rate_bytes_per_s * 8e-6:>6g} Mbit/s{1e3 * whole_s:>8.0f} ms"
            f"{1e3 * buckets_s:>8.0f} ms{self.gain:>8.1%}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="2,4", help="numbers of workers (default: 2,4)")
    parser.add_argument("--models", default=",".join(MODELS), help="of scripts/workloads")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hosts", help=argparse.SUPPRESS)
    options = parser.parse_args()
    models = options.models.split(",")
    if options.rank is not None:
        serve(options.rank, options.hosts.split(","), models)
        return 0
    print(" n  model        RTT      rate     one message   buckets    saved", flush=True)
    rows: list[Row] = []
    for n in map(int, options.counts.split(",")):
        for row in measured(n, models, options.rounds):
            print(row, flush=True)
            rows.append(row)
            if options.json:
                options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return 0


def measured(n: int, models: Sequence[str], rounds: int) -> Iterator[Row]:
    """All cells of n workers, in one lab and by the same processes."""
    from tests.lab.lab import Lab

    def command(rank: int, hosts: str) -> list[str]:
        words = [sys.executable, __file__, "--rank", str(rank), "--hosts", hosts]
        return [*words, "--models", ",".join(models)]

    def step_s(model: int, way: int) -> float:
        return float(ask(f"{model} {way}", "step ").split()[1])

    with Lab(n, rtt_s=LINKS[0][0], cpus=(CPUS,) * n) as lab, ranks(lab, command) as ask:
        for rtt_s, rate in LINKS:
            lab.set("*-*", rtt_s=rtt_s)
            for name in lab.names:
                lab.set_nic(name, rate)
            for place, model in enumerate(models):
                found = [[step_s(place, way) for way in (0, 1)] for _ in range(rounds)]
                whole_s, buckets_s = (list(times) for times in zip(*found, strict=True))
                yield Row(n, model, rtt_s, rate, whole_s, buckets_s)


def serve(rank: int, hosts: Sequence[str], names: Sequence[str]) -> None:
    """One rank: trains a model in one of two ways whenever rank 0 is told to."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from launcher.worker.devices import set_up_devices

    set_up_devices(1)
    import numpy as np

    from launcher.worker.data_parallel import DataParallel
    from launcher.worker.exchange.buckets import MIN_BUCKET_BYTES
    from launcher.worker.exchange.direct import DirectExchange
    from launcher.worker.exchange.transport.mesh import open_mesh

    class Exchange(DirectExchange):
        waits = None  # slices stay equal

    way = ALGORITHM_BY_COUNT[len(hosts)]
    module = importlib.import_module(f"launcher.worker.exchange.algorithms.{way}")
    mesh = open_mesh(rank, [[f"{host}:{PORT}"] for host in hosts], SECRET, timeout_s=120.0)
    exchange = Exchange(mesh, getattr(module, way))
    DataParallel(exchange).install(["keras"])
    models: dict[tuple[int, int], Any] = {}
    while True:
        told = [int(x) for x in sys.stdin.readline().split()] if rank == 0 else [0, 0]
        (order,) = exchange.sum_arrays([np.array(told)], "order")
        key = (int(order[0]), int(order[1]))
        exchange._bucket_bytes = MIN_BUCKET_BYTES if key[1] else None
        if key not in models:
            models[key] = workload(names[key[0]])
            times(models[key], 2)
        first_s = times(models[key], 2)[-1]
        wish = max(MIN_STEPS, min(MAX_STEPS, round(LIMIT_S / first_s)))
        (wishes,) = exchange.sum_arrays([np.array([wish if rank == 0 else 0])], "steps")
        found = times(models[key], int(wishes[0]))
        if rank == 0:
            print(f"step {statistics.median(found)}", flush=True)


def workload(name: str) -> Any:
    """A model of scripts/workloads, compiled, with its data, but not trained."""
    folder = ROOT / "scripts" / "workloads"
    sys.path.insert(0, str(folder))
    script = str(folder / f"{name}.py")
    before, sys.argv = sys.argv, [script, "--epochs", "0", "--steps", "1"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = runpy.run_path(script)
    finally:
        sys.argv = before
        sys.path.remove(str(folder))
    return found["model"], found["arguments"].batch_size


def times(loaded: Any, n_steps: int) -> list[float]:
    """Durations of steps in seconds, the first one (which waits for the epoch) left out."""
    import keras
    import numpy as np

    model, batch = loaded
    ended_s: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            ended_s.append(time.perf_counter())

    n_rows = batch * (n_steps + 1)
    x = np.zeros((n_rows, *model.input_shape[1:]), np.float32)
    y = np.arange(n_rows) % 10
    model.fit(x, y, batch_size=batch, verbose=0, shuffle=False, callbacks=[Clock()])
    return [b - a for a, b in itertools.pairwise(ended_s)]


if __name__ == "__main__":
    sys.exit(main())
