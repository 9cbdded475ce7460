"""What a node's interface carries beside the probe's transfers, and what these put on it."""

import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from launcher.worker.interfaces import Counters, counters

Direction = Literal["sent", "received"]

# What headers and repeats may add to a transfer's own bytes, and acknowledgements to what comes
# the other way, as fractions. Others who send less are not told from ourselves.
_OWN_EXTRA: Final = 0.1
_ACKNOWLEDGED: Final = 0.05
_NOTABLE_BYTES_PER_S: Final = 125e3

_BYTES_SENT: Final = struct.Struct("=200xQ")  # tcpi_bytes_sent in Linux's tcp_info, since 4.19


@dataclass(frozen=True, slots=True)
class Meter:
    """An interface's counts at a moment, to tell what has passed since."""

    interface: str
    direction: Direction
    started_s: float
    before: Counters

    def others_bytes_per_s(self, own_bytes: int) -> float:
        """What others have sent (or received) since the start, besides `own_bytes`."""
        took_s = time.perf_counter() - self.started_s
        now = counters(self.interface)
        if now is None or took_s <= 0:
            return 0.0
        passed = now.sent_bytes - self.before.sent_bytes
        opposite = now.received_bytes - self.before.received_bytes
        if self.direction == "received":
            passed, opposite = opposite, passed
        others = passed - own_bytes
        own_extra = _OWN_EXTRA * own_bytes + _ACKNOWLEDGED * opposite
        return others / took_s if others > max(own_extra, _NOTABLE_BYTES_PER_S * took_s) else 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an agent's transfers sent in all, and what others sent meanwhile, by session."""

    sent_bytes: int
    others_bytes_per_s: Mapping[bytes, float]


@dataclass(slots=True)
class TrafficBook:
    """Counts one agent's transfers; any of its threads may write.

    Args:
        interface_by_ip: the interface behind each of the node's addresses.
    """

    interface_by_ip: Mapping[str, str]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sent_bytes: int = 0
    _others_by_session: dict[bytes, float] = field(default_factory=dict)

    def meter(self, sock: socket.socket, direction: Direction) -> Meter | None:
        """Start to count beside a stream; None where its interface isn't known.

        A loopback is this machine's own talk and isn't counted.
        """
        interface = self.interface_by_ip.get(sock.getsockname()[0])
        if interface is None or interface == "lo":
            return None
        now = counters(interface)
        return None if now is None else Meter(interface, direction, time.perf_counter(), now)

    def enter(
        self, session: bytes, meter: Meter | None, *, sent: int = 0, received: int = 0
    ) -> None:
        """A transfer has ended: take down the bytes that it sent, and what others did."""
        others = meter.others_bytes_per_s(sent or received) if meter else 0.0
        with self._lock:
            self._sent_bytes += sent
            if others:
                self._others_by_session[session] = others

    def close(self) -> Traffic:
        """What was taken down since the last time; the book starts anew."""
        with self._lock:
            closed = Traffic(self._sent_bytes, self._others_by_session)
            self._sent_bytes, self._others_by_session = 0, {}
            return closed


def bytes_sent(sock: socket.socket, handed_over: int) -> int:
    """The payload that a TCP stream has put on the wire, repeats included.

    Where the kernel doesn't tell: `handed_over`, what was written to the stream.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return int(_BYTES_SENT.unpack_from(info)[0])
    except (OSError, struct.error, AttributeError):
        return handed_over
