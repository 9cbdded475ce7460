import math
import signal
import threading

import pytest
from pytest import approx

from launcher.errors import ScriptFailedError, TrainingFailedError
from launcher.interrupts import Interrupts
from launcher.standing import Standing
from launcher.supervise import (
    ABORT_S,
    FORCE_S,
    STOP_S,
    Allowance,
    Lost,
    Move,
)
from tests.fake_stage import DONE, Stage
from tests.fakes import (
    FakeClock,
    a_decision,
    an_epoch,
    an_event,
)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# ---- limits


def test_the_budget_asks_once_to_stop_in_time_for_a_checkpoint(stage: Stage) -> None:
    ended = stage.run(allowance=Allowance(100.0, None))
    assert (ended.end, ended.error) == ("budget", None)
    (asked_s,) = stage.training.stopped_at_s
    assert asked_s == approx(100.0 - STOP_S, abs=0.3)
    assert stage.meter.spent_usd < 100.0
    assert any("budget" in text for text in stage.view.stages)


def test_the_deadline_asks_once_to_stop_in_time_for_a_checkpoint(stage: Stage) -> None:
    ended = stage.run(allowance=Allowance(None, 50.0))
    assert ended.end == "deadline"
    (asked_s,) = stage.training.stopped_at_s
    assert asked_s == approx(50.0 - STOP_S, abs=0.3)


def test_the_nearer_limit_gives_the_end_its_name() -> None:
    assert Stage().run(allowance=Allowance(30.0, 60.0)).end == "budget"
    assert Stage().run(allowance=Allowance(60.0, 30.0)).end == "deadline"


def test_slow_steps_checkpoints_and_evaluations_make_the_reserve_larger(stage: Stage) -> None:
    position = {"fit": 0, "epoch": 1, "step": 0}
    stage.run(
        (1.0, an_event("steps", durations_s=[2.0], total_steps=1)),
        (2.0, an_event("checkpoint", position=position, path="c", bytes=1, took_s=3.0)),
        (3.0, an_epoch(1, 0.5, evaluation_s=4.0)),
        allowance=Allowance(100.0, None),
    )
    (asked_s,) = stage.training.stopped_at_s
    assert asked_s == approx(100.0 - (STOP_S + 2 * 2.0 + 2 * 3.0 + 4.0), abs=0.3)


def test_the_predicted_step_counts_until_one_is_measured(stage: Stage) -> None:
    stage.run(allowance=Allowance(100.0, None), expected_step_s=10.0)
    (asked_s,) = stage.training.stopped_at_s
    assert asked_s == approx(100.0 - (STOP_S + 20.0), abs=0.3)


def test_workers_that_do_not_react_are_left_before_the_limit(stage: Stage) -> None:
    ended = stage.run(allowance=Allowance(20.0, None), stops_in_s=None)
    assert ended.end == "budget"
    assert len(stage.training.stopped_at_s) == 1
    assert stage.clock.now_s == approx(20.0 - FORCE_S, abs=0.3)
    assert stage.meter.spent_usd < 20.0


def test_a_script_that_ends_while_it_is_asked_to_stop_is_done(stage: Stage) -> None:
    ended = stage.run((14.5, DONE), allowance=Allowance(20.0, None))
    assert ended.end == "done"
    assert ended.script_ended


def test_workers_that_are_left_behind_by_force_are_ended(stage: Stage) -> None:
    stage.run(allowance=Allowance(20.0, None), stops_in_s=None)
    assert stage.training.aborted_at_s == [stage.clock.now_s]


# ---- losses and moves


class FakeLookout:
    """Finds something at a time on the clock."""

    def __init__(self, clock: FakeClock, at_s: float, found: Lost | Move) -> None:
        self._clock, self._at_s, self._found = clock, at_s, found

    def look(self, standing: Standing) -> Lost | Move | None:
        return self._found if self._clock.now_s >= self._at_s else None


LOST = Lost("Lost 10.0.0.5: no sign of life for 4 s.", ("3f7a",))


def test_a_loss_ends_the_workers_at_once(stage: Stage) -> None:
    ended = stage.run(lookout=FakeLookout(stage.clock, 10.0, LOST))
    assert stage.training.aborted_at_s == [approx(10.0, abs=0.3)]
    assert ended.end == "failed"
    assert isinstance(ended.error, TrainingFailedError)
    assert str(ended.error) == LOST.text
    assert ended.lost == LOST
    assert stage.segment.end == "failed"


def test_a_loss_that_a_worker_reports_ends_the_others_at_once(stage: Stage) -> None:
    lost = an_event("error", rank=0, kind="lost", text="Lost rank 2.", peer=2, is_cut=True)
    ended = stage.run((10.0, lost))
    assert stage.training.aborted_at_s == [approx(10.0, abs=0.3)]
    assert (str(ended.error), ended.peer, ended.is_cut) == ("Lost rank 2.", 2, True)


def test_workers_that_do_not_even_end_by_force_are_not_waited_for(stage: Stage) -> None:
    def deaf() -> None:
        stage.training.abort = lambda: None  # type: ignore[method-assign]

    stage.run((1.0, deaf), lookout=FakeLookout(stage.clock, 10.0, LOST))
    assert stage.clock.now_s == approx(10.0 + ABORT_S, abs=0.5)


def test_an_error_of_the_script_is_not_taken_for_the_loss_that_follows_it(stage: Stage) -> None:
    wrong = an_event("error", rank=1, kind="script", text="ValueError: first")
    ended = stage.run((9.9, wrong), lookout=FakeLookout(stage.clock, 10.0, LOST), ends_at_s=11.0)
    assert isinstance(ended.error, ScriptFailedError)


def test_a_move_stops_at_a_checkpoint(stage: Stage) -> None:
    move = Move("moving to 2 workers from a checkpoint", a_decision())
    ended = stage.run(lookout=FakeLookout(stage.clock, 10.0, move))
    assert stage.training.stopped_at_s == [approx(10.0, abs=0.3)]
    assert stage.training.aborted_at_s == []
    assert (ended.end, ended.error, ended.move) == ("moved", None, move)


def test_an_interrupt_goes_before_a_move(stage: Stage) -> None:
    move = Move("moving", a_decision())
    ended = stage.run(
        (11.0, stage.interrupt),
        lookout=FakeLookout(stage.clock, 10.0, move),
        stops_in_s=3.0,
    )
    assert (ended.end, ended.move) == ("interrupted", None)


def test_the_budget_goes_before_a_move(stage: Stage) -> None:
    move = Move("moving", a_decision())
    ended = stage.run(
        lookout=FakeLookout(stage.clock, 94.0, move),
        allowance=Allowance(100.0, None),
        stops_in_s=3.0,
    )
    assert (ended.end, ended.move) == ("budget", None)


def test_a_script_that_ends_while_it_is_asked_to_move_is_done(stage: Stage) -> None:
    move = Move("moving", a_decision())
    ended = stage.run((10.5, DONE), lookout=FakeLookout(stage.clock, 10.0, move))
    assert (ended.end, ended.move) == ("done", None)


def test_workers_are_left_alone_no_longer_than_the_limits_allow(stage: Stage) -> None:
    stage.run((50.0, stage.interrupt), allowance=Allowance(None, 100.0))
    first, *_, last = stage.training.alone_s
    assert first - last == approx(51.0, abs=1.0)
    assert 80 < first < 100  # the reserve for stopping is not spare


def test_without_a_limit_workers_may_be_left_alone(stage: Stage) -> None:
    stage.run((5.0, stage.interrupt), allowance=Allowance(None, None))
    assert set(stage.training.alone_s) == {math.inf}


# ---- interrupts


def test_one_interrupt_stops_at_a_checkpoint(stage: Stage) -> None:
    ended = stage.run((10.0, stage.interrupt))
    assert (ended.end, ended.error) == ("interrupted", None)
    assert stage.training.stopped_at_s == [approx(10.0, abs=0.3)]
    assert any("once more" in text for text in stage.view.stages)


def test_a_second_interrupt_ends_at_once(stage: Stage) -> None:
    ended = stage.run((10.0, stage.interrupt), (12.0, stage.interrupt), stops_in_s=None)
    assert ended.end == "interrupted"
    assert len(stage.training.stopped_at_s) == 1
    assert stage.clock.now_s == approx(12.0, abs=0.3)


def test_an_interrupt_while_the_budget_stops_the_run_asks_no_second_time(stage: Stage) -> None:
    ended = stage.run((96.0, stage.interrupt), allowance=Allowance(100.0, None), stops_in_s=2.0)
    assert ended.end == "budget"
    assert len(stage.training.stopped_at_s) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_counted_while_training_and_raised_otherwise(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    interrupts = Interrupts()
    with interrupts.handled():
        with interrupts.counted():
            signal.raise_signal(number)  # to this thread: whoever else is there has no part in it
            assert interrupts.count == 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_signals_are_left_alone_outside_of_the_main_thread() -> None:
    found: list[object] = []

    def look() -> None:
        with Interrupts().handled():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_a_machine_that_seldom_comes_to_look_is_stopped_earlier(stage: Stage) -> None:
    class Tardy:
        def look(self, _: object) -> None:
            stage.clock.sleep(2.8)

    ended = stage.run(allowance=Allowance(60.0, None), stops_in_s=None, lookout=Tardy())
    assert ended.end == "budget"
    assert 60.0 - FORCE_S - 6.0 < stage.clock.now_s < 60.0 - FORCE_S
