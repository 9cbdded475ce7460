"""A network of the lab: the relay process that carries its packets, and requests to it."""

import json
import os
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.host import HERE, ISOLATED, Host

MTU_BYTES = 1500
# Deep enough for one flow to fill a link whatever its delay, and no deeper than a good router's.
MIN_QUEUE_S = 0.05
START_S = 30.0


@dataclass(frozen=True, slots=True)
class LinkValues:
    """What a link is to do; None leaves it as it is.

    Args:
        rtt_s: round trip of a link and its way back if both have this value; one way takes half.
        jitter_s: the round trip varies evenly within ± this, in order.
        loss: share of packets that vanish, each way.
        rate_bytes_per_s: of IP packets, headers included; 0 is no limit.
        queue_s: how long a packet may wait for its turn; default: max(50 ms, round trip).
    """

    rtt_s: float | None = None
    jitter_s: float | None = None
    loss: float | None = None
    rate_bytes_per_s: float | None = None
    queue_s: float | None = None

    def to_relay(self) -> dict[str, float]:
        """The values in the relay's terms: those of one direction."""
        values: dict[str, float | None] = {
            "jitter_s": None if self.jitter_s is None else self.jitter_s / 2,
            "loss": self.loss,
            "rate_bytes_per_s": self.rate_bytes_per_s,
            "queue_s": self.queue_s,
        }
        if self.rtt_s is not None:
            values["delay_s"] = self.rtt_s / 2
            if self.queue_s is None:
                values["queue_s"] = max(MIN_QUEUE_S, self.rtt_s)
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class LinkState:
    """A direction between two hosts: how it is set, and what has passed since the start.

    Args:
        nic_bytes_per_s: rate of the interface of `src`, all its links together.
        alive: whether neither host is cut off from all others.
    """

    src: str
    dst: str
    nic_bytes_per_s: float
    delay_s: float
    jitter_s: float
    loss: float
    rate_bytes_per_s: float
    queue_s: float
    cut: bool
    alive: bool
    n_packets: int
    n_bytes: int
    n_dropped: int


@dataclass(frozen=True, slots=True)
class Network:
    """A running network, reached by its relay's socket."""

    names: tuple[str, ...]
    socket: Path

    def set_links(self, links: str, values: Mapping[str, Any]) -> None:
        """Set values (the relay's) of all links that the text names, as `directions` reads it."""
        self._ask(op="link", pairs=directions(links, self.names), values=dict(values))

    def set_port(self, host: str, **values: Any) -> None:
        """Set values of a host's interface: `alive`, `rate_bytes_per_s`."""
        self._ask(op="port", host=known(host, self.names), values=values)

    def attach(self, host: Host, number: int) -> None:
        """Join a host that came back, with the links that it had."""
        self._ask(op="attach", host=_port(host, number, 0.0))

    def links(self) -> tuple[LinkState, ...]:
        """Every direction between two hosts."""
        return tuple(LinkState(**link) for link in self._ask(op="links")["links"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
        if "error" in answer:
            raise ValueError(f"the lab's relay refuses {request}: {answer['error']}")
        return answer


def start_network(
    hosts: Sequence[Host],
    number: int,
    where: Path,
    *,
    values: LinkValues,
    nic_bytes_per_s: float | None,
) -> tuple[Network, subprocess.Popen[bytes]]:
    """Join hosts; the network lives as long as the process has its standard input."""
    link = {"delay_s": 0.0, "jitter_s": 0.0, "loss": 0.0, "rate_bytes_per_s": 0.0}
    config = {
        "mtu": MTU_BYTES,
        "socket": str(where),
        "link": {**link, "queue_s": MIN_QUEUE_S, **values.to_relay()},
        "hosts": [_port(host, number, nic_bytes_per_s or 0.0) for host in hosts],
    }
    process = subprocess.Popen(
        [*ISOLATED, str(HERE / "relay.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(config).encode() + b"\n")
    answer = process.stdout.readline()
    process.stdout.close()
    if answer != b"ready\n":
        raise RuntimeError(f"the lab's relay did not start (exit code {process.wait()})")
    return Network(tuple(host.name for host in hosts), where), process


def _port(host: Host, number: int, rate_bytes_per_s: float) -> dict[str, Any]:
    return {
        "name": host.name,
        "namespace": host.namespace,
        "device": f"lab{number}",
        "address": host.addresses[number],
        "rate_bytes_per_s": rate_bytes_per_s,
    }


def directions(links: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The directed pairs of `h1-h3` (both ways), `h1>h3` (one way), `h1-*`, `*-*`.

    Raises:
        ValueError: the text is none of these, or names a host that is not there.
    """
    arrow = ">" if ">" in links else "-"
    ends = [end.strip() for end in links.split(arrow)]
    if len(ends) != 2:
        raise ValueError(f"{links!r} is no link: write h1-h2, h1>h2 (one way), h1-* or *-*")
    found = [
        (src, dst) for src in _matches(ends[0], names) for dst in _matches(ends[1], names)
        if src != dst
    ]  # fmt: skip
    if not found:
        raise ValueError(f"{links!r} is no link: a link joins two different hosts")
    back = [(dst, src) for src, dst in found] if arrow == "-" else []
    return sorted({*found, *back})


def _matches(end: str, names: Sequence[str]) -> Iterable[str]:
    return names if end == "*" else (known(end, names),)


def known(host: str, names: Sequence[str]) -> str:
    """The host's name, or ValueError with those that there are."""
    if host not in names:
        raise ValueError(f"there is no host {host!r}: the lab has {', '.join(names)}")
    return host
