from hypothesis import given
from hypothesis import strategies as st

from launcher.patience import Patience, bound_s
from launcher.worker.activity import Activity, Phase
from tests.fake_posts import an_activity

STEPS = [0.1] * 50


def is_over_after(
    seconds: float, *workers: Activity, step_times: list[float] | None = None
) -> bool:
    patience = Patience()
    times = STEPS if step_times is None else step_times
    patience.note(workers, 0.0)
    assert not patience.is_over(workers, times, 0.0)
    return patience.is_over(workers, times, seconds)


def test_a_step_may_take_a_minute() -> None:
    assert not is_over_after(59.0, an_activity(0), an_activity(1))
    assert is_over_after(61.0, an_activity(0), an_activity(1))


def test_where_steps_are_long_twenty_of_them_may_pass() -> None:
    assert not is_over_after(190.0, an_activity(), step_times=[10.0, 9.0, 11.0])
    assert is_over_after(210.0, an_activity(), step_times=[10.0, 9.0, 11.0])


def test_a_rank_in_a_callback_is_waited_for_by_the_others() -> None:
    workers = an_activity(0), an_activity(1, Phase.BETWEEN)
    assert not is_over_after(1000.0, *workers)
    assert is_over_after(2000.0, *workers)


def test_the_first_step_and_saving_may_take_minutes() -> None:
    assert not is_over_after(600.0, an_activity(0, Phase.COMPILING))
    assert not is_over_after(600.0, an_activity(0, Phase.SAVING))
    assert not is_over_after(200.0, an_activity(0, Phase.EVALUATING))


def test_a_script_outside_of_fit_is_never_stuck() -> None:
    assert not is_over_after(1e6, an_activity(0, Phase.SCRIPT), an_activity(1))


def test_nothing_is_known_of_workers_that_were_not_heard() -> None:
    assert not is_over_after(1e6)


def test_progress_of_any_rank_is_progress() -> None:
    patience = Patience()
    for second in range(0, 600, 10):
        workers = an_activity(0), an_activity(1, ticks=second)
        patience.note(workers, float(second))
        assert not patience.is_over(workers, STEPS, float(second))
    assert patience.is_over(workers, STEPS, 700.0)


@given(st.sampled_from(Phase), st.lists(st.floats(1e-4, 1e3), max_size=30))
def test_no_phase_is_stuck_sooner_than_a_step(phase: Phase, step_times: list[float]) -> None:
    assert bound_s(phase, step_times) >= bound_s(Phase.STEP, step_times) >= 60.0
