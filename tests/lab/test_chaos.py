"""A few of the faults of `scripts/chaos.py`, two in a run."""

import pytest

from tests.lab.chaos import Case, fate_of, undisturbed_curve
from tests.lab.requirement import missing

pytestmark = pytest.mark.lab

CASES = (
    Case(("node crashed", "driver killed"), 100, "direct", "3", budget_usd=0.3, epochs=6),
    Case(("worker frozen", "node preempted"), 100, "allreduce", "2", budget_usd=0.3, epochs=6),
)


@pytest.fixture(scope="module")
def curve() -> dict[int, float]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    return undisturbed_curve(CASES[0])


@pytest.mark.parametrize("case", CASES, ids=lambda case: " and ".join(case.kinds))
def test_a_disturbed_run_ends_as_an_undisturbed_one(case: Case, curve: dict[int, float]) -> None:
    fate = fate_of(case, curve, seed=1)
    assert fate.is_well, fate
