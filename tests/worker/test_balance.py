"""Shares that follow speed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.worker.balance import QUICK_STEPS, STEADY_STEPS, Balance, Pace

EXCHANGE_S = 0.01
N_ROWS = 128.0


class Workers:
    """Ranks whose steps take a constant part and so many seconds a row.

    What they measure of a step travels with the next, and counts for the one after it.
    """

    def __init__(self, row_s, constant_s=0.0):
        self.balance = Balance((1.0,) * len(row_s))
        self.row_s, self.constant_s = list(row_s), constant_s
        self.hiccup_s = [0.0] * len(row_s)
        self.on_their_way: list[list[Pace]] = []

    def step(self):
        """One step; its duration in seconds."""
        if len(self.on_their_way) == 2:
            self.balance.observe(self.on_their_way.pop(0))
        total = sum(self.balance.shares)
        rows = [N_ROWS * share / total for share in self.balance.shares]
        busy = [
            self.constant_s + n * s + h
            for n, s, h in zip(rows, self.row_s, self.hiccup_s, strict=True)
        ]
        step_s = max(busy) + EXCHANGE_S
        self.on_their_way.append([Pace(n, b, step_s) for n, b in zip(rows, busy, strict=True)])
        return step_s


def test_slices_follow_unequal_workers_within_a_few_steps():
    workers = Workers([1 / 200, 1 / 400, 1 / 600, 1 / 600])
    durations = [workers.step() for _ in range(QUICK_STEPS + 3)]
    assert durations[0] / durations[-1] > 2
    assert workers.balance.shares == pytest.approx([1 / 9, 2 / 9, 1 / 3, 1 / 3])


def test_slices_follow_a_worker_that_is_halved_in_mid_run_within_10_steps():
    workers = Workers([1e-3] * 4)
    for _ in range(47):
        workers.step()
    assert workers.balance.shares == (1.0,) * 4
    workers.row_s[2] *= 2
    for _ in range(10):
        workers.step()
    assert workers.balance.shares == pytest.approx([2 / 7, 2 / 7, 1 / 7, 2 / 7])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(1e-4, 1e-2), min_size=2, max_size=5),
    st.floats(0, 0.05),
)
def test_shares_settle_and_every_worker_takes_about_as_long(row_s, constant_s):
    workers = Workers(row_s, constant_s)
    for _ in range(40 * STEADY_STEPS):
        workers.step()
    settled = workers.balance.shares
    equal_s = constant_s + N_ROWS / len(row_s) * max(row_s) + EXCHANGE_S
    for _ in range(4 * STEADY_STEPS):
        assert workers.step() <= equal_s * 1.001
    assert workers.balance.shares == settled


def test_small_differences_are_left_alone():
    workers = Workers([1e-3, 1.04e-3])
    for _ in range(10 * STEADY_STEPS):
        workers.step()
    assert workers.balance.shares == (1.0, 1.0)


def test_a_lasting_difference_above_5_percent_is_followed():
    workers = Workers([1e-3, 1.2e-3])
    for _ in range(STEADY_STEPS + 2):
        workers.step()
    assert workers.balance.shares == pytest.approx([1.2 / 2.2, 1 / 2.2])


def test_one_hiccup_changes_nothing():
    workers = Workers([1e-3, 1e-3])
    for step in range(3 * STEADY_STEPS):
        workers.hiccup_s[1] = 0.3 if step % STEADY_STEPS == 7 else 0.0
        workers.step()
        assert workers.balance.shares == (1.0, 1.0)


def test_a_step_that_a_rank_did_not_measure_is_left_out():
    balance = Balance((1.0, 1.0))
    for _ in range(STEADY_STEPS):
        balance.observe([Pace(64, 0.1, 0.2), Pace(0, 0, 0)])
    assert balance.shares == (1.0, 1.0)


@given(st.lists(st.floats(1e-4, 1e-2), min_size=2, max_size=5), st.integers(0, 100))
def test_all_ranks_decide_alike(row_s, n_steps):
    first, second = Workers(row_s), Workers(row_s)
    for _ in range(n_steps):
        assert first.step() == second.step()
    assert first.balance.shares == second.balance.shares


@pytest.mark.parametrize("period", [1, 3, 5, 6, 8, 10, 15, 20, 40, 80])
def test_speeds_that_change_all_the_time_do_little_harm(period):
    workers = Workers([1e-3, 1e-3])
    total_s, n_steps = 0.0, 800
    for step in range(n_steps):
        slow = step // period % 2
        workers.row_s = [1e-3 * (1 + slow), 1e-3 * (2 - slow)]
        total_s += workers.step()
    equal_s = n_steps * (N_ROWS / 2 * 2e-3 + EXCHANGE_S)
    assert total_s < 1.05 * equal_s
