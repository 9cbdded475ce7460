"""Orders reach training whenever they are given: in a fit, between two, while one is obeyed."""

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from launcher.worker import files
from launcher.worker.channel import Channel
from launcher.worker.checkpoints import Checkpoints
from launcher.worker.fits import FitCall
from launcher.worker.job import ORDER_CHECKPOINT, ORDER_NONE, ORDER_STOP
from launcher.worker.kept_state import KeptState
from launcher.worker.script import Stopped
from launcher.worker.session import Session
from tests.fakes import FakeKeeper, soon


class FakeParallel(KeptState):
    """An engine of one worker: what is requested is agreed at the next step."""

    def __init__(self) -> None:
        self.requested = ORDER_NONE

    def request(self, code: int) -> None:
        self.requested = code

    def agreed(self) -> int:
        return self.requested

    def reset(self) -> None:
        self.requested = ORDER_NONE

    def check_data(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def data_hash(self) -> int:
        return 0

    def metric_state(self, model: Any) -> list[Any]:
        return []


class FakeCallback:
    params: ClassVar[dict[str, Any]] = {}


class Model(SimpleNamespace):
    """What a session asks of a model that Keras trains."""

    def __init__(self) -> None:
        super().__init__(variables=[], optimizer=None, history=FakeCallback())


class Desk:
    """A session with fakes around it, and a model that Keras would train."""

    def __init__(self, folder: Path, every_s: float = 3600.0) -> None:
        self.keeper, self.parallel = FakeKeeper(), FakeParallel()
        channel = Channel(self.keeper, lambda answer: answer)
        checkpoints = Checkpoints(channel, folder, files.listing(folder), every_s)
        self.session = Session(self.parallel, channel, checkpoints, rank=0, resume=None)
        self.model = Model()
        self.close = channel.close

    def fit(self, n_steps: int, before_step: Any = lambda step: None) -> None:
        def train() -> None:
            for step in range(n_steps):
                before_step(step)
                self.session.run_step(self.model, dict)

        callbacks = SimpleNamespace(Callback=FakeCallback, CallbackList=Desk)
        framework = SimpleNamespace(callbacks=callbacks)
        self.session.run_fit(FitCall(framework, self.model, {}), train)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_an_order_in_a_fit_stops_before_the_next_step(desk: Desk) -> None:
    steps: list[int] = []

    def before_step(step: int) -> None:
        steps.append(step)
        if step == 2:
            desk.session.order(ORDER_STOP)

    with pytest.raises(Stopped):
        desk.fit(10, before_step)
    assert steps == [0, 1, 2, 3]
    assert len(desk.keeper.checkpoints) == 1
    desk.close()


def test_a_model_that_the_script_drops_takes_its_memory_along(desk: Desk) -> None:
    desk.fit(1)
    first = weakref.ref(desk.model)
    desk.model = Model()
    desk.fit(1)
    gc.collect()
    assert first() is None
    desk.close()


def test_an_order_between_two_fits_stops_the_next_one(desk: Desk) -> None:
    desk.fit(3)
    desk.session.order(ORDER_STOP)
    steps: list[int] = []
    with pytest.raises(Stopped):
        desk.fit(10, steps.append)
    assert steps == [0, 1]
    desk.close()


def test_an_order_while_a_checkpoint_is_taken_is_not_lost(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    def before_step(step: int) -> None:
        if step == 1:
            desk.parallel.request(ORDER_CHECKPOINT)
        if step == 2:  # the checkpoint is agreed and about to be taken
            desk.session.order(ORDER_STOP)
        if step == 3:  # or the second one, which is newer, would take its place
            assert soon(lambda: len(desk.keeper.checkpoints) == 1)

    with pytest.raises(Stopped):
        desk.fit(10, before_step)
    assert len(desk.keeper.checkpoints) == 2
    desk.close()
