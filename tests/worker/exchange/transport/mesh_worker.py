"""A rank that obeys orders: `receive RANK TAG`, `send RANK TAG`, `hold SECONDS`, `close`."""

import ctypes
import json
import sys
import time

from launcher.errors import LauncherError
from launcher.worker.exchange.transport.mesh import Mesh, open_mesh


def obey(mesh: Mesh, order: str) -> str:
    verb, *arguments = order.split()
    if verb == "hold":  # a C call that keeps Python's lock
        ctypes.PyDLL(None).usleep(int(1e6 * float(arguments[0])))
        return "held"
    rank, tag = (int(argument) for argument in arguments)
    if verb == "send":
        mesh.send(rank, tag, b"x" * 1000).wait()
        return "sent"
    begin_s = time.monotonic()
    try:
        mesh.receive(rank, tag, bytearray(1000)).wait()
    except LauncherError as error:
        return json.dumps([time.monotonic() - begin_s, type(error).__name__, *error.args])
    return "received"


def main() -> None:
    order = json.loads(sys.argv[1])
    secret = bytes.fromhex(order["secret"])
    mesh = open_mesh(order["rank"], order["addresses"], secret, timeout_s=20.0)
    print("open", flush=True)
    for line in sys.stdin:
        if line.strip() == "close":
            break
        print(obey(mesh, line), flush=True)
    mesh.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main()
