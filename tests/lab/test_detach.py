"""A run launched from a laptop that is a node of the cluster, and that goes away."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.requirement import missing

pytestmark = pytest.mark.lab

LIMIT_S = 200.0
LAPTOP, HEAD = "h2", "h1"
SLOW = "/tmp/slow"  # while it is there, a step takes its time

SCRIPT = f"""
    import time
    from pathlib import Path

    import keras
    import numpy as np

    class Pace(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if Path("{SLOW}").exists():
                time.sleep(0.5)

    x = np.random.default_rng(3).normal(size=(600, 4)).astype("float32")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    print("the script begins", flush=True)
    model.fit(x, x[:, :1], batch_size=60, epochs=24, verbose=0, callbacks=[Pace()])
    print("the script ends", flush=True)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A head that trains, and a laptop that does not."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Lab(2) as lab:
        lab.start_ray(num_cpus=(1, 0))
        lab.outside(HEAD, SLOW).touch()
        work = lab.home(LAPTOP) / "work"
        work.mkdir()
        (work / "train.py").write_text(dedent(SCRIPT))
        yield lab


def test_a_detached_run_outlives_the_machine_that_launched_it(lab: Lab) -> None:
    words = ["launch", "train.py", "--detach", "--name", "far", "--yes"]
    began = lab.run(LAPTOP, words, cwd="/tmp/home/work", timeout_s=LIMIT_S)
    assert began.returncode == 0, began.stderr
    assert f"It is kept in /tmp/home/launch on {HEAD}" in began.stderr
    assert "1 worker" in began.stdout
    assert not (lab.home(LAPTOP) / "launch").exists()

    def leave(line: str, process: Any) -> None:
        if "the script begins" in line:
            process.send_signal(signal.SIGINT)

    code, said = attached(lab, LAPTOP, leave)
    assert (code, "far goes on" in said) == (130, True), said
    elsewhere = lab.run(LAPTOP, ["launch", "explain", "far"], timeout_s=LIMIT_S)
    assert f"far is kept in /tmp/home/launch on {HEAD}" in elsewhere.stderr

    lab.crash(LAPTOP)
    assert "detached" in lab.run(HEAD, ["launch", "runs"], timeout_s=LIMIT_S).stdout
    code, said = attached(lab, HEAD, lambda *_: lab.outside(HEAD, SLOW).unlink(missing_ok=True))
    assert code == 0, said
    assert "the script ends" in said
    assert (lab.home(HEAD) / "launch" / "runs" / "far" / "model.keras").exists()


def attached(lab: Lab, host: str, see: Callable[[str, Any], object]) -> tuple[int, str]:
    """How `launch attach far` ended, and all that it said; `see` gets each line as it comes."""
    said = []
    words = ["launch", "attach", "far"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with lab.popen(host, words, text=True, **streams) as process:
        try:
            for line in process.stdout:
                said.append(line)
                see(line, process)
            process.wait(LIMIT_S)
        finally:
            process.kill()
    return process.returncode, "".join(said)
