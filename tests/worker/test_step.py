"""The arithmetic of a step, with ranks as threads."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.worker.batch_moments import global_moments
from launcher.worker.predictions import gather_bytes, gather_rows
from launcher.worker.replicas import average, broadcast
from launcher.worker.sharing import Shared
from launcher.worker.step import StepState
from tests.worker.fakes import on_ranks

row_counts = st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any)


def state_of(exchange, n_own, n_rows):
    state = StepState(exchange)
    numbers = (tf.constant(n, tf.int64) for n in (n_own, n_rows, 0, 0))
    state.begin_shared(Shared(None, *numbers), training=True)
    return state


def rows_of(counts, rank, values):
    begin = sum(counts[:rank])
    return values[begin : begin + max(counts[rank], 1)] if counts[rank] else values[:1]


@settings(max_examples=15, deadline=None)
@given(row_counts, st.floats(-100, 100))
def test_weighted_gradients_are_those_of_the_whole_batch(counts, offset):
    values = np.random.default_rng(1).normal(size=(sum(counts), 3)).astype("float32") + offset

    def mean_gradient(exchange):
        state = state_of(exchange, counts[exchange.rank], sum(counts))
        own = rows_of(counts, exchange.rank, values)
        (dense, none, sliced), (value,) = state.mean_gradients(
            [
                tf.constant(own.mean(0)),
                None,
                tf.IndexedSlices(tf.constant(own[:1]), tf.constant([0])),
            ],
            [tf.constant(own.mean())],
        )
        assert none is None
        assert len(sliced.indices) == exchange.world_size
        np.testing.assert_allclose(value, values.mean(), rtol=1e-4, atol=1e-4)
        return dense.numpy()

    for found in on_ranks(len(counts), mean_gradient):
        np.testing.assert_allclose(found, values.mean(0), rtol=1e-4, atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(row_counts, st.sampled_from([0.0, 1000.0]), st.booleans())
def test_moments_and_their_gradients_are_those_of_the_whole_batch(counts, offset, masked):
    n = sum(counts)
    values = np.random.default_rng(2).normal(size=(n, 4, 2)).astype("float32") + offset
    keep = np.arange(n * 4).reshape(n, 4, 1) % 3 > 0 if masked else np.ones((n, 4, 1), bool)
    kept = values[np.broadcast_to(keep, values.shape)].reshape(-1, 2).astype("float64")
    probe = np.linspace(-1, 1, n * 8).reshape(values.shape).astype("float32")

    def objective(x, mean, variance, p):
        return tf.reduce_mean(tf.reduce_sum(p * (x - mean) / tf.sqrt(variance + 1e-3), [1, 2]))

    def on_rank(exchange):
        rank = exchange.rank
        state = state_of(exchange, counts[rank], n)
        x = tf.constant(rows_of(counts, rank, values))
        mask = tf.constant(rows_of(counts, rank, keep)) if masked else None
        with tf.GradientTape() as tape:
            tape.watch(x)
            mean, variance, _ = global_moments(x, [0, 1], state, "moments", mask)
            loss = objective(x, mean, variance, rows_of(counts, rank, probe))
        gradient = tape.gradient(loss, x).numpy() * counts[rank] / n
        return mean.numpy(), variance.numpy(), gradient[: counts[rank]]

    found = on_ranks(len(counts), on_rank)
    x = tf.constant(values)
    with tf.GradientTape() as tape:
        tape.watch(x)
        weights = tf.cast(np.broadcast_to(keep, values.shape), tf.float32)
        mean, variance = tf.nn.weighted_moments(x, [0, 1], weights)
        loss = objective(x, mean, variance, probe)
    for mean, variance, _ in found:
        np.testing.assert_allclose(mean, kept.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance, kept.var(0), rtol=2e-4, atol=1e-6)
    gradients = np.concatenate([gradient for _, _, gradient in found])
    tolerance = 1e-2 if offset else 1e-4
    np.testing.assert_allclose(gradients, tape.gradient(loss, x), rtol=tolerance, atol=tolerance)


@settings(max_examples=15, deadline=None)
@given(row_counts)
def test_predictions_come_together_in_order(counts):
    n = sum(counts)
    values = np.random.default_rng(3).random((n, 2)).astype("float32")
    words = np.array([f"row {i}" for i in range(n)], object)

    def on_rank(exchange):
        own = counts[exchange.rank]
        begin = sum(counts[: exchange.rank])
        rows = np.arange(begin, begin + own) if own else np.array([-1])
        taken = np.maximum(rows, 0)
        dense = gather_rows(exchange, [values[taken], taken], rows)
        objects = gather_rows(exchange, [words[taken]], rows)
        unlike = gather_rows(exchange, [np.zeros(len(rows) + exchange.rank)], rows)
        return dense, objects, unlike

    for dense, objects, unlike in on_ranks(len(counts), on_rank):
        np.testing.assert_array_equal(dense[0], values)
        assert dense[1].tolist() == list(range(n))
        assert objects[0].tolist() == words.tolist()
        assert unlike is None or len(counts) == 1


def test_payloads_of_any_length_reach_every_rank():
    payloads = [b"", b"one", b"and another"]
    for found in on_ranks(3, lambda exchange: gather_bytes(exchange, payloads[exchange.rank])):
        assert found == payloads


def test_variables_become_worker_0s_or_the_mean():
    def on_rank(exchange):
        variable = tf.Variable([1.0 + exchange.rank])
        assert broadcast(exchange, [variable])
        copied = variable.numpy().tolist()
        variable.assign([float(exchange.rank)])
        average(exchange, [variable], [0.25, 0.75][exchange.rank])
        assert not broadcast(exchange, [variable] * exchange.rank)
        return copied, variable.numpy().tolist()

    assert on_ranks(2, on_rank) == [([1.0], [0.75])] * 2
