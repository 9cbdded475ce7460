"""A few of the faults of `scripts/chaos.py`, each in a run of half a minute."""

import numpy as np
import pytest

from tests.lab.chaos import Case, fate_of, undisturbed_curve
from tests.lab.requirement import missing

pytestmark = pytest.mark.lab

SHORT = {"epochs": 6, "steps_per_epoch": 30}
CASES = (
    Case(("node crashed",), 40, "direct", "3", budget_usd=0.3, **SHORT),
    Case(("worker frozen",), 50, "allreduce", "2", budget_usd=0.3, **SHORT),
    Case(("driver killed",), 60, "direct", "2", budget_usd=0.3, **SHORT),
    Case(("node preempted",), 40, "direct", "3", budget_usd=0.3, **SHORT),
)


@pytest.fixture(scope="module")
def curve() -> dict[int, float]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    return undisturbed_curve(Case((), 0, "direct", "2", budget_usd=0.3, **SHORT))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " + ".join(case.kinds))
def test_a_disturbed_run_ends_as_an_undisturbed_one(case: Case, curve: dict[int, float]) -> None:
    fate = fate_of(case, curve, seed=int(np.sum(np.frombuffer(case.kinds[0].encode(), np.uint8))))
    assert fate.is_well, fate
