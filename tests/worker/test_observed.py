from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.worker.activity import ActivityFile, Phase
from launcher.worker.fits import FitCall
from launcher.worker.observed import Observed, observe_evaluation


@pytest.fixture
def activity(tmp_path: Path) -> Iterator[ActivityFile]:
    made = ActivityFile(tmp_path / "watch" / "0", tmp_path)
    yield made
    made.close()


class Watcher:
    """Trains: two steps."""

    def run_fit(self, call: FitCall, train: Callable[[], Any]) -> Any:
        return train()

    def run_step(self, model: Any, execute: Callable[[], Any]) -> Any:
        return execute()


def test_the_first_step_of_a_fit_compiles_and_what_lies_between_steps_is_the_scripts(
    activity: ActivityFile,
) -> None:
    observed, phases = Observed(Watcher(), activity), []

    def train() -> None:
        for _ in range(2):
            phases.append(activity.phase)
            observed.run_step(None, lambda: phases.append(activity.phase))
        phases.append(activity.phase)

    activity.enter(Phase.SCRIPT)
    call = FitCall(None, None, {})
    observed.run_fit(call, train)
    assert phases == [
        Phase.BETWEEN,
        Phase.COMPILING,
        Phase.BETWEEN,
        Phase.STEP,
        Phase.BETWEEN,
    ]
    assert activity.phase == Phase.SCRIPT
    phases.clear()
    observed.run_fit(call, train)
    assert Phase.COMPILING in phases


def test_a_step_that_raises_is_over(activity: ActivityFile) -> None:
    def fail() -> None:
        raise ValueError("no more data")

    with pytest.raises(ValueError, match="no more data"):
        Observed(Watcher(), activity).run_step(None, fail)
    assert activity.phase == Phase.STARTING


class Keras3Model:
    """Makes its functions as Keras 3 does: kept in an attribute, not returned."""

    test_function: Any = None
    predict_function: Any = None

    def __init__(self, seen: list[Phase], activity: ActivityFile) -> None:
        self._seen, self._activity = seen, activity

    def make_test_function(self, force: bool = False) -> None:
        if self.test_function is None or force:
            self.test_function = lambda _: self._seen.append(self._activity.phase)

    def make_predict_function(self, force: bool = False) -> Any:
        if self.predict_function is None or force:
            self.predict_function = lambda _: self._seen.append(self._activity.phase)
        return self.predict_function


def test_every_batch_of_an_evaluation_or_prediction_is_noted(activity: ActivityFile) -> None:
    class Framework:
        class Model(Keras3Model):
            pass

    observe_evaluation(Framework, activity)
    seen: list[Phase] = []
    model = Framework.Model(seen, activity)
    for _ in range(2):
        assert model.make_test_function() is None
        model.test_function(iter(()))
        made = model.make_predict_function()
        assert made is model.predict_function
        made(iter(()))
    assert seen == [Phase.EVALUATING] * 4
    assert activity.phase == Phase.STARTING
