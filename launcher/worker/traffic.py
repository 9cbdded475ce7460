"""What an agent's transfers put on the network, and all that its interfaces carried meanwhile."""

import socket
import struct
import threading
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from launcher.worker.interfaces import Counters, counters

# From here on (10 Mbit/s) others' traffic is worth a longer look at what is left. A thousand pings
# and as many echoes of 56 bytes a second are a tenth of it, and Ray's own talk isn't more.
_SHARED_BYTES_PER_S: Final = 1.25e6
_PRESSURE: Final = Path("/proc/pressure/cpu")  # Linux, if its kernel was made with it
_BYTES_SENT: Final = struct.Struct("=200xQ")  # tcpi_bytes_sent in Linux's tcp_info, since 4.19


@dataclass(frozen=True, slots=True)
class Traffic:
    """An agent's account of a probe.

    `sent_bytes` is by session, what its transfers put on the wire; `carried` by interface, what
    all of the node's programs received and sent in `took_s`, the probe included. `cpu_waiting`
    is the fraction of that time in which something waited for a processor; None: not known.
    """

    sent_bytes: Mapping[bytes, int] = field(default_factory=dict)
    carried: Mapping[str, Counters] = field(default_factory=dict)
    took_s: float = 0.0
    cpu_waiting: float | None = None


class TrafficBook:
    """Counts one agent's transfers; any of its threads may write.

    Args:
        interfaces: those over which transfers may run. A loopback is this machine's own talk and
            isn't counted.
    """

    def __init__(self, interfaces: Set[str]) -> None:
        self._interfaces = interfaces - {"lo"}
        self.is_shared = False
        self._lock = threading.Lock()
        self.open()

    def open(self) -> None:
        """Start anew."""
        with self._lock:
            self._started_s = time.perf_counter()
            self._sent_bytes: dict[bytes, int] = {}
            self._before = self._counted()
            self._waited_s = _cpu_waited_s()

    def look_for_others(self) -> None:
        """While there were only pings so far: do others send over an interface?"""
        carried = self.account().carried.values()
        took_s = max(1e-3, time.perf_counter() - self._started_s)
        most = max((max(c.sent_bytes, c.received_bytes) for c in carried), default=0)
        self.is_shared = most > _SHARED_BYTES_PER_S * took_s

    def enter(self, session: bytes, sent_bytes: int) -> None:
        """A transfer has ended."""
        with self._lock:
            self._sent_bytes[session] = self._sent_bytes.get(session, 0) + sent_bytes

    def account(self) -> Traffic:
        """All since the book was opened."""
        with self._lock:
            now = self._counted()
            carried = {
                name: now[name].since(before)
                for name, before in self._before.items()
                if name in now
            }
            took_s = time.perf_counter() - self._started_s
            waited_s, before_s = _cpu_waited_s(), self._waited_s
            known = waited_s is not None and before_s is not None and took_s > 0
            waiting = (waited_s - before_s) / took_s if known else None  # type: ignore[operator]
            return Traffic(dict(self._sent_bytes), carried, took_s, waiting)

    def _counted(self) -> dict[str, Counters]:
        found = {name: counters(name) for name in self._interfaces}
        return {name: count for name, count in found.items() if count is not None}


def bytes_sent(sock: socket.socket, handed_over: int) -> int:
    """The payload that a TCP stream has put on the wire, repeats included.

    Where the kernel doesn't tell: `handed_over`, what was written to the stream.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return int(_BYTES_SENT.unpack_from(info)[0])
    except (OSError, struct.error, AttributeError):
        return handed_over


def _cpu_waited_s() -> float | None:
    """For how long, in seconds, something on this machine has waited for a processor so far."""
    try:
        some, *_ = _PRESSURE.read_text(encoding="ascii").splitlines()
        return float(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
