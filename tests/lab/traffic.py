"""Traffic between hosts, to see what a network gives: echoes and TCP flows."""

import statistics
import subprocess
import sys
from collections.abc import Sequence

from tests.lab.lab import Hosts

PORT = 5201
WARM_UP_S, MEASURE_S = 1.2, 1.8  # slow start at 1 Gbit/s and 50 ms takes 0.8 s

ECHO = """
import socket, sys
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    data, peer = own.recvfrom(2048)
    own.sendto(data, peer)
"""

PING = """
import socket, sys, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.settimeout(float(sys.argv[4]))
for number in range(int(sys.argv[3])):
    sent = time.monotonic()
    own.sendto(str(number).encode(), (sys.argv[1], int(sys.argv[2])))
    try:
        while int(own.recv(2048)) != number: ...
        print(time.monotonic() - sent, flush=True)
    except TimeoutError:
        print("lost", flush=True)
"""

# Counts what arrives in each tenth of a second, until the sender is done.
SINK = """
import socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
flow, _ = server.accept()
buffer, started, n_bytes = bytearray(1 << 20), time.monotonic(), 0
warm_up_s, end_s = float(sys.argv[3]), float(sys.argv[4])
while (now := time.monotonic() - started) < end_s:
    if now < warm_up_s:
        n_bytes, since = 0, now
    n_bytes += flow.recv_into(buffer)
print(n_bytes / (now - since))
"""

SOURCE = """
import socket, sys
flow, data = socket.create_connection((sys.argv[1], int(sys.argv[2]))), bytes(1 << 20)
try:
    while True: flow.sendall(data)
except (BrokenPipeError, ConnectionResetError): ...
"""


def python(program: str, *words: object) -> list[str]:
    """The command that runs a small program."""
    return [sys.executable, "-I", "-S", "-c", program, *map(str, words)]


def echoes_s(
    lab: Hosts, src: str, dst: str, *, n: int = 100, wait_s: float = 1.0, network: int = 0
) -> list[float | None]:
    """Round trips of UDP echoes one after the other, in seconds; None where none came back."""
    where = (lab.ip(dst, network), PORT)
    server = _listen(lab, dst, python(ECHO, *where))
    try:
        done = lab.run(src, python(PING, *where, n, wait_s), timeout_s=60 + n * wait_s)
    finally:
        _end(server)
    return [None if line == "lost" else float(line) for line in done.stdout.split()]


def echo_rtt_s(
    lab: Hosts, src: str, dst: str, *, n: int = 100, network: int = 0
) -> tuple[float, float]:
    """Median and 90th percentile of the round trip, in seconds."""
    found = sorted(s for s in echoes_s(lab, src, dst, n=n, network=network) if s is not None)
    return statistics.median(found), found[len(found) * 9 // 10]


def flow_bytes_per_s(lab: Hosts, src: str, dst: str, *, network: int = 0) -> float:
    """Payload per second of one TCP flow after its slow start."""
    return flows_bytes_per_s(lab, [(src, dst)], network=network)[0]


def flows_bytes_per_s(
    lab: Hosts, pairs: Sequence[tuple[str, str]], *, network: int = 0
) -> list[float]:
    """Payload per second of TCP flows at the same time."""
    end_s = WARM_UP_S + MEASURE_S
    sinks, sources = [], []
    try:
        for number, (_, dst) in enumerate(pairs):
            where = (lab.ip(dst, network), PORT + number)
            sinks.append(_listen(lab, dst, python(SINK, *where, WARM_UP_S, end_s)))
        for number, (src, dst) in enumerate(pairs):
            words = python(SOURCE, lab.ip(dst, network), PORT + number)
            sources.append(lab.popen(src, words, stdout=subprocess.DEVNULL))
        return [float(sink.communicate(timeout=60)[0]) for sink in sinks]
    finally:
        for process in (*sources, *sinks):
            _end(process)


def _listen(lab: Hosts, host: str, command: list[str]) -> subprocess.Popen[str]:
    """Start a server and wait until it listens."""
    process: subprocess.Popen[str] = lab.popen(host, command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
