"""Messages on the wire."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.worker.exchange.decentralized.message import (
    HEADER_BYTES,
    Kind,
    Message,
    Standing,
    parse_body,
    parse_header,
)
from launcher.worker.exchange.decentralized.sparse import Entries, PartError, Span

SIZE = 40


def round_trip(message, size=SIZE):
    packed = message.packed(size)
    header = parse_header(packed[:HEADER_BYTES], size)
    assert len(packed) == HEADER_BYTES + header.body_bytes
    return parse_body(header, packed[HEADER_BYTES:], size)


@pytest.mark.parametrize("n", [0, 1, 12, 39, 40])
def test_a_message_arrives_as_it_was_sent(n):
    part = Entries(np.arange(n), np.arange(n, dtype=np.float32))
    sent = Message(Kind.GRADIENT, Standing(7, 5, 32, 12.5, 0.25), part)
    found = round_trip(sent)
    assert (found.kind, found.standing) == (sent.kind, sent.standing)
    totals = [np.zeros(SIZE, np.float32) for _ in range(2)]
    sent.part.add_to(totals[0])
    found.part.add_to(totals[1])
    np.testing.assert_array_equal(*totals)


def test_what_is_not_known_stays_unknown():
    found = round_trip(Message(Kind.REQUEST, Standing()))
    assert found.standing == Standing()
    assert len(found.part.values) == 0


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"x" * HEADER_BYTES, "mark 0x7878"),
        (
            Message(Kind.GRADIENT, Standing()).packed(SIZE + 1),
            "model 0 of 41 weights instead of 0 of 40",
        ),
        (Message(Kind.STOP, Standing()).packed(SIZE, 3), "model 3 of 40 weights instead of 0"),
        (Message(Kind.WEIGHTS, Standing(), Span(0, np.ones(3))).packed(SIZE), "3 weights"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(packed, why):
    with pytest.raises(PartError, match=why):
        parse_header(packed[:HEADER_BYTES], SIZE)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.integers(0, 5))
def test_noise_never_takes_more_memory_than_the_model_can_fill(noise, n_kept):
    """The first bytes are kept, so that noise gets as far as the later checks."""
    good = Message(Kind.GRADIENT, Standing(), Span(0, np.ones(SIZE))).packed(SIZE)
    begin = [4, 5, 6, 26, 30, 34][n_kept]
    try:
        header = parse_header(good[:begin] + noise[begin:], SIZE)
    except PartError:
        return
    assert header.body_bytes <= 8 * SIZE + SIZE
