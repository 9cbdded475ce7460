from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.worker.pace import LEAST_S, MAX_LOSS_S, SHARE, SHARE_IN_FLIGHT, Pace
from tests.fakes import FakeClock


def trained(pace: Pace, clock: FakeClock, n_steps: int, step_s: float = 0.1) -> None:
    for _ in range(n_steps):
        clock.sleep(step_s)
        pace.stepped(step_s)


def test_in_mid_epoch_one_is_due_after_its_time_and_asked_for_once() -> None:
    clock = FakeClock()
    pace = Pace(3.0, clock)
    clock.sleep(2.9)
    assert not pace.is_due_in_epoch()
    clock.sleep(0.2)
    assert pace.is_due_in_epoch()
    assert not pace.is_due_in_epoch()


def test_what_is_cheap_is_due_often_but_not_all_the_time() -> None:
    clock = FakeClock()
    pace = Pace(None, clock)
    pace.took_off(0.001)
    pace.landed()
    clock.sleep(LEAST_S - 0.1)
    assert not pace.is_due_in_epoch()
    clock.sleep(0.2)
    assert pace.is_due_in_epoch()


def test_a_pause_costs_two_percent_at_most() -> None:
    clock = FakeClock()
    pace = Pace(None, clock)
    pace.took_off(1.0)
    pace.landed()
    clock.sleep(1.0 / SHARE - 0.1)
    assert not pace.is_due_in_epoch()
    clock.sleep(0.2)
    assert pace.is_due_in_epoch()


def test_steps_that_a_checkpoint_slows_down_count_as_its_cost() -> None:
    clock = FakeClock()
    pace = Pace(None, clock)
    trained(pace, clock, 20, 0.1)
    pace.took_off(0.05)
    trained(pace, clock, 10, 0.3)
    pace.landed()
    trained(pace, clock, 20, 0.1)
    assert abs(pace.cost_s - (0.05 + 10 * 0.2)) < 1e-9


def test_a_flight_that_slows_nothing_down_still_leaves_the_network_free_mostly() -> None:
    clock = FakeClock()
    pace = Pace(None, clock)
    trained(pace, clock, 20)
    pace.took_off(0.0)
    trained(pace, clock, 200)
    assert not pace.is_due_in_epoch()  # never two in flight
    pace.landed()
    assert pace.cost_s < 1e-9
    clock.sleep(20.0 / SHARE_IN_FLIGHT - 20.1)
    assert not pace.is_due_in_epoch()
    clock.sleep(0.2)
    assert pace.is_due_in_epoch()


def test_the_time_that_a_user_gives_holds_whatever_it_costs() -> None:
    clock = FakeClock()
    pace = Pace(2.0, clock)
    pace.took_off(1.0)
    pace.landed()
    clock.sleep(2.1)
    assert pace.is_due_in_epoch()


def test_the_first_epoch_brings_one_and_an_end_right_after_does_not() -> None:
    clock = FakeClock()
    pace = Pace(None, clock)
    assert pace.is_due_between()
    pace.took_off(0.1)
    pace.landed()
    clock.sleep(0.5)
    assert not pace.is_due_between()


def test_long_epochs_are_kept_whatever_that_costs() -> None:
    clock = FakeClock()
    pace = Pace(None, clock)
    pace.took_off(30.0)
    pace.landed()
    clock.sleep(MAX_LOSS_S - 1)
    assert not pace.is_due_between()
    clock.sleep(2)
    assert pace.is_due_between()


@settings(max_examples=20)
@given(st.floats(0, 5), st.floats(0, 0.5), st.floats(0.1, 60))
def test_in_the_long_run_two_percent_are_kept(
    pause_s: float, slower: float, flight_s: float
) -> None:
    """Of whatever cost, apart from the first one and one that is under way."""
    clock, spent_s, step_s = FakeClock(), 0.0, 0.5
    pace, lands_at_s, n_taken = Pace(None, clock), None, 0
    while clock.now_s < 8000:
        is_slow = lands_at_s is not None
        took_s = step_s * (1 + slower if is_slow else 1)
        clock.sleep(took_s)
        spent_s += took_s - step_s
        pace.stepped(took_s)
        if lands_at_s is not None and clock.now_s >= lands_at_s:
            pace.landed()
            lands_at_s = None
        if pace.is_due_in_epoch():
            clock.sleep(pause_s)
            spent_s += pause_s
            pace.took_off(pause_s)
            lands_at_s, n_taken = clock.now_s + flight_s, n_taken + 1
    one_s = pause_s + slower * (flight_s + step_s)
    assert spent_s <= SHARE * clock.now_s + 2 * one_s
    assert n_taken >= 3
