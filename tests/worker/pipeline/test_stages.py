"""Scripts whose model is trained in stages by two processes do as they do on one machine."""

import functools

import pytest

from tests.worker.groups import difference, run_processes

pytestmark = [pytest.mark.tensorflow, pytest.mark.patient, pytest.mark.timeout(1800)]

CASES = (
    "callbacks_and_validation",
    "several_fits",
    "stopped_and_resumed",
    "skips_many_inputs_and_outputs",
    "loaded_model_and_another",
)
TOLERANCE = 1e-5


@functools.cache
def ranks():
    return run_processes("pipeline/stages_worker.py", "keras", 2)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_every_rank_sees_what_one_machine_does(case, rank):
    expected, found = ranks()[0]["plain"][case], ranks()[rank]["stages"][case]
    for each in (expected, found):
        assert "error" not in each, each["error"]
    for name, value in expected.items():
        assert difference(value, found[name]) < TOLERANCE, name


def test_the_first_rank_keeps_the_models():
    first, second = (
        [found["kept_models"] for found in rank["stages"].values()] for rank in ranks()
    )
    assert all(first)
    assert not any(second)
