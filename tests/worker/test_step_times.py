import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.worker.step_times import typical_step_s


def test_steps_that_wait_for_a_quota_count() -> None:
    assert typical_step_s([0.010, 0.010, 0.010, 0.030]) == pytest.approx(0.015)


def test_one_trace_among_many_steps_is_no_step() -> None:
    assert typical_step_s([0.010] * 49 + [3.0]) == pytest.approx(0.010)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_it_lies_between_the_fastest_and_the_slowest(times_s: list[float]) -> None:
    assert min(times_s) * (1 - 1e-9) <= typical_step_s(times_s) <= max(times_s) * (1 + 1e-9)


def test_no_steps_have_no_time() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        typical_step_s([])
