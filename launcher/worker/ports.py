"""Ports of this process that nothing else on the node is given before they are listened at."""

import contextlib
import socket
from typing import Final

from launcher.worker.exchange.transport.address import Address, parse_address

# Bound and never listened at, for as long as the process lives. SO_REUSEADDR lets whoever shall
# listen bind beside them; the kernel gives such a port to no one who asks for any.
_HELD: Final[dict[Address, socket.socket]] = {}


def hold_port(ip: str) -> str:
    """A free port at an address of this machine, kept free; as "ip:port"."""
    return str(_hold(Address(ip, 0)))


def hold_again(text: str) -> None:
    """Keeps a port that another process held before, if it is free still.

    Args:
        text: "ip:port"; nothing happens for "".
    """
    address = parse_address(text)
    if address is None or address in _HELD:
        return
    with contextlib.suppress(OSError):  # whoever listens there later tells it
        _hold(address)


def _hold(address: Address) -> Address:
    family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
    held = socket.socket(family)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address.ip, address.port))
    except OSError:
        held.close()
        raise
    found = Address(address.ip, held.getsockname()[1])
    _HELD[found] = held
    return found
