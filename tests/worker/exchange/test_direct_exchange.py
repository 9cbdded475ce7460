"""TensorFlow's side of the direct exchange, with ranks as threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from launcher.errors import PeerLostError
from launcher.worker.exchange.algorithms.one_shot import one_shot
from launcher.worker.exchange.direct import DirectExchange
from launcher.worker.exchange.waits import GRADIENTS
from tests.worker.exchange.fakes import FakeMailbox, Post, on_all_ranks
from tests.worker.exchange.transport.meshes import open_meshes

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


@pytest.mark.parametrize("bucket_bytes", [None, 1, 500])
@pytest.mark.parametrize("purpose", [GRADIENTS, "metrics"])
def test_sums_of_mixed_tensors_are_the_same_bits_on_all_ranks(purpose, bucket_bytes):
    def on_rank(mailbox):
        return sums(DirectExchange(mailbox, one_shot, bucket_bytes=bucket_bytes), purpose)

    found, _ = on_all_ranks(N, on_rank)
    expected = [sum(parts) for parts in zip(*map(tensors, range(N)), strict=True)]
    for rank in range(N):
        for total, right, first in zip(found[rank], expected, found[0], strict=True):
            np.testing.assert_allclose(total, right, rtol=1e-6, atol=1e-6)
            assert total.dtype == right.dtype
            assert total.tobytes() == first.tobytes()


@pytest.mark.parametrize("bucket_bytes", [None, 1])
def test_waiting_is_told_from_work_at_the_last_exchange_of_gradients(bucket_bytes):
    def on_rank(mailbox):
        exchange = DirectExchange(mailbox, one_shot, bucket_bytes=bucket_bytes)
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


def test_gradients_leave_while_others_are_still_computed():
    """The last layer's are under way before the first layer's are there."""
    has_left, computed_first = threading.Event(), []

    def all_reduce(call, vector, total):
        total[...] = 2 * vector
        has_left.set()

    def compute(value):
        computed_first.append(not has_left.wait(60))
        return value

    class Lonely(FakeMailbox):
        def close(self):
            pass

    exchange = DirectExchange(Lonely(0, 2, Post()), all_reduce, bucket_bytes=1)

    @tf.function
    def step(x):
        first = tf.ensure_shape(
            tf.numpy_function(compute, [x], tf.float32, stateful=False), x.shape
        )
        return exchange.sum_tensors([first, x + 1.0], GRADIENTS)

    first, last = step(tf.ones(3))
    assert computed_first == [False]
    assert first.numpy().tolist() == [2.0] * 3
    assert last.numpy().tolist() == [4.0] * 3
    exchange.close()


def test_the_loss_of_a_peer_during_the_backward_pass_is_named():
    def all_reduce(call, vector, total):
        raise PeerLostError(1, "10.0.0.2:7000", "it ended")

    exchange = DirectExchange(FakeMailbox(0, 2, Post()), all_reduce, bucket_bytes=1)
    with pytest.raises(PeerLostError, match="it ended"):
        exchange.sum_tensors([tf.ones(3), tf.ones(2)], GRADIENTS)
    assert exchange.lost is not None
    assert exchange.lost.rank == 1


def test_every_rank_learns_what_went_over_each_network():
    def on_rank(mesh):
        exchange, uses = DirectExchange(mesh, one_shot), []
        for _ in range(20):
            exchange.sum_arrays([np.ones(1 << 20)], "much")
            uses.append(exchange.path_uses())
            if {use.path for use in uses[-1]} == {0, 1}:
                break  # of two paths, one may have got no processor while the other did it all
        return uses

    with open_meshes(2, 2) as meshes, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(on_rank, meshes)
    assert first == second
    assert all(use.n_down == 0 and {use.src, use.dst} == {0, 1} for use in first[-1])
    assert {use.path for use in first[-1]} == {0, 1}
    sent = sum(use.sent_bytes for use in first[-1] if use.src == 0)
    assert len(first) * (8 << 20) <= sent < len(first) * (9 << 20)


def test_one_network_is_not_worth_a_word():
    with open_meshes(2) as meshes:
        assert DirectExchange(meshes[0], one_shot).path_uses() == []
