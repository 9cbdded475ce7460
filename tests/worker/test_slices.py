"""Cutting batches as the ranks' speeds say."""

import numpy as np
import pytest
import tensorflow as tf

from launcher.worker.balance import Balance
from launcher.worker.exchange.waits import GRADIENTS, Waits
from launcher.worker.sharing import share_dataset
from launcher.worker.slices import Slices

N_ROWS = 40
EXCHANGE_S = 0.004


class Rank:
    """A rank on a clock of its own, whose rows take so long."""

    def __init__(self, rank, n, row_s):
        self.now_s, self.row_s, self.waits = 100.0, row_s, Waits()
        self.balance = Balance((1.0,) * n)
        self.slices = Slices(rank, self.balance, self.waits, lambda: self.now_s)
        self.cut = tf.function(self.slices.cut)

    def begin(self, batch, waited_s=0.0):
        slice_ = self.cut(batch)
        self.now_s += waited_s  # another sum in mid-step
        self.waits.note("moments", self.now_s - waited_s, self.now_s)
        self.now_s += self.row_s * max(1, int(slice_.n_own))
        return slice_

    def wait_until(self, end_s):
        self.waits.note(GRADIENTS, self.now_s, end_s)
        self.now_s = end_s


def batches(n_batches):
    data = tf.data.Dataset.from_tensor_slices(np.arange(n_batches * N_ROWS)).batch(N_ROWS)
    return share_dataset(data, 0, None, hashed=True, numbered=False, ahead=True)


def train(ranks, n_steps, waited_s=0.0):
    """The number of rows of each rank in each step; checks that the slices are the batch."""
    n_rows = []
    for batch in batches(n_steps):
        slices = [rank.begin(batch, waited_s) for rank in ranks]
        end_s = max(rank.now_s for rank in ranks) + EXCHANGE_S
        total = sum(rank.slices.outgoing() for rank in ranks)
        for rank in ranks:
            rank.slices.take(total)
            rank.wait_until(end_s)
        n_rows.append([int(s.n_own) for s in slices])
        own = [s.data.numpy()[: int(s.n_own)] for s in slices]
        assert np.concatenate(own).tolist() == batch.data.numpy().tolist()
    return n_rows


@pytest.mark.parametrize("waited_s", [0.0, 0.5])
def test_slices_follow_the_time_of_own_work_without_waiting(waited_s):
    ranks = [Rank(0, 2, 0.030), Rank(1, 2, 0.010)]
    n_rows = train(ranks, 12, waited_s)
    assert n_rows[0] == [20, 20]
    assert n_rows[-1] == [10, 30]
    assert ranks[0].balance.shares == ranks[1].balance.shares


def test_a_change_in_mid_run_is_followed_within_10_steps():
    ranks = [Rank(0, 3, 0.010), Rank(1, 3, 0.010), Rank(2, 3, 0.010)]
    train(ranks, 23)
    ranks[1].row_s *= 2
    n_rows = train(ranks, 10)
    assert n_rows[0] == [13, 14, 13]
    assert n_rows[-1] == [16, 8, 16]


def test_a_restart_keeps_the_shares_and_forgets_measurements():
    ranks = [Rank(0, 2, 0.030), Rank(1, 2, 0.010)]
    train(ranks, 10)
    for rank in ranks:
        rank.slices.restart()
    assert not ranks[0].slices.outgoing().numpy().any()
    assert train(ranks, 1) == [[10, 30]]


def test_a_step_without_an_exchange_of_gradients_measures_nothing():
    rank = Rank(0, 2, 0.030)
    for batch in batches(6):
        rank.begin(batch)
        assert not rank.slices.outgoing().numpy().any()
        rank.now_s += 1.0
