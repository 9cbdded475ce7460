"""What TCP's windows add to the transfers of a step over long links.

Linux halves a connection's congestion window for every retransmission time-out that it lies idle
(RFC 2861; `net.ipv4.tcp_slow_start_after_idle`, on by default), down to that of a new connection.
So after a long computation the first rounds of an exchange send less than the pipe holds. And a
burst that a router's queue cannot hold loses segments, after which the window is too small for a
while, the longer the round trip.
"""

import math
from typing import Final

import numpy as np

from policies.arrays import Floats

SEGMENT_BYTES: Final = 1448.0
# Of a new connection (RFC 6928), in segments.
INITIAL_SEGMENTS: Final = 10.0
# A window that was needed for so many bytes has grown to so many times them: 2,000 to 2,200
# segments after messages of 1,200 at 50 ms and 1 Gbit/s.
GROWN: Final = 1.7
# Linux's least time-out is so much more than the round trip (TCP_RTO_MIN).
LEAST_TIMEOUT_S: Final = 0.2
LN2: Final = math.log(2.0)
# How long a burst lasts before it meets with losses, and how much longer the rest of it takes over
# the longest ways, half of that at this round trip. By eye, from steps of large gradients in the
# lab: 5 to 15 % of a transfer at 0.5 ms, 25 % at 10 ms, 50 % at 50 ms (docs/policy.md).
FREE_S: Final = 0.15
CONGESTION: Final = 0.9
HALF_AT_RTT_S: Final = 0.02


def restart_s(
    message_bytes: Floats | float, rtt_s: Floats, s_per_byte: Floats, idle_s: Floats | float
) -> Floats:
    """How much longer a message takes because its connection lay idle before.

    The window w doubles every round trip R until it fills the pipe, B·R, or holds the message, S:
    R·log2(top/w), less the time of what leaves meanwhile, (top - w)/B. Over a pipe of ln 2·(S + w)
    that is least, with the transfer; a wider one takes no longer than that one.

    Args:
        message_bytes: sent at once over each connection.
        rtt_s: of the connections, any shape; others are broadcast to it.
        s_per_byte: their inverse bandwidths.
        idle_s: since the last message.

    Returns:
        Seconds, of that shape; 0 where the window is still wide enough.
    """
    if np.max(idle_s) < 0.5 * LEAST_TIMEOUT_S:
        return np.zeros_like(rtt_s)
    rtt_s = np.maximum(rtt_s, 1e-9)
    top = np.minimum(message_bytes, rtt_s / np.maximum(s_per_byte, 1e-15))
    # Whole time-outs count, which are half a one less on average.
    halvings = np.maximum(idle_s / (LEAST_TIMEOUT_S + rtt_s) - 0.5, 0.0)
    window = np.maximum(GROWN * top * 0.5**halvings, INITIAL_SEGMENTS * SEGMENT_BYTES)
    rounds = np.log2(np.maximum(top / window, 1.0))
    extra_s = rounds * rtt_s - np.maximum(top - window, 0.0) * s_per_byte
    narrower = LN2 * (message_bytes + window)
    other_s = rtt_s * (np.log2(narrower / window) + 1.0 / LN2 - 1.0) - message_bytes * s_per_byte
    extra_s = np.where(narrower < top, np.minimum(extra_s, other_s), extra_s)
    found: Floats = np.maximum(extra_s, 0.0)
    return found


def congestion_s(burst_s: Floats, rtt_s: Floats) -> Floats:
    """How much longer a burst takes because it is lost in part, and windows shrink.

    Args:
        burst_s: its transfer at full bandwidth, any shape.
        rtt_s: longest round trip of its connections, of the same shape.
    """
    longer = CONGESTION * rtt_s / (rtt_s + HALF_AT_RTT_S)
    extra: Floats = longer * np.maximum(burst_s - FREE_S, 0.0)
    return extra
