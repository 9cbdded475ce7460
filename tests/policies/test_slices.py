import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.slices import Line, equal_rows, even_rows

lines = st.builds(Line, st.floats(0.0, 0.5), st.floats(1e-5, 0.1), st.integers(1, 4))


def test_equal_workers_get_equal_slices():
    assert equal_rows(3, 256) == 86
    assert even_rows([Line(0.01, 0.001, 3)], 256) == (86,)


def test_a_worker_twice_as_fast_gets_twice_the_rows():
    assert even_rows([Line(0.0, 0.001, 1), Line(0.0, 0.002, 2)], 240) == (120, 60)


def test_a_worker_with_a_long_constant_part_gets_the_least():
    assert even_rows([Line(0.01, 0.001, 1), Line(9.0, 0.001, 1)], 100) == (100, 1)


def test_workers_whose_time_does_not_depend_on_rows_share_equally():
    assert even_rows([Line(0.01, 0.0, 1), Line(0.02, 0.0, 2)], 90) == (30, 30)


@given(st.lists(lines, min_size=1, max_size=5), st.integers(20, 5000))
def test_even_slices_hold_the_batch_and_end_together(workers, batch):
    rows = even_rows(workers, batch)
    held = sum(b * line.n_workers for b, line in zip(rows, workers, strict=True))
    n_workers = sum(line.n_workers for line in workers)
    assert batch <= held <= batch + 2 * n_workers
    ends = [line.step_s(b) for b, line in zip(rows, workers, strict=True) if b > 1]
    within_s = 2 * max(line.c1_s for line in workers)
    assert max(ends, default=0.0) - min(ends, default=0.0) <= within_s


@given(st.lists(lines, min_size=1, max_size=5), st.integers(20, 5000))
def test_even_slices_are_never_slower_than_equal_ones_but_for_whole_rows(workers, batch):
    even = even_rows(workers, batch)
    equal = equal_rows(sum(line.n_workers for line in workers), batch)
    even_s = max(line.step_s(b) for line, b in zip(workers, even, strict=True))
    row_s = max(line.c1_s for line in workers)
    assert even_s <= max(line.step_s(equal) for line in workers) + row_s


def test_the_slowest_end_is_what_the_equation_says():
    fast, slow = Line(0.002, 0.001, 1), Line(0.010, 0.004, 2)
    rows = even_rows([fast, slow], 600)
    step_s = (600 + 0.002 / 0.001 + 2 * 0.010 / 0.004) / (1 / 0.001 + 2 / 0.004)
    assert rows == (
        math.ceil((step_s - 0.002) / 0.001 - 1e-6),
        math.ceil((step_s - 0.010) / 0.004 - 1e-6),
    )
    assert fast.step_s(rows[0]) == pytest.approx(step_s, abs=0.001)
