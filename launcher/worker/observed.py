"""Notes in a worker's activity file what Keras is doing, around what the session does."""

from collections.abc import Callable
from typing import Any

from launcher.worker.activity import ActivityFile, Phase
from launcher.worker.fits import FitCall, Watcher
from launcher.worker.script import Ending

EVALUATING_FUNCTIONS = ("test_function", "predict_function")


class Observed:
    """A `fits.Watcher` that passes all on to another one, and notes what phase it is.

    Args:
        ending: learns of it when the script is ended in a `fit`.
    """

    def __init__(
        self, watcher: Watcher, activity: ActivityFile, ending: Ending | None = None
    ) -> None:
        self._watcher, self._activity, self._ending = watcher, activity, ending or Ending()
        self._is_first = True

    def run_fit(self, call: FitCall, train: Callable[[], Any]) -> Any:
        """Carry out a `fit`: what is neither a step nor an evaluation is the script's own."""
        self._is_first = True
        with self._ending.noted(), self._activity.during(Phase.BETWEEN):
            return self._watcher.run_fit(call, train)

    def run_step(self, model: Any, execute: Callable[[], Any]) -> Any:
        """Carry out an execution of the training function."""
        phase = Phase.COMPILING if self._is_first else Phase.STEP
        with self._activity.during(phase):
            logs = self._watcher.run_step(model, execute)
        self._is_first = False
        return logs


def observe_evaluation(framework: Any, activity: ActivityFile) -> None:
    """Note every batch that the framework's models evaluate or predict; once per process."""
    for name in EVALUATING_FUNCTIONS:
        maker = f"make_{name}"
        owner = next(cls for cls in framework.Model.__mro__ if maker in vars(cls))
        setattr(owner, maker, _observed_maker(getattr(owner, maker), name, activity))


def _observed_maker(
    make: Callable[..., Any], name: str, activity: ActivityFile
) -> Callable[..., Any]:
    def make_function(model: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(model, *args, **kwargs)
        function = getattr(model, name)
        if function is not None and not getattr(function, "is_observed", False):
            setattr(model, name, _observed(function, activity))
        return None if made is None else getattr(model, name)

    return make_function


def _observed(function: Callable[..., Any], activity: ActivityFile) -> Callable[..., Any]:
    def observed(*args: Any, **kwargs: Any) -> Any:
        with activity.during(Phase.EVALUATING):
            return function(*args, **kwargs)

    observed.is_observed = True  # type: ignore[attr-defined]
    return observed
