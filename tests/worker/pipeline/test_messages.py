"""What goes from stage to stage."""

import ml_dtypes
import numpy as np

from launcher.worker.pipeline.messages import Layout, Neighbour
from tests.worker.exchange.fakes import on_all_ranks

LAYOUT = Layout(((2, 3), (), (5,)), ("float32", "int64", "bfloat16"))


def test_tensors_come_out_as_they_went_in():
    rng = np.random.default_rng(0)
    sent = [
        rng.normal(size=(4, 2, 3)).astype("float32"),
        np.arange(4),
        rng.normal(size=(4, 5)).astype(ml_dtypes.bfloat16),
    ]

    def work(mailbox):
        neighbour = Neighbour(mailbox, 1 - mailbox.rank)
        message = LAYOUT.message(4)
        if mailbox.rank == 0:
            neighbour.send(7, 2, message.fill(sent, 1.5))
            return neighbour.flush()
        neighbour.receive(7, 2, message).wait()
        return message

    (_, received), post = on_all_ranks(2, work)
    assert received.number[0] == 1.5
    for one, other in zip(sent, received.arrays, strict=True):
        assert (one == other).all() and one.dtype == other.dtype
    assert post.sent == [(0, 1, 8 + 4 * LAYOUT.row_bytes)]


def test_whole_numbers_have_no_gradients():
    assert LAYOUT.gradients == Layout(((2, 3), (5,)), ("float32", "bfloat16"))
    assert LAYOUT.row_bytes == 4 * 6 + 8 + 2 * 5


def test_messages_of_different_micro_batches_and_steps_are_told_apart():
    layout = Layout(((),), ("float32",))

    def work(mailbox):
        neighbour = Neighbour(mailbox, 1 - mailbox.rank)
        which = [(0, 0), (0, 1), (1, 0)]
        if mailbox.rank == 0:
            for step, i in which:
                neighbour.send(step, i, layout.message(1).fill([np.float32(10 * step + i)]))
            return None
        found = []
        for step, i in reversed(which):
            message = layout.message(1)
            neighbour.receive(step, i, message).wait()
            found.append(float(message.arrays[0][0]))
        return found

    (_, found), _ = on_all_ranks(2, work)
    assert found == [10.0, 1.0, 0.0]
