"""Groups of training processes: each runs all cases in sequence, once for all tests."""

import functools
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tests.ports import free_ports

HERE = Path(__file__).parent
TIMEOUT_S = 1500  # others may need the processors more
PLAIN = 0
"""Number of workers that stands for plain Keras, without the engine."""
FRAMEWORKS = ("keras", "tf_keras")
SCRIPTS = ("input", "model", "own_loop")
FEW = ("fit_tiny_batches", "fit_masked", "fit_loss_scaled", "own_function", "own_masked")
"""Cases of scripts that are shared out in ways of their own."""
ALONE = (*FEW, "replay_goes_on", "stop_in_mid_epoch", "request_is_agreed", "own_loop_stops")
"""Cases that a worker alone runs."""


def script_cases() -> list[str]:
    """Names of the cases that must come out the same, read without importing TensorFlow."""
    texts = [(HERE / f"{part}_cases.py").read_text() for part in SCRIPTS]
    names = [name for text in texts for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE)]
    return [name for name in names if name != "statistical"]


def one_process(framework: str, n: int) -> dict:
    """Results by case of plain Keras (`PLAIN`), or of a worker alone (1).

    Args:
        framework: "keras" or "tf_keras".
        n: `PLAIN`, which runs all cases of scripts, or 1, which runs `ALONE`.
    """
    return _one_process_each()[framework, n]


@functools.cache
def _one_process_each() -> dict[tuple[str, int], dict]:
    """By framework and `n`; two at the same time, for each leaves a core idle."""
    kinds = [(framework, n) for n in (PLAIN, 1) for framework in FRAMEWORKS]
    cases = {PLAIN: "scripts", 1: ",".join(ALONE)}
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda kind: group(*kind, cases[kind[1]])[0], kinds)
        return dict(zip(kinds, found, strict=True))


@functools.cache
def group(
    framework: str, n: int, cases: str, exchange: str = "collective", shares: str = ""
) -> list[dict]:
    """Each rank's results by case, from `n` processes of a framework.

    Args:
        framework: "keras" or "tf_keras".
        n: number of processes, see `PLAIN`.
        cases: names, separated by commas; "scripts" stands for all of scripts.
        exchange: "collective", or an algorithm of the direct exchange.
        shares: of the ranks, separated by commas; equal by default.
    """
    return run_processes("same_curve_worker.py", framework, n, [cases, exchange, shares])


def run_processes(script: str, framework: str, n: int, options: Sequence[str] = ()) -> list[dict]:
    """What each rank's process of a script left in its result file.

    Args:
        script: in this folder; takes framework, number of ranks, rank, ports, result file.
        framework: "keras" or "tf_keras".
        n: number of processes, see `PLAIN`.
        options: further arguments.
    """
    with tempfile.TemporaryDirectory(prefix="launch-group-") as folder:
        return _run_group(Path(folder), script, framework, n, options)


def _run_group(
    folder: Path, script: str, framework: str, n: int, options: Sequence[str]
) -> list[dict]:
    outs = [folder / f"{rank}.pickle" for rank in range(max(n, 1))]
    ports = ",".join(str(port) for port in free_ports(len(outs)))
    logs = [folder / f"{rank}.log" for rank in range(len(outs))]
    # What the processes leave in their folder of temporary files goes with this one.
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "TMPDIR": str(folder)}
    processes = []
    for rank, (out, log) in enumerate(zip(outs, logs, strict=True)):
        worker = str(HERE / script)
        command = [sys.executable, worker, framework, str(n), str(rank), ports, str(out)]
        command += options
        with log.open("w") as file:
            processes.append(subprocess.Popen(command, stdout=file, stderr=file, env=environment))
    try:
        for process in processes:
            process.wait(TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    missing = [
        log.read_text()[-3000:] for out, log in zip(outs, logs, strict=True) if not out.exists()
    ]
    assert not missing, "\n".join(missing)
    return [pickle.loads(out.read_bytes()) for out in outs]


def difference(expected, found) -> float:
    """The largest difference, relative to the largest value of each array."""
    if isinstance(expected, dict):
        assert expected.keys() == found.keys()
        return max(difference(expected[key], found[key]) for key in expected)
    if isinstance(expected, (list, tuple)) and any(np.ndim(value) for value in expected):
        assert len(expected) == len(found)
        return max(difference(*pair) for pair in zip(expected, found, strict=True))
    a, b = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    assert a.shape == b.shape
    assert np.isfinite(a).all() and np.isfinite(b).all()
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-2)) if a.size else 0.0
