"""What is measured of a script's own training loop."""

import functools
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.alone, pytest.mark.timeout(300)]

ROW_S = 1e-3  # that each row of a batch takes in the cases
ROOT = Path(__file__).parent.parent.parent


@functools.cache
def measurements():
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.pickle")
        worker = [sys.executable, "tests/worker/own_profile_worker.py", str(out)]
        done = subprocess.run(
            worker, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""}, timeout=280,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert out.exists(), done.stderr[-3000:]
        return pickle.loads(out.read_bytes())


def measured(name):
    found = measurements()[name]
    assert not isinstance(found, str), found
    return found


@pytest.mark.parametrize("name", ["eager", "in_function", "whole_pass_in_function"])
def test_steps_are_timed_at_two_batch_sizes(name):
    found = measured(name)
    assert found.batch_rows == (40, 10)
    full_s, small_s = found.step_s
    assert full_s >= 40 * ROW_S
    assert full_s > small_s >= 10 * ROW_S
    assert found.max_workers == 40
    assert found.steps == 4
    assert found.n_params == 83
    assert found.payload_bytes == 4 * 83


def test_the_number_of_passes_is_what_a_variable_says_or_assumed():
    assert measured("eager").epochs == 50
    assert measured("eager").assumed == ()
    assert measured("whole_pass_in_function").epochs == 10
    assert measured("whole_pass_in_function").assumed == ("epochs",)


@pytest.mark.parametrize("name", ["of_sums", "masked_by_hand"])
def test_a_loss_that_is_no_mean_over_rows_is_for_one_worker(name):
    found = measured(name)
    assert found.max_workers == 1
    assert "not a mean over the rows" in found.max_workers_reason


def test_noise_is_not_taken_for_a_loss_that_is_no_mean():
    found = measured("with_noise")
    assert found.max_workers == 40
    assert found.random_layers == ("dropout",)


@pytest.mark.parametrize(
    ("name", "reason"), [("of_arrays", "does not come from a tf.data"), ("on_batch", "_on_batch")]
)
def test_what_cannot_be_shared_out_is_for_one_worker(name, reason):
    found = measured(name)
    assert found.max_workers == 1
    assert reason in found.max_workers_reason
    assert len(found.step_s) == 1


def test_a_loop_of_a_few_batches_is_measured_by_what_there_is():
    found = measured("short")
    assert found.step_s[0] >= 40 * ROW_S
    assert found.epochs == 1
