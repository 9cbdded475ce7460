"""What a watcher may do with a call of `fit`."""

from types import SimpleNamespace
from typing import Any

from launcher.worker.fits import FitCall


class Callback:
    """Knows its model and its parameters, as Keras's does."""

    model: Any = None
    params: Any = None

    def set_model(self, model: Any) -> None:
        self.model = model

    def set_params(self, params: Any) -> None:
        self.params = params


class CallbackList:
    """As in Keras 3: without `append`."""

    def __init__(self, *callbacks: Any, **params: Any) -> None:
        self.callbacks, self.params = list(callbacks), params


def a_call(given: Any) -> FitCall:
    framework = SimpleNamespace(callbacks=SimpleNamespace(CallbackList=CallbackList))
    return FitCall(framework, "model", {"callbacks": given})


def test_a_callback_comes_behind_the_scripts_own() -> None:
    for given in (None, [], "own", ["own"], [["own"]]):
        call = a_call(given)
        call.add_callback("ours")
        assert call.callbacks[-1] == "ours"
        assert call.arguments["callbacks"] == call.callbacks


def test_a_callback_joins_a_list_that_the_script_made_itself() -> None:
    given, ours = CallbackList("own", epochs=3), Callback()
    call = a_call(given)
    call.add_callback(ours)
    assert call.arguments["callbacks"] is given
    assert given.callbacks == ["own", ours]
    assert (ours.model, ours.params) == ("model", {"epochs": 3})
