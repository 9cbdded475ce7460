"""Cutting global batches into shares."""

import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.worker.sharing import Shared, batch_digest, cuts_of, share_dataset
from tests.worker.fakes import on_ranks

shares = st.lists(st.floats(0.01, 100), min_size=1, max_size=4)


def shared(data, rank, cuts, **kwargs):
    options = {"hashed": True, "numbered": False, "ahead": False, **kwargs}
    return list(share_dataset(data, rank, cuts, **options))


@settings(max_examples=8, deadline=None)
@given(shares, st.integers(1, 40), st.integers(1, 17))
def test_the_slices_of_all_ranks_are_the_batch(shares, n_rows, batch):
    cuts = cuts_of(shares)
    data = tf.data.Dataset.from_tensor_slices(np.arange(n_rows)).batch(batch)
    by_rank = [shared(data, rank, cuts, numbered=True) for rank in range(len(shares))]
    rows = []
    for elements in zip(*by_rank, strict=True):
        for element in elements:
            assert len(element.data) == max(int(element.n_own), 1)
            own = element.data.numpy()[: int(element.n_own)].tolist()
            assert own == list(range(int(element.first), int(element.first) + len(own)))
            rows += own
    assert rows == list(range(n_rows))


@settings(max_examples=50, deadline=None)
@given(shares)
def test_cuts_go_from_0_to_1_without_turning_back(shares):
    cuts = cuts_of(shares)
    assert cuts[0] == 0.0
    assert cuts[-1] == 1.0
    assert list(cuts) == sorted(cuts)


def test_every_share_is_positive():
    with pytest.raises(ValueError, match="positive share"):
        cuts_of([1.0, 0.0])


def test_static_batches_keep_static_slices():
    data = tf.data.Dataset.from_tensor_slices(np.zeros((12, 3))).batch(6, drop_remainder=True)
    spec = share_dataset(data, 0, cuts_of([2, 1]), hashed=True, numbered=False, ahead=True)
    assert spec.element_spec.data.shape == (4, 3)


def test_all_ranks_read_in_one_order_whatever_a_script_allows():
    loose = tf.data.Options()
    loose.deterministic = False
    data = tf.data.Dataset.range(6).with_options(loose).batch(3)
    options = {"hashed": True, "numbered": False, "ahead": False}
    assert share_dataset(data, 0, cuts_of([1, 1]), **options).options().deterministic
    assert share_dataset(data, 0, None, **options).options().deterministic
    assert not share_dataset(data, 0, cuts_of([1]), **options).options().deterministic


@pytest.mark.parametrize("cuts", [cuts_of([1]), cuts_of([2, 1]), None])
@pytest.mark.parametrize("numbered", [True, False])
def test_nothing_is_read_before_it_is_asked_for(cuts, numbered):
    read = []

    def batches():
        while True:
            read.append(len(read))
            yield np.arange(3)

    spec = tf.TensorSpec((3,), tf.int64)
    data = tf.data.Dataset.from_generator(batches, output_signature=spec).repeat()
    steps = share_dataset(data, 0, cuts, hashed=True, numbered=numbered and bool(cuts), ahead=True)
    for n, _ in enumerate(steps.take(30), start=1):
        time.sleep(0.01)  # as a step takes
        assert len(read) == n


def test_every_kind_of_component_is_cut_by_rows():
    x = tf.ragged.constant([[1], [2, 3], [], [4]])
    s = tf.sparse.from_dense([[1, 0], [0, 2], [0, 0], [3, 0]])
    batch = {"r": x, "s": s, "t": tf.constant(list("abcd")), "scalar": tf.constant(7)}
    batch |= {"other": tf.constant([1, 2, 3]), "n": None}
    data = tf.data.Dataset.from_tensors((batch, tf.zeros((4, 2), tf.bfloat16)))
    (element,) = shared(data, 1, cuts_of([1, 1]))
    assert isinstance(element, Shared)
    inputs, targets = element.data
    assert inputs["r"].to_list() == [[], [4]]
    assert tf.sparse.to_dense(inputs["s"]).numpy().tolist() == [[0, 0], [3, 0]]
    assert inputs["t"].numpy().tolist() == [b"c", b"d"]
    assert int(inputs["scalar"]) == 7
    assert inputs["other"].numpy().tolist() == [1, 2, 3]
    assert inputs["n"] is None
    assert targets.shape == (2, 2)


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(6)), st.sampled_from(["float32", "int64", "bool", "str", "float64"]))
def test_the_digest_tells_orders_apart(order, kind):
    values = (np.arange(6) % 5 if kind != "bool" else np.arange(6) < 3).astype(kind)
    before, after = (int(batch_digest([tf.constant(v)])) for v in (values, values[list(order)]))
    assert (before == after) == (values.tolist() == values[list(order)].tolist())


def test_the_digest_does_not_depend_on_the_rank():
    data = tf.data.Dataset.from_tensor_slices(np.random.default_rng(0).random((9, 300))).batch(4)
    digests = on_ranks(
        1, lambda _: [[int(e.digest) for e in shared(data, r, cuts_of([1, 2]))] for r in (0, 1)]
    )
    assert digests[0][0] == digests[0][1]
