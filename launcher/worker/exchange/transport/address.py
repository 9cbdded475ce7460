"""Addresses that ranks listen at."""

import socket
from dataclasses import dataclass

from launcher.errors import TrainingFailedError

BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address and a TCP port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def parse_address(text: str) -> Address | None:
    """Reads "ip:port" or "[ip]:port"; None for an empty text.

    Raises:
        ValueError: it is neither.
    """
    if not text:
        return None
    ip, colon, port = text.rpartition(":")
    if not colon or not ip or not port.isdigit():
        raise ValueError(f"{text!r} is not an address like 10.0.0.1:4567")
    return Address(ip.removeprefix("[").removesuffix("]"), int(port))


def listen(address: Address) -> socket.socket:
    """A listening socket at an address of this machine; port 0 takes any free one.

    Raises:
        TrainingFailedError: the address is not ours, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
    try:
        return socket.create_server((address.ip, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise TrainingFailedError(
            f"This worker cannot listen at {address}: {error.strerror}. Look at which process "
            "uses that port, and whether the node still has that address."
        ) from error
