"""In which buckets gradients leave."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.worker.exchange.buckets import MAX_BUCKETS, MIN_BUCKET_BYTES, buckets_of

K = 1000
sizes = st.lists(st.integers(0, 3_000_000), max_size=30)
dtypes = st.lists(st.sampled_from("fd"), min_size=30, max_size=30)


@given(sizes, dtypes)
def test_every_tensor_leaves_once_with_others_of_its_dtype(sizes, dtypes):
    found = buckets_of(sizes, dtypes[: len(sizes)])
    assert sorted(place for places in found for place in places) == list(range(len(sizes)))
    assert all(len({dtypes[place] for place in places}) == 1 for places in found)
    assert len(found) <= MAX_BUCKETS + 2


@given(sizes)
def test_last_layers_leave_first(sizes):
    found = buckets_of(sizes, "f" * len(sizes))
    assert [place for places in found for place in places] == list(range(len(sizes)))[::-1]


@given(sizes)
def test_all_but_the_last_bucket_are_worth_a_message(sizes):
    found = buckets_of(sizes, "f" * len(sizes))
    assert all(sum(sizes[p] for p in places) >= MIN_BUCKET_BYTES for places in found[:-1])


def test_a_large_last_layer_leaves_before_the_others_are_ready():
    conv, dense, head = 400 * K, 1800 * K, 9 * K
    assert buckets_of([conv, conv, dense, head], "ffff") == [[3, 2], [1], [0]]


def test_small_gradients_leave_together():
    assert buckets_of([10, 20, 30], "fff") == [[2, 1, 0]]
