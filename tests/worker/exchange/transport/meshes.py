"""Meshes over loopback: all ranks in this process, or in processes of their own."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from launcher.worker.exchange.transport.address import Address, listen
from launcher.worker.exchange.transport.mesh import Mesh, MeshOptions, open_mesh
from tests.ports import free_ports

TIMEOUT_S = 300.0
ROOT = Path(__file__).resolve().parents[4]


def listening(n: int, n_paths: int = 1) -> list[list[socket.socket]]:
    """Listening sockets by rank and path; path p is 127.0.0.(p+1).

    Nobody else gets their ports when they are closed, and they can be listened at again.
    """
    return [
        [listen(Address(f"127.0.0.{p + 1}", port)) for p, port in enumerate(free_ports(n_paths))]
        for _ in range(n)
    ]


def addresses_of(sockets: Sequence[Sequence[socket.socket]]) -> list[list[str]]:
    return [["{}:{}".format(*s.getsockname()) for s in own] for own in sockets]


@contextlib.contextmanager
def open_meshes(
    n: int, n_paths: int = 1, options: MeshOptions | None = None
) -> Iterator[list[Mesh]]:
    """n ranks in this process; all of them are closed at the end, at the same time."""
    sockets, secret = listening(n, n_paths), secrets.token_bytes(32)
    addresses = addresses_of(sockets)
    with ThreadPoolExecutor(n) as pool:
        opened = [
            pool.submit(
                open_mesh,
                rank,
                addresses,
                secret,
                timeout_s=TIMEOUT_S,
                listening=sockets[rank],
                options=options,
            )
            for rank in range(n)
        ]
        meshes = [future.result() for future in opened]
        try:
            yield meshes
        finally:
            list(pool.map(Mesh.close, meshes))


@dataclass
class Worker:
    """A rank in a process of its own, that does what it is told on standard input."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextlib.contextmanager
def start_workers(n: int) -> Iterator[tuple[list[Worker], str]]:
    """n processes that have opened a mesh, and their secret."""
    sockets, secret = listening(n), secrets.token_bytes(32)
    addresses = addresses_of(sockets)
    for own in sockets:
        for listener in own:
            listener.close()
    workers = [Worker(_start(worker_command(rank, addresses, secret))) for rank in range(n)]
    try:
        for worker in workers:
            assert worker.answer() == "open"
        yield workers, secret.hex()
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()


def worker_command(rank: int, addresses: Sequence[Sequence[str]], secret: bytes) -> list[str]:
    """The command of one rank's process, to be run in `ROOT`."""
    order = json.dumps({"rank": rank, "addresses": addresses, "secret": secret.hex()})
    return [sys.executable, "-m", "tests.worker.exchange.transport.mesh_worker", order]


def _start(command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
