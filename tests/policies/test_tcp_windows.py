"""What connections that lay idle add to a step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.tcp_windows import INITIAL_SEGMENTS, SEGMENT_BYTES, congestion_s, restart_s

FAR = np.array(0.050), np.array(1.0 / 117.5e6)


def rounds_s(message_bytes, rtt_s, bytes_per_s, window):
    """Round by round: what the sender waits for before the pipe or the message is full."""
    lost_s = sent = 0.0
    while window < rtt_s * bytes_per_s and sent + window < message_bytes:
        lost_s += rtt_s - window / bytes_per_s
        sent += window
        window *= 2.0
    return lost_s


def test_a_message_of_1700_kb_after_a_second_takes_some_three_round_trips_longer():
    """Two lab hosts: 150 to 215 ms for `direct`, 140 to 185 for the halves of a ring."""
    assert 0.1 < restart_s(1.74e6, *FAR, 1.0) < 0.2
    assert 0.1 < restart_s(0.87e6, *FAR, 1.0) < 0.2


def test_short_pauses_and_short_ways_cost_nothing():
    assert restart_s(1.74e6, *FAR, 0.25) == 0.0
    assert restart_s(1.74e6, np.array(0.0005), FAR[1], 30.0) < 0.003
    assert restart_s(10_000.0, *FAR, 30.0) == 0.0


@given(st.floats(2e5, 5e7), st.floats(0.01, 0.3), st.floats(1e7, 1e9))
@settings(max_examples=50, deadline=None)
def test_after_a_long_pause_it_is_a_new_connections_start(message_bytes, rtt_s, bytes_per_s):
    """A sender's rounds are whole, so that either may be one round trip more."""
    found = restart_s(message_bytes, np.array(rtt_s), np.array(1.0 / bytes_per_s), 1e3)
    walked = rounds_s(message_bytes, rtt_s, bytes_per_s, INITIAL_SEGMENTS * SEGMENT_BYTES)
    assert found == pytest.approx(walked, abs=1.2 * rtt_s)


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0))
@settings(max_examples=50, deadline=None)
def test_longer_pauses_never_cost_less(one, other):
    shorter, longer = sorted([one, other])
    assert restart_s(1e7, *FAR, shorter) <= restart_s(1e7, *FAR, longer)


def test_long_bursts_over_long_ways_take_half_as_long_again():
    """Two hosts at 100 Mbit/s: 3.3 s of gradients took 1.1, 1.2 and 1.5 times that."""
    measured = {0.0005: 0.1, 0.010: 0.24, 0.050: 0.54}
    for rtt_s, longer in measured.items():
        found = congestion_s(np.array(3.3), np.array(rtt_s))
        assert found / 3.3 == pytest.approx(longer, abs=0.1)


def test_short_bursts_lose_nothing():
    assert congestion_s(np.array([0.0, 0.1]), np.array([0.05, 0.3])).tolist() == [0.0, 0.0]
