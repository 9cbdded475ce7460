"""n workers that exchange directly train as one machine does, in every digit that float32 has."""

import pytest

from tests.worker.groups import FEW, FRAMEWORKS, PLAIN, difference, group, one_process, script_cases

pytestmark = [pytest.mark.tensorflow, pytest.mark.patient, pytest.mark.timeout(1800)]

TOLERANCE = 1e-5
HANDFUL = (
    *("fit_tf_data", "fit_tiny_batches", "fit_masked", "fit_embedding", "fit_clipped"),
    *("fit_many_steps_per_execution", "fit_two_optimizers", "fit_loss_scaled", "fit_frozen"),
    *("own_function", "own_gan", "own_masked"),
)
OF_THE_ENGINE = ("epoch_weights", "stop_in_mid_epoch")
GROUPS = {
    "one_shot": ("keras", 2, "3,1"),
    "two_shot+overlap": ("keras", 3, "1,2,1.5"),
    "two_shot": ("keras", 4, ""),
    "ring+overlap": ("tf_keras", 2, "1,2"),
}
"""By algorithm: framework, number of workers, shares."""


CASES = {"one_shot": script_cases(), "two_shot": FEW}


def cases_of(algorithm):
    return CASES.get(algorithm, HANDFUL)


def results(algorithm, case):
    framework, n, shares = GROUPS[algorithm]
    own = [each for each in OF_THE_ENGINE if n < 4 or each == "epoch_weights"]
    cases = ",".join([*cases_of(algorithm), *own])
    found = [rank[case] for rank in group(framework, n, cases, algorithm, shares)]
    for one in found:
        assert not (isinstance(one, dict) and "error" in one), one["error"]
    return found


@pytest.mark.parametrize(
    ("algorithm", "case"), [(name, case) for name in GROUPS for case in cases_of(name)]
)
def test_workers_train_as_one_machine(algorithm, case):
    expected = one_process(GROUPS[algorithm][0], PLAIN)[case]
    ranks = results(algorithm, case)
    worst = max(difference(expected, found) for found in ranks)
    print(f"{algorithm} {case}: {worst:.1e}")
    assert worst < TOLERANCE
    if case.startswith("own_"):
        assert all(difference(ranks[0], found) == 0 for found in ranks)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", FEW)
def test_a_worker_alone_is_one_machine(framework, case):
    found = one_process(framework, 1)[case]
    assert "error" not in found, found["error"]
    assert difference(one_process(framework, PLAIN)[case], found) < TOLERANCE


@pytest.mark.parametrize("algorithm", GROUPS)
def test_weights_are_the_same_bits_on_all_ranks_after_every_epoch(algorithm):
    first, *others = results(algorithm, "epoch_weights")
    assert len(first) == 6
    assert all(other == first for other in others)


def test_stopping_in_mid_epoch_changes_nothing():
    for found in results("one_shot", "stop_in_mid_epoch"):
        assert difference(found["whole"], found["resumed"]) < TOLERANCE
