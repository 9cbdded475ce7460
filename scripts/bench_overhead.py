"""What `launch` adds to, and takes off, a hand-written Ray Train script doing the same work.

The peer is a bare `TensorflowTrainer` script with MultiWorkerMirroredStrategy, as Ray's
documentation writes it (legacy Keras, since plain Keras 3 does not train under that strategy).
Both train the same model on the same data at the same n, alternating, each from a fresh start.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

WORK = """
import time
import numpy as np
import tf_keras as keras

class Timer(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.at = []
    def on_train_batch_end(self, batch, logs=None):
        self.at.append(time.perf_counter())
    def on_train_end(self, logs=None):
        steps = np.diff(self.at[STEPS:])
        print(f"median step {1e3 * np.median(steps):.4f} ms", flush=True)

STEPS, EPOCHS = 64, {epochs}

def data():
    rng = np.random.default_rng(0)
    x = rng.random((4096, 64), dtype="float32")
    return x, x[:, :10]

def model():
    keras.utils.set_random_seed(1)
    m = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256, activation="relu"),
                          keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
    m.compile("adam", "mse")
    return m
"""
PLAIN = """
from work import *
x, y = data()
model().fit(x, y, batch_size=64, epochs=EPOCHS, verbose=0, callbacks=[Timer()])
"""
BARE = """
import os, sys
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

def train_loop_per_worker(config):
    import sys
    sys.path.insert(0, config["folder"])
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from work import EPOCHS, Timer, data, model
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(64)
    with strategy.scope():
        m = model()
    m.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[Timer()])
    rank = ray.train.get_context().get_world_rank()
    m.save(os.path.join(config["folder"], f"model{rank}.keras"))  # one rank alone would hang

ray.init(address="local", log_to_driver=True)
TensorflowTrainer(
    train_loop_per_worker,
    train_loop_config={"folder": os.path.dirname(os.path.abspath(__file__))},
    scaling_config=ScalingConfig(num_workers=int(sys.argv[1]), resources_per_worker={"CPU": 1}),
    run_config=RunConfig(storage_path=sys.argv[2]),
).fit()
"""
GOALS = (("total_remembered", 1.0), ("total_cold", 1.3), ("step", 1.03))


@dataclass(frozen=True, slots=True)
class Trial:
    """One start to finish: seconds in all, and the median step in ms."""

    kind: str
    total_s: float
    step_ms: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    trials: list[Trial] = []
    stages: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for number in range(1 if options.quick else 3):
            trials += one_round(Path(folder), number, options, stages)
    ratios = print_tables(trials, stages)
    if options.json:
        options.json.write_text(
            json.dumps({"trials": [asdict(t) for t in trials], "ratios": ratios}, indent=1) + "\n"
        )
    met = True
    for name, target in GOALS:
        is_met = ratios[name] <= target
        met &= is_met
        print(f"goal {name}: {ratios[name]:.2f} (target {target}) {'met' if is_met else 'missed'}")
    return 0 if met else 1


def one_round(
    folder: Path, number: int, options: argparse.Namespace, stages: dict[str, list[float]]
) -> list[Trial]:
    """Bare, launch cold, bare again, launch with the profile remembered."""
    work = folder / f"round{number}"
    home = work / "home"
    scripts = work / "scripts"
    scripts.mkdir(parents=True)
    (home / ".ray").mkdir(parents=True)
    (scripts / "work.py").write_text(WORK.replace("{epochs}", str(options.epochs)))
    (scripts / "train.py").write_text(PLAIN)
    bare_folder = work / "bare"
    bare_folder.mkdir()
    (bare_folder / "work.py").write_text((scripts / "work.py").read_text())
    (bare_folder / "bare.py").write_text(BARE)
    bare = [sys.executable, "bare.py", str(options.workers), str(work / "results")]
    launch = [str(Path(sys.executable).parent / "launch"), "train.py", "--seed", "1"]
    launch += ["--workers", str(options.workers), "--address", "local", "--json"]
    found = [run("bare", bare, bare_folder, home)]
    for kind in ("cold", "remembered"):
        found.append(run(kind, launch, scripts, home, stages))
        if kind == "cold":
            found.append(run("bare", bare, bare_folder, home))
    return found


def run(
    kind: str,
    command: list[str],
    folder: Path,
    home: Path,
    stages: dict[str, list[float]] | None = None,
) -> Trial:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"HOME": str(home), "RAY_AUTH_MODE": "disabled"}
    began_s = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    total_s = time.perf_counter() - began_s
    text = done.stdout + done.stderr
    if done.returncode:
        raise SystemExit(f"{kind}: {' '.join(command)} failed:\n{text[-3000:]}")
    step_ms = float(text.rpartition("median step ")[2].split()[0])
    if stages is not None:
        note_stages(kind, json.loads(done.stdout), total_s, stages)
    print(f"{kind:<11} {total_s:6.1f} s, step {step_ms:.2f} ms", flush=True)
    return Trial(kind, total_s, step_ms)


def note_stages(kind: str, record: dict, total_s: float, stages: dict[str, list[float]]) -> None:
    """How long each stage took, by the record's own events."""
    moments = [("python and preflight", None)]
    moments += [(e["detail"], e["at"]) for e in record["events"] if e["kind"] == "stage"]
    segment = record["segments"][0]
    moments.append(("starting Ray Train's workers", segment["started"]))
    moments.append(("training", segment["first_step_at"]))
    timed = sorted(
        ((name, datetime.fromisoformat(at).timestamp()) for name, at in moments if at),
        key=lambda moment: moment[1],
    )
    ended = datetime.fromisoformat(segment["ended"]).timestamp()
    for (name, at), (_, until) in zip(timed, [*timed[1:], ("", ended)], strict=True):
        stages.setdefault(f"{kind}: {name}", []).append(until - at)
    shown = ended - timed[0][1]
    stages.setdefault(f"{kind}: before and after", []).append(total_s - shown)


def print_tables(trials: list[Trial], stages: dict[str, list[float]]) -> dict[str, float]:
    """Medians and their ratios to the bare script's."""
    medians = {
        kind: (
            statistics.median(t.total_s for t in trials if t.kind == kind),
            statistics.median(t.step_ms for t in trials if t.kind == kind),
        )
        for kind in ("bare", "cold", "remembered")
    }
    bare_s, bare_ms = medians["bare"]
    print(f"\n{'':<22}{'total':>9}{'ratio':>7}{'step':>11}{'ratio':>7}")
    for kind, (total_s, step_ms) in medians.items():
        name = kind if kind == "bare" else f"launch, {kind}"
        print(
            f"{name:<22}{total_s:>7.1f} s{total_s / bare_s:>7.2f}"
            f"{step_ms:>8.2f} ms{step_ms / bare_ms:>7.2f}"
        )
    print("\nstages of launch (median)")
    for name, times in stages.items():
        print(f"  {name:<62}{statistics.median(times):>6.1f} s")
    print()
    return {
        "total_cold": medians["cold"][0] / bare_s,
        "total_remembered": medians["remembered"][0] / bare_s,
        "step": max(medians["cold"][1], medians["remembered"][1]) / bare_ms,
    }


if __name__ == "__main__":
    sys.exit(main())
