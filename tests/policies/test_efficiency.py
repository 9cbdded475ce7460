"""How many more steps the same accuracy takes, from curves of past runs."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.efficiency import (
    ASSUMED,
    PRIOR_MEAN,
    learn_efficiency,
    steps_ratio,
    steps_to,
)
from policies.schema import CurvePoint, Experience
from tests.policies.cases import CNN, experience, lab

CASE = lab()


def curve(pace: float, losses: Sequence[float] = (1.0, 0.5, 0.25), metric: str = "loss"):  # type: ignore[no-untyped-def]
    return tuple(CurvePoint(round(pace * n), metric, loss) for n, loss in enumerate(losses, 1))


def run(strategy: str, pace: float, script: str = "script-a", name: str = "run") -> Experience:
    made = experience(CASE, "ab", 0.1, name, workload=replace(CNN, fingerprint=script))
    plan = replace(made.plan, strategy=strategy)  # type: ignore[arg-type]
    return replace(made, plan=plan, curve=curve(pace))


def test_a_loss_between_two_points_is_reached_between_their_steps() -> None:
    assert steps_to(curve(100), 0.75) == pytest.approx(150)
    assert steps_to(curve(100), 0.25) == pytest.approx(300)
    assert steps_to(curve(100), 0.1) is None
    assert steps_to(curve(100), 2.0) is None  # the steps before the first point were not seen


def test_curves_are_compared_at_the_lowest_loss_that_both_reach() -> None:
    assert steps_ratio(curve(150), curve(100)) == pytest.approx(1.5)
    assert steps_ratio(curve(150), curve(100, (1.0, 0.5))) == pytest.approx(1.5)
    assert steps_ratio(curve(150), curve(100, metric="val_loss")) is None
    assert steps_ratio(curve(150)[:1], curve(100)) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_losses_of_steps_that_diverged_tell_nothing(loss: float) -> None:
    diverged = curve(150, (loss, 1.0, 0.5, loss))
    assert steps_ratio(diverged, curve(100)) == pytest.approx(450 / 200)
    assert steps_ratio(curve(150, (loss, loss, 1.0)), curve(100)) is None


def test_without_runs_to_compare_it_is_assumed() -> None:
    assert learn_efficiency([], "script-a") == ASSUMED
    assert learn_efficiency([run("decentralized", 150)], "script-a") == ASSUMED
    assert learn_efficiency([run("direct", 150)], "script-a") == ASSUMED


def test_runs_of_the_script_are_measured_and_those_of_others_count_less() -> None:
    pair = [run("direct", 100), run("decentralized", 400)]
    own, other = learn_efficiency(pair, "script-a"), learn_efficiency(pair, "script-b")
    assert (own.basis, other.basis) == ("measured", "predicted")
    assert PRIOR_MEAN < other.mu < own.mu < math.log(4.0)
    assert own.sigma < other.sigma < ASSUMED.sigma


@given(st.floats(0.5, 4.0), st.integers(1, 20))
def test_many_runs_are_believed(ratio: float, n: int) -> None:
    past = [run("allreduce", 1000), *(run("decentralized", 1000 * ratio) for _ in range(n))]
    found = learn_efficiency(past, "script-a")
    nearest, farthest = sorted((math.log(ratio), PRIOR_MEAN))
    assert nearest - 1e-3 <= found.mu <= farthest + 1e-3
    if n >= 20:
        assert abs(found.mu - math.log(ratio)) < 0.05
