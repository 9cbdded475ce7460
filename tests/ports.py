"""Ports for servers of tests."""

import random
import socket

FIRST = 20_000  # up to here a head of Ray keeps ports for its workers, and refuses one of them
BELOW = 32_768  # from here on Linux gives out ports by itself, to whoever connects
_random = random.Random()  # Keras's and Hypothesis's seeds would bring the same ones again


def free_ports(n: int) -> list[int]:
    """Ports of the loopback that nobody has, and that nobody gets who does not ask for them."""
    found: list[int] = []
    while len(found) < n:
        port = _random.randrange(FIRST, BELOW)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
