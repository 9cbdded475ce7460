"""Entries on the wire."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.worker.exchange.decentralized.sparse import (
    Entries,
    Form,
    PartError,
    Span,
    n_entries_in,
    pack,
    size_bytes,
    unpack,
)


def entries(size, n, seed=0):
    rng = np.random.default_rng(seed)
    indices = np.sort(rng.choice(size, n, replace=False))
    return Entries(indices, rng.normal(size=n).astype(np.float32))


def whole(part, size):
    total = np.zeros(size, np.float32)
    part.add_to(total)
    return total


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.data())
def test_entries_come_out_as_they_went_in_in_the_bytes_foretold(size, data):
    part = entries(size, data.draw(st.integers(0, size)))
    form, packed = pack(part, size)
    assert len(packed) == size_bytes(len(part.values), size)
    n_entries = size if form is Form.SPAN else len(part.values)
    found = unpack(form, 0, n_entries, memoryview(packed), size)
    np.testing.assert_array_equal(whole(found, size), whole(part, size))


@pytest.mark.parametrize(
    ("n", "form"), [(3, Form.INDEX), (100, Form.MASK), (990, Form.SPAN), (0, Form.INDEX)]
)
def test_the_shortest_form_is_taken(n, form):
    assert pack(entries(1000, n), 1000)[0] is form


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 30_000))
def test_as_many_entries_are_sent_as_fit(size, n_bytes):
    n = n_entries_in(n_bytes, size)
    assert 0 <= n <= size
    assert size_bytes(n, size) <= n_bytes or n == 0
    assert n == size or size_bytes(n + 1, size) > n_bytes


def test_a_span_keeps_its_place():
    part = Span(3, np.array([1.0, 2.0], np.float32))
    form, packed = pack(part, 9)
    found = unpack(form, 3, 2, memoryview(packed), 9)
    assert whole(found, 9).tolist() == [0, 0, 0, 1, 2, 0, 0, 0, 0]


def index_form(indices, values=None):
    values = np.ones(len(indices)) if values is None else np.asarray(values)
    packed = np.asarray(indices, "<u4").tobytes() + values.astype("<f4").tobytes()
    return Form.INDEX, 0, len(indices), memoryview(packed), 8


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (index_form([1, 8]), "index 8 in a vector of 8"),
        (index_form([2, 2]), "not in order"),
        (index_form([3, 1]), "not in order"),
        (index_form([3], [np.nan]), "not finite"),
        ((9, 0, 1, memoryview(b"1234"), 8), "in form 9"),
        ((Form.SPAN, 7, 2, memoryview(b"12345678"), 8), "2 entries from 7"),
        ((Form.SPAN, 0, 2, memoryview(b"1234"), 8), "4 bytes cannot be 2 entries"),
        ((Form.MASK, 0, 2, memoryview(b"\x80" + bytes(8)), 8), "1 indices for 2 entries"),
        ((Form.MASK, 0, 1, memoryview(b"\x01" + bytes(4)), 7), "index 7"),
    ],
)
def test_what_is_no_part_of_the_vector_is_refused(arguments, why):
    if why == "index 7":  # bits beyond the vector's end are cut off with it
        why = "not in order|index 7"
    with pytest.raises(PartError, match=why):
        unpack(*arguments)
