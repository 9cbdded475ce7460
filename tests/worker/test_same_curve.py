"""n workers train as one machine does (promise 1)."""

import numpy as np
import pytest

from tests.worker.groups import FRAMEWORKS, PLAIN, difference, group, one_process, script_cases

pytestmark = [pytest.mark.tensorflow, pytest.mark.patient, pytest.mark.timeout(1800)]

TOLERANCE = 1e-4
WORKERS = [2, 3]
# These run all cases of scripts, as do two workers in `test_direct`: so every case meets both
# frameworks, two workers and three, both exchanges. The other groups run some.
WHOLE = {("keras", 3), ("tf_keras", 2)}
SOME = (
    *("fit_numpy", "fit_validation_split", "fit_py_dataset", "predict_shapes", "fit_callbacks"),
    *("fit_functional_many", "fit_custom_step", "fit_masked", "fit_weights", "fit_batch_norm"),
    *("statistical", "own_eager", "own_batch_norm"),
)
OF_THE_ENGINE = (
    *("replay_goes_on", "stop_in_mid_epoch", "crash_in_mid_epoch", "request_is_agreed"),
    *("unseeded_data", "python_generator", "own_loop_stops", "unequal_shares"),
    *("different_weights", "dropout_masks", "local_batch_norm", "jit_is_off"),
)


def ranks_of(framework, n):
    if n <= 1:
        return [one_process(framework, n)]
    scripts = ("scripts",) if (framework, n) in WHOLE else SOME
    return group(framework, n, ",".join([*scripts, *OF_THE_ENGINE]))


def result(framework, n, case, rank=0):
    found = ranks_of(framework, n)[rank][case]
    assert not (isinstance(found, dict) and "error" in found), found["error"]
    return found


@pytest.mark.parametrize(
    ("framework", "n", "case"),
    [
        (framework, n, case)
        for framework in FRAMEWORKS
        for n in WORKERS
        for case in script_cases()
        if (framework, n) in WHOLE or case in SOME
    ],
)
def test_workers_train_as_one_machine(framework, n, case):
    expected = result(framework, PLAIN, case)
    worst = max(difference(expected, result(framework, n, case, rank)) for rank in range(n))
    print(f"{framework} n={n} {case}: {worst:.1e}")
    assert worst < TOLERANCE


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", WORKERS)
def test_shares_may_be_unequal_and_even_empty(framework, n):
    for case, runs in result(framework, n, "unequal_shares").items():
        for run in runs:
            assert difference(result(framework, PLAIN, case), run) < TOLERANCE, case


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", WORKERS)
def test_noise_stays_within_the_spread_of_seeds(framework, n):
    expected = result(framework, PLAIN, "statistical")
    found = result(framework, n, "statistical")
    for kind, losses in expected.items():
        assert abs(np.mean(found[kind]) - np.mean(losses)) < np.ptp(losses), kind


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", WORKERS)
def test_every_rank_drops_other_units(framework, n):
    masks = [result(framework, n, "dropout_masks", rank) for rank in range(n)]
    for first, second in masks:
        assert not np.array_equal(first, second)
    for rank in range(1, n):
        assert not np.array_equal(masks[0][0], masks[rank][0])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", [1, 2])
def test_replayed_data_go_on_as_uninterrupted(framework, n):
    for kind, seen in result(framework, n, "replay_goes_on").items():
        assert seen["whole"][0] == seen["replayed"][0], kind
        assert seen["whole"][1] == seen["replayed"][1], kind


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", [1, 2])
def test_stopping_in_mid_epoch_changes_nothing(framework, n):
    found = result(framework, n, "stop_in_mid_epoch")
    assert difference(found["whole"], found["resumed"]) < TOLERANCE


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dying_in_mid_epoch_changes_nothing(framework):
    for rank in range(2):
        found = result(framework, 2, "crash_in_mid_epoch", rank)
        assert difference(found["whole"], found["resumed"]) < 1e-6


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", [1, *WORKERS])
def test_a_request_reaches_all_ranks_at_one_step(framework, n):
    reads = [result(framework, n, "request_is_agreed", rank) for rank in range(n)]
    assert all(read == reads[0] for read in reads)
    assert set(reads[0]) == {0, 2}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", [1, *WORKERS])
@pytest.mark.parametrize("kind", ["eager", "function"])
def test_own_loops_stop_at_one_step_and_keep_what_there_is(framework, n, kind):
    ranks = [result(framework, n, "own_loop_stops", rank)[kind] for rank in range(n)]
    assert all(rank == ranks[0] for rank in ranks)
    steps, kept = ranks[0]
    assert 4 <= steps <= 6
    assert kept == [True, "results"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", WORKERS)
def test_ranks_start_from_worker_0s_weights(framework, n):
    ranks = [result(framework, n, "different_weights", rank) for rank in range(n)]
    assert all(difference(ranks[0], other) == 0 for other in ranks)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", WORKERS)
def test_local_batch_norm_ends_an_epoch_with_common_averages(framework, n):
    ranks = [result(framework, n, "local_batch_norm", rank) for rank in range(n)]
    assert all(difference(ranks[0], other) == 0 for other in ranks)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n", WORKERS)
@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("unseeded_data", "saw other training data than worker 0"),
        ("python_generator", "is a Python generator"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_on_every_rank(framework, n, case, text):
    for rank in range(n):
        assert text in result(framework, n, case, rank)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_compilation_is_switched_off(framework):
    assert result(framework, 2, "jit_is_off")["loss"]
