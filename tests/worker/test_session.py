"""Stopped and resumed, a script trains bit by bit as if it had never been stopped."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker.resume_cases import CASES, CRASHES, NOT_EXACT, STEPS, STOPS

pytestmark = [pytest.mark.tensorflow, pytest.mark.patient, pytest.mark.timeout(1800)]

FRAMEWORKS = ("keras", "tf_keras")
PATIENCE_S = 1500  # others may need the processors more
EXACT = [(each, name) for each in FRAMEWORKS for name in CASES if (each, name) not in NOT_EXACT]
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What all cases brought, by framework; both frameworks run at the same time."""
    folder = tmp_path_factory.mktemp("resume")
    processes = [start(framework, folder) for framework in FRAMEWORKS]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return {name: pickle.loads((folder / name).read_bytes()) for name in FRAMEWORKS}


def start(framework: str, folder: Path) -> "subprocess.Popen[str]":
    legacy = "1" if framework == "tf_keras" else "0"
    names = ",".join(name for name in CASES if (framework, name) not in NOT_EXACT)
    worker = [sys.executable, "-m", "tests.worker.resume_worker"]
    return subprocess.Popen(
        [*worker, framework, folder / framework, names],
        cwd=ROOT,
        env=os.environ | {"TF_USE_LEGACY_KERAS": legacy, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def found(results: dict[str, Any], framework: str, *key: Any) -> Any:
    result = results[framework][key]
    assert "error" not in result, result["error"]
    return result


@pytest.mark.parametrize(
    ("framework", "name", "stops"),
    [(framework, name, stops) for framework, name in EXACT for stops in STOPS[CASES[name]]],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    results: dict[str, Any], framework: str, name: str, stops: tuple[int, ...]
) -> None:
    whole = found(results, framework, name, ())
    resumed = found(results, framework, name, stops)
    assert resumed["warnings"] == whole["warnings"] == []
    assert resumed["histories"] == whole["histories"]
    pairs = zip(resumed["weights"], whole["weights"], strict=True)
    assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)
    assert resumed["n_steps"] == whole["n_steps"]  # nothing is trained twice


@pytest.mark.parametrize(
    ("framework", "name", "steps"),
    [
        (framework, name, steps)
        for framework, name in EXACT
        for steps in CRASHES.get(CASES[name], ())
    ],
)
def test_after_a_crash_training_goes_on_from_the_last_checkpoint_as_if_nothing_had_happened(
    results: dict[str, Any], framework: str, name: str, steps: tuple[int, int]
) -> None:
    whole = found(results, framework, name, ())
    resumed = found(results, framework, name, "crash", steps)
    assert resumed["warnings"] == whole["warnings"] == []
    assert resumed["histories"] == whole["histories"]
    pairs = zip(resumed["weights"], whole["weights"], strict=True)
    assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)
    assert resumed["n_steps"] == whole["n_steps"]


@pytest.mark.parametrize(("framework", "name"), EXACT)
def test_every_case_trains_as_many_steps_as_it_declares(
    results: dict[str, Any], framework: str, name: str
) -> None:
    whole = found(results, framework, name, ())
    n_epochs = sum(len(epoch) for _, epoch, _ in whole["histories"])
    steps_per_epoch = 4 if name == "normalised" else STEPS  # a fifth of it validates
    assert whole["n_steps"] == n_epochs * steps_per_epoch
