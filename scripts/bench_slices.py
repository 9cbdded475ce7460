"""Unequal workers under `direct`: slices that follow speed against equal ones, in the lab.

Four hosts have CPU quotas of 0.2, 0.4, 0.6 and 0.6 cores and train one model together. Then four
equal hosts train, of which one is halved in mid-run. Needs root; run it on a quiet machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

UNEQUAL = (0.2, 0.4, 0.6, 0.6)
EQUAL = (0.4,) * 4
HALVED = "h3"
GOAL_SPEED_UP, GOAL_STEPS = 1.5, 10
RTT_S, RATE_BYTES_PER_S = 0.0005, 125e6
BATCHES, STEPS, SETTLED = (512, 1024), 60, 30
PORT = 7500
SECRET = b"secret of the benchmark".ljust(32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hosts", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--equal", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        train(options.rank, options.hosts.split(","), options.batch, follows=not options.equal)
        return 0
    print(f"quotas {UNEQUAL}: mean step after {SETTLED} steps")
    found: dict[str, float] = {}
    for batch in BATCHES:
        equal_s = settled_step_s(batch, follows=False)
        following_s = settled_step_s(batch, follows=True)
        found[f"speed_up_at_{batch}"] = equal_s / following_s
        print(
            f"batch {batch:>5}: equal slices {equal_s * 1e3:4.0f} ms, following speed "
            f"{following_s * 1e3:4.0f} ms: {equal_s / following_s:.2f} x faster"
        )
    found["followed_after_steps"] = n_steps = steps_until_followed()
    print(f"one of {EQUAL} halved in mid-run: followed after {n_steps} steps\n")
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")
    return print_goals(found)


def print_goals(found: dict[str, float]) -> int:
    goals = [
        (f"{name}: {value:.2f} (target {GOAL_SPEED_UP})", value >= GOAL_SPEED_UP)
        for name, value in found.items()
        if name.startswith("speed_up")
    ]
    n_steps = found["followed_after_steps"]
    goals.append((f"followed_after_steps: {n_steps} (target {GOAL_STEPS})", n_steps <= GOAL_STEPS))
    for text, met in goals:
        print(f"goal {text} {'met' if met else 'missed'}")
    return 0 if all(met for _, met in goals) else 1


def settled_step_s(batch: int, *, follows: bool) -> float:
    """The mean duration of a step among unequal workers, once shares have settled."""
    with group(UNEQUAL, batch, follows=follows) as (_, steps):
        found = [next(steps) for _ in range(STEPS)]
    print(f"follows={follows}", [round(share, 2) for share in found[-1]["shares"]], file=sys.stderr)
    return statistics.fmean(step["duration_s"] for step in found[SETTLED:])


def steps_until_followed() -> int:
    """How many steps after a host is halved its share is nearer to half than to the whole."""
    place = int(HALVED[1:]) - 1
    with group(EQUAL, BATCHES[0], follows=True) as (lab, steps):
        before = [next(steps) for _ in range(SETTLED)][-1]["shares"][place]
        lab.set_cpu(HALVED, EQUAL[place] / 2)
        half = before / 2 / (1 - before / 2)
        for n_steps, step in enumerate(steps, start=1):
            print(n_steps, [round(share, 2) for share in step["shares"]], file=sys.stderr)
            if abs(step["shares"][place] - half) < abs(step["shares"][place] - before):
                return n_steps
    raise SystemExit("the workers ended before the slices had followed")


@contextmanager
def group(
    cpus: Sequence[float], batch: int, *, follows: bool
) -> Iterator[tuple[Any, Iterator[Any]]]:
    """A lab whose hosts train together, and the steps as they come."""
    from tests.lab.lab import Lab

    with Lab(len(cpus), rtt_s=RTT_S, rate_bytes_per_s=RATE_BYTES_PER_S) as lab:
        hosts = ",".join(lab.ip(name) for name in lab.names)
        processes = []
        for rank, name in enumerate(lab.names):
            command = [sys.executable, __file__, "--rank", str(rank), "--hosts", hosts]
            command += ["--batch", str(batch)]
            command += [] if follows else ["--equal"]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(lab.popen(name, command, stdout=out, text=True))
        lines = (line for line in processes[0].stdout if line.startswith("{"))
        try:
            json.loads(next(lines))  # the first step: all have started
            for name, quota in zip(lab.names, cpus, strict=True):
                lab.set_cpu(name, quota)
            yield lab, (json.loads(line) for line in lines)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def train(rank: int, hosts: Sequence[str], batch: int, *, follows: bool) -> None:
    """One rank; rank 0 prints every step."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from launcher.worker.devices import set_up_devices

    set_up_devices(1)
    import keras
    import numpy as np

    from launcher.worker.data_parallel import DataParallel
    from launcher.worker.exchange.algorithms.one_shot import one_shot
    from launcher.worker.exchange.direct import DirectExchange
    from launcher.worker.exchange.transport.mesh import open_mesh

    class Exchange(DirectExchange):
        waits = DirectExchange.waits if follows else None

    mesh = open_mesh(rank, [[f"{host}:{PORT}"] for host in hosts], SECRET)
    parallel = DataParallel(Exchange(mesh, one_shot))
    parallel.install(["keras"])
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    x = np.random.default_rng(0).random((batch * 100, 28, 28, 1), np.float32)
    callbacks = [_reporter(keras, parallel)] if rank == 0 else []
    model.fit(x, np.arange(len(x)) % 10, batch_size=batch, verbose=0, callbacks=callbacks)


def _reporter(keras: Any, parallel: Any) -> Any:
    import time

    class Reporter(keras.callbacks.Callback):
        ended_s = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            now_s = time.perf_counter()
            total = sum(parallel.shares)
            shares = [share / total for share in parallel.shares]
            found = {"step": batch, "duration_s": now_s - self.ended_s, "shares": shares}
            print(json.dumps(found), flush=True)
            self.ended_s = now_s

    return Reporter()


if __name__ == "__main__":
    sys.exit(main())
