"""A rank that obeys orders, one a line, and answers each with a line.

`send RANK TAG`, `receive RANK TAG`, `pour RANK COUNT` and `drink RANK COUNT` (messages of 1 MiB),
`figures`, `hold SECONDS`, `close`.
"""

import ctypes
import itertools
import json
import sys
import time
from dataclasses import asdict

from launcher.errors import LauncherError
from launcher.worker.exchange.transport.mesh import Mesh, open_mesh

MESSAGE_BYTES = 1 << 20
_tags = itertools.count(1 << 40)  # of what is poured; the other side counts alike


def obey(mesh: Mesh, order: str) -> str:
    verb, *arguments = order.split()
    if verb == "hold":  # a C call that keeps Python's lock
        ctypes.PyDLL(None).usleep(int(1e6 * float(arguments[0])))
        return "held"
    if verb == "figures":
        return json.dumps([asdict(figures) for figures in mesh.figures()])
    rank, tag = (int(argument) for argument in arguments)
    if verb == "pour":
        return pour(mesh, rank, tag)
    if verb == "drink":
        return drink(mesh, rank, tag)
    if verb == "send":
        mesh.send(rank, tag, b"x" * 1000).wait()
        return "sent"
    begin_s = time.monotonic()
    try:
        mesh.receive(rank, tag, bytearray(1000)).wait()
    except LauncherError as error:
        return json.dumps([time.monotonic() - begin_s, type(error).__name__, *error.args])
    return "received"


def pour(mesh: Mesh, to: int, count: int) -> str:
    departures = []
    for i in range(count):
        departures.append(mesh.send(to, next(_tags), bytes([i % 256]) * MESSAGE_BYTES))
        if i >= 4:
            departures[i - 4].wait()
    for departure in departures:
        departure.wait()
    return "poured"


def drink(mesh: Mesh, source: int, count: int) -> str:
    n_right = 0
    for i in range(count):
        buffer = bytearray(MESSAGE_BYTES)
        mesh.receive(source, next(_tags), buffer).wait()
        n_right += buffer == bytes([i % 256]) * MESSAGE_BYTES
    return f"{n_right} right"


def main() -> None:
    order = json.loads(sys.argv[1])
    secret = bytes.fromhex(order["secret"])
    mesh = open_mesh(order["rank"], order["addresses"], secret, timeout_s=120.0)
    print("open", flush=True)
    for line in sys.stdin:
        if line.strip() == "close":
            break
        print(obey(mesh, line), flush=True)
    mesh.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main()
