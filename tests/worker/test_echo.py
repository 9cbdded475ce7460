import numpy as np
import pytest
import tensorflow as tf

from launcher.worker.echo import Echo
from launcher.worker.step import StepState

ROWS, WIDTH = 1000, 8


@pytest.fixture
def echo() -> Echo:
    return Echo()


def step_of(echo: Echo):
    """A step of a rank that looks up some rows of a table; returns both gradients' means."""
    state = StepState(echo)
    state.on_slices = echo.note_slices
    table, dense = tf.Variable(tf.ones([ROWS, WIDTH])), tf.Variable(tf.ones([WIDTH, 1]))

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows) @ dense)
        means, _ = state.mean_gradients(tape.gradient(loss, [table, dense]))
        return means

    return state, step


def test_slices_spare_the_network_all_but_half_of_all_ranks_rows(echo: Echo) -> None:
    _, step = step_of(echo)
    echo.world_size = 4
    step(tf.constant([1, 5, 7]))
    row_bytes = 4 * WIDTH + 4  # and its index
    assert echo.spared_bytes == 4 * ROWS * WIDTH - 4 * 3 * row_bytes / 2
    assert echo.n_slices == 1


def test_the_step_is_applied_to_as_many_rows_as_all_ranks_send(echo: Echo) -> None:
    _, step = step_of(echo)
    echo.world_size = 4
    slices, _ = step(tf.constant([1, 5, 7]))
    assert slices.values.shape == (12, WIDTH)
    np.testing.assert_array_equal(slices.indices, [1, 5, 7] * 4)


def test_batches_of_other_sizes_are_not_counted_twice(echo: Echo) -> None:
    _, step = step_of(echo)
    step(tf.constant([1, 5, 7]))
    once = echo.spared_bytes
    step(tf.constant([1]))  # traced again, with fewer rows
    assert once < echo.spared_bytes < 2 * once


def test_gradients_that_are_added_up_spare_nothing(echo: Echo) -> None:
    state, step = step_of(echo)
    state.gathers = False
    table, _ = step(tf.constant([1, 5, 7]))
    assert table.shape == (ROWS, WIDTH)
    assert (echo.spared_bytes, echo.n_slices) == (0.0, 0)
