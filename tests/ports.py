"""Ports for servers of tests."""

import functools
import itertools
import random
import socket
from collections.abc import Iterator

FIRST = 20_000  # up to here a head of Ray keeps ports for its workers, and refuses one of them
BELOW = 32_768  # from here on Linux gives out ports by itself, to whoever connects
BLOCK = 512  # ports that one process of tests gives out, in turn
_random = random.Random()  # Keras's and Hypothesis's seeds would bring the same ones again


def free_ports(n: int) -> list[int]:
    """Ports of the loopback that nobody has, and that nobody gets who does not ask for them."""
    _, ports = _own_block()
    return list(itertools.islice(filter(_is_free, ports), n))


@functools.cache
def _own_block() -> tuple[socket.socket, Iterator[int]]:
    """Ports that no other process of tests gives out, and what keeps them for this one.

    Other tests may run at the same time, and servers start long after their ports were found.
    """
    firsts = list(range(FIRST, BELOW - BLOCK, BLOCK))
    _random.shuffle(firsts)
    for first in firsts:
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
            continue
        return claim, itertools.cycle(range(first, first + BLOCK))
    raise OSError("other processes of tests have all ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
