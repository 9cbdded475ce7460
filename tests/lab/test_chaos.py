"""A few of the faults of `scripts/chaos.py`, two in a run."""

import pytest

from tests.lab.chaos import Case, fate_of, undisturbed_curve
from tests.lab.requirement import missing

pytestmark = pytest.mark.lab

QUICK = (0.9, 0.7, 0.7, 0.7)  # cores; most of a case's time is a start of TensorFlow
CASES = (
    Case(("node crashed", "driver killed"), 140, "direct", "3", 0.3, epochs=3, cpus=QUICK),
    Case(("worker frozen", "node preempted"), 100, "allreduce", "2", 0.3, epochs=9, cpus=QUICK),
)


@pytest.fixture(scope="module")
def curve() -> dict[int, float]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    return undisturbed_curve(max(CASES, key=lambda case: case.epochs))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " and ".join(case.kinds))
def test_a_disturbed_run_ends_as_an_undisturbed_one(case: Case, curve: dict[int, float]) -> None:
    fate = fate_of(case, curve, seed=1)
    assert fate.is_well, fate
