"""TensorFlow's side of the direct exchange, with ranks as threads."""

import numpy as np
import pytest
import tensorflow as tf

from launcher.worker.exchange.algorithms.one_shot import one_shot
from launcher.worker.exchange.direct import DirectExchange
from launcher.worker.exchange.waits import GRADIENTS
from tests.worker.exchange.fakes import on_all_ranks

N = 3


def tensors(rank):
    rng = np.random.default_rng(rank)
    sizes = [(3, 70), (70,), (70, 4), (4,), ()]
    dense = [tf.constant(rng.normal(size=size), tf.float32) for size in sizes]
    return [*dense, tf.constant(rank, tf.int64), tf.fill((2, 2), tf.cast(rank, tf.float16))]


def sums(exchange, purpose):
    """Eagerly: operations of a graph would share the process's few threads, and wait for one."""
    own = tensors(exchange.rank)
    return [total.numpy() for total in exchange.sum_tensors(own, purpose)]


@pytest.mark.parametrize("purpose", [GRADIENTS, "metrics"])
def test_sums_of_mixed_tensors_are_the_same_bits_on_all_ranks(purpose):
    found, _ = on_all_ranks(N, lambda m: sums(DirectExchange(m, one_shot), purpose))
    expected = [sum(parts) for parts in zip(*map(tensors, range(N)), strict=True)]
    for rank in range(N):
        for total, right, first in zip(found[rank], expected, found[0], strict=True):
            np.testing.assert_allclose(total, right, rtol=1e-6, atol=1e-6)
            assert total.dtype == right.dtype
            assert total.tobytes() == first.tobytes()


def test_waiting_is_told_from_work_at_the_last_exchange_of_gradients():
    def on_rank(mailbox):
        exchange = DirectExchange(mailbox, one_shot)
        exchange.sum_arrays([np.ones(3)], "denominator")
        before_s = exchange.waits.total_s
        sums(exchange, GRADIENTS)
        ready_s = exchange.waits.ready_s
        between_s = exchange.waits.before_ready_s
        exchange.sum_arrays([np.ones(3)], "metric states")
        assert exchange.waits.ready_s == ready_s
        assert exchange.waits.before_ready_s == between_s
        return 0 < before_s <= between_s < exchange.waits.total_s

    found, _ = on_all_ranks(N, on_rank)
    assert all(found)
