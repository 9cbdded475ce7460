import importlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.errors import RecordError
from launcher.worker import snapshot, state


class Callback:
    """What Keras's callbacks have of their own."""

    def __init__(self, **attributes: Any) -> None:
        self.params, self.model = {"epochs": 3}, object()
        vars(self).update(attributes)


class Patience(Callback):
    pass


class Recorder(Callback):
    pass


class CSVLogger(Callback):
    pass


# ---- callbacks


def test_plain_attributes_of_callbacks_come_back() -> None:
    kept = Patience(wait=2, best=0.5, best_weights=[np.ones(2)], monitor_op=np.less, word=None)
    (found,) = state.callback_states([kept])
    assert found["class"] == "Patience"
    assert set(found["attributes"]) == {"wait", "best", "best_weights", "word"}
    restored = Patience(wait=0, best=np.inf, best_weights=None, monitor_op=np.less, word="x")
    state.load_callback_states([restored], [found])
    assert (restored.wait, restored.best, restored.word) == (2, 0.5, None)
    assert restored.best_weights[0].tolist() == [1, 1]
    assert restored.monitor_op is np.less


def test_what_belongs_to_the_process_is_not_kept() -> None:
    (found,) = state.callback_states([Patience(validation_data=[1])])
    assert found["attributes"] == {}


def test_lists_and_dicts_that_the_script_holds_are_filled_in_place() -> None:
    losses: list[float] = []
    history: dict[str, list[float]] = {"old": [0.0]}
    states = state.callback_states([Recorder(losses=[1.0, 2.0], history={"loss": [1.0]})])
    state.load_callback_states([Recorder(losses=losses, history=history)], states)
    assert losses == [1.0, 2.0]
    assert history == {"loss": [1.0]}


def test_a_callback_that_finds_its_own_way_is_left_alone() -> None:
    logger = CSVLogger(append=True)
    before = [CSVLogger(append=False), Patience(wait=1)]
    patience = Patience(wait=0)
    state.load_callback_states([logger, patience], state.callback_states(before))
    assert logger.append
    assert patience.wait == 1


def test_other_callbacks_than_before_are_left_as_they_are() -> None:
    states = state.callback_states([Patience(wait=1), Patience(wait=2)])
    first, second = Patience(wait=0), Recorder(wait=0)
    state.load_callback_states([first, second, Patience(wait=0)], states)
    assert (first.wait, second.wait) == (1, 0)


def test_what_a_snapshot_cannot_hold_is_never_in_a_state() -> None:
    odd = Recorder(lock=object(), numbers={1: 2}, group={1, 2}, deep={"a": [object()]}, fine=1)
    (found,) = state.callback_states([odd])
    assert found["attributes"] == {"fine": 1}
    assert snapshot.load(snapshot.dump({"states": [found]}))["states"] == [found]


def test_what_is_kept_does_not_change_when_training_goes_on() -> None:
    callback = Recorder(losses=[1.0], best={"loss": [2.0]}, sums=np.zeros(2))
    (found,) = state.callback_states([callback])
    callback.losses.append(3.0)
    callback.best["loss"].append(4.0)
    callback.sums += 1
    assert found["attributes"]["losses"] == [1.0]
    assert found["attributes"]["best"] == {"loss": [2.0]}
    assert found["attributes"]["sums"].tolist() == [0, 0]


def test_large_data_that_a_callback_was_given_are_kept_only_where_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "LARGE_BYTES", 80)
    x, y = np.zeros((5, 2)), np.zeros((1, 0))
    kept = Recorder(seen=(x, y, "word"), sums=np.zeros(10), best=[np.ones(3)], word="x")
    given = state.given_data([kept])
    assert {name for _, name in given} == {"seen", "sums"}
    kept.sums += 1
    kept.best[0] = np.ones(30)
    (found,) = state.callback_states([kept], given)
    assert found["attributes"].keys() == {"sums", "best", "word"}
    kept.seen = (x, y, "other")
    (found,) = state.callback_states([kept], given)
    assert found["attributes"].keys() == {"seen", "sums", "best", "word"}
    (found,) = state.callback_states([Recorder(seen=(x, y, "word"))])
    assert found["attributes"].keys() == {"seen"}


def test_paths_of_this_process_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path / "best.keras")
    kept = Recorder(filepath=here, others=[{"x": here}], relative="best.keras", data="/data/x.csv")
    (found,) = state.callback_states([kept])
    assert found["attributes"] == {"relative": "best.keras", "data": "/data/x.csv"}


# ---- random generators


def test_global_random_generators_go_on_where_they_were() -> None:
    kept = state.random_state()
    assert state.is_random_state(kept)
    before = random.random(), np.random.normal(), np.random.normal()
    assert not state.is_random_state(kept)
    state.load_random_state(kept)
    assert state.is_random_state(snapshot.load(snapshot.dump(kept)))
    assert (random.random(), np.random.normal(), np.random.normal()) == before


# ---- models

FRAMEWORKS = ("keras", "tf_keras")
pytestmark = pytest.mark.filterwarnings("ignore")  # of TensorFlow's own import


def a_model(framework: str, units: int = 4, optimizer: Any = None, seed: int = 1) -> Any:
    keras = importlib.import_module(framework)
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(units),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse")
    return model


def train(model: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 3)).astype("float32"), rng.normal(size=(16, 1)).astype("float32")
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)


@pytest.mark.tensorflow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_trains_on_as_if_it_had_never_been_rebuilt(framework: str) -> None:
    model = a_model(framework)
    train(model)
    kept = snapshot.load(snapshot.dump(state.model_state(model)))
    train(model)
    again = a_model(framework, seed=2)
    state.load_model_state(again, kept)
    train(again)
    pairs = zip(model.get_weights(), again.get_weights(), strict=True)
    assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.tensorflow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_learning_rate_is_kept_unless_a_schedule_decides(framework: str) -> None:
    keras = importlib.import_module(framework)
    model = a_model(framework)
    model.optimizer.learning_rate = 0.125
    again = a_model(framework)
    state.load_model_state(again, state.model_state(model))
    assert float(np.asarray(again.optimizer.learning_rate)) == 0.125
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.9)
    scheduled = a_model(framework, optimizer=keras.optimizers.Adam(rate))
    train(scheduled)
    again = a_model(framework, optimizer=keras.optimizers.Adam(rate))
    state.load_model_state(again, state.model_state(scheduled))
    assert int(np.asarray(again.optimizer.iterations)) == 4


@pytest.mark.tensorflow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_model_or_optimizer_than_before_is_told(framework: str) -> None:
    keras = importlib.import_module(framework)
    trained = a_model(framework)
    train(trained)
    kept = state.model_state(trained)
    with pytest.raises(RecordError, match="the script has changed"):
        state.load_model_state(a_model(framework, units=5), kept)
    with pytest.raises(RecordError, match="optimizer variables"):
        optimizer = keras.optimizers.SGD(0.01)
        state.load_model_state(a_model(framework, optimizer=optimizer), kept)


@pytest.mark.tensorflow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_that_was_not_compiled_has_weights_only(framework: str) -> None:
    keras = importlib.import_module(framework)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    kept = state.model_state(model)
    assert (kept["optimizer"], kept["learning_rate"]) == ([], None)
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    state.load_model_state(model, kept)
    assert np.array_equal(model.get_weights()[0], kept["model"][0])
