"""What the kernel knows of a connection; Linux only, None elsewhere."""

import socket
import struct
from dataclasses import dataclass

# struct tcp_info: tcpi_unacked, tcpi_last_ack_recv, tcpi_min_rtt
_FIELDS = struct.Struct("=24xI28xI88xI")
_NO_RTT_US = 0xFFFFFFFF
CHECKED_EVERY_S = 1.0  # at least, or else what lies between two checks is not known


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """The state of a connection.

    Args:
        n_unacked: packets that were sent and not acknowledged yet.
        since_ack_s: seconds since the other side's kernel acknowledged anything.
        min_rtt_s: the least round-trip time seen, in seconds; None if there was none.
    """

    n_unacked: int
    since_ack_s: float
    min_rtt_s: float | None


def tcp_info(connection: socket.socket) -> TcpInfo | None:
    """The state of a connection, or None where the kernel does not tell."""
    try:
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _FIELDS.size)
        n_unacked, since_ack_ms, min_rtt_us = _FIELDS.unpack(data)
    except (AttributeError, OSError, struct.error):
        return None
    min_rtt_s = None if min_rtt_us in {0, _NO_RTT_US} else min_rtt_us / 1e6
    return TcpInfo(n_unacked, since_ack_ms / 1e3, min_rtt_s)


class Unanswered:
    """Finds that packets vanish on a connection, although signs of life come by another.

    A peer that does not read is no reason: its kernel still acknowledges.

    Args:
        limit_s: how long packets may wait for an acknowledgement, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: float | None = None
        self._checked_s = float("-inf")

    def judge(self, info: TcpInfo, now_s: float) -> bool:
        """Whether the connection is dead; to be asked often."""
        if info.n_unacked == 0 or now_s - self._checked_s > CHECKED_EVERY_S:
            self._since_s = now_s
        self._checked_s = now_s
        since_s = now_s if self._since_s is None else self._since_s
        return min(now_s - since_s, info.since_ack_s) > self._limit_s
