"""How fast the exchange's transport is: loopback, one link and two rails in the lab.

Each rank is a process of its own. On loopback and on one link the yardstick is iperf3, or plain
sockets where iperf3 is not installed. `links` and `rails` need root (the lab).
"""

import argparse
import itertools
import json
import os
import resource
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from launcher.worker.exchange.transport.mesh import Mesh, open_mesh

MESSAGE_BYTES = 8 << 20
SMALL_BYTES = 1024
N_SMALL = 2000
N_STEADY = 5
PORT = 18730
ROOT = Path(__file__).resolve().parent.parent
RAIL_BYTES_PER_S = 12.5e6  # 100 Mbit/s


@dataclass(frozen=True, slots=True)
class Measured:
    """What rank 1 saw of what rank 0 sent.

    Args:
        cpu: in cores, of the busier of the two processes.
        arrived_s: when each message was complete, by the clock of the machine.
    """

    mbit_per_s: float
    cpu: float
    round_trip_ms: float
    share_by_path: tuple[float, ...]
    arrived_s: tuple[float, ...]

    def __str__(self) -> str:
        gaps_s = [b - a for a, b in itertools.pairwise(self.arrived_s)]
        shares = " + ".join(f"{share:.0%}" for share in self.share_by_path)
        return (
            f"{self.mbit_per_s:,.0f} Mbit/s, {self.cpu:.1%} of a core, 1 KB there and back in "
            f"{self.round_trip_ms:.3f} ms, paths {shares}, longest gap {max(gaps_s):.2f} s"
        )

    def back_s(self, mended_s: float, mbit_per_s: float) -> float:
        """Seconds after `mended_s` until `N_STEADY` messages in a row came at such a rate."""
        for begin_s, end_s in zip(self.arrived_s, self.arrived_s[N_STEADY:], strict=False):
            rate = 8e-6 * MESSAGE_BYTES * N_STEADY / (end_s - begin_s)
            if begin_s >= mended_s and rate >= mbit_per_s:
                return begin_s - mended_s
        return float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["loopback"], help=", ".join(MEASUREMENTS))
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return run_worker(json.loads(options.worker))
    goals = [goal for what in options.what for goal in MEASUREMENTS[what](options.seconds)]
    for name, value, goal, is_met in goals:
        print(f"{'met   ' if is_met else 'MISSED'} {name}: {value} (goal {goal})")
    return 0 if all(is_met for *_, is_met in goals) else 1


Goal = tuple[str, str, str, bool]  # what, value, goal, whether it is met


def loopback(seconds: float) -> list[Goal]:
    one = measure(["127.0.0.1"], ["127.0.0.1"], seconds)
    yardstick = plain_mbit_per_s(seconds)
    print(f"loopback   {one}\n           yardstick {yardstick:,.0f} Mbit/s")
    return [
        ("loopback", f"{one.mbit_per_s:,.0f} Mbit/s", ">= 2,000", one.mbit_per_s >= 2000),
        ("1 KB there and back", f"{one.round_trip_ms:.3f} ms", "< 0.3", one.round_trip_ms < 0.3),
    ]


def one_link(seconds: float) -> list[Goal]:
    goals: list[Goal] = []
    for mbit, rtt_s in ((200, 0.0005), (200, 0.05), (1000, 0.01)):
        with lab(mbit * 1e6 / 8, rtt_s) as hosts:
            own = measure([hosts.ip("h1")], [hosts.ip("h2")], seconds, hosts)
            yardstick = iperf_mbit_per_s(hosts, seconds)
        name = f"{mbit} Mbit/s, {1e3 * rtt_s:g} ms"
        print(f"{name}   {own}\n           yardstick {yardstick:,.0f} Mbit/s")
        share = own.mbit_per_s / yardstick
        goals.append((name, f"{share:.0%} of iperf3", ">= 80 %", share >= 0.8))
        if mbit == 200:
            goals.append((name, f"{own.cpu:.1%} of a core", "<= 10 %", own.cpu <= 0.1))
    return goals


def two_rails(seconds: float) -> list[Goal]:
    with lab(RAIL_BYTES_PER_S, 0.0005, RAIL_BYTES_PER_S) as hosts:
        one_way = [hosts.ip("h1")], [hosts.ip("h2")]
        both = [hosts.ip("h1", n) for n in (0, 1)], [hosts.ip("h2", n) for n in (0, 1)]
        alone = measure(*one_way, seconds, hosts)
        twins = measure(*both, seconds, hosts)
        mended_s: list[float] = []
        cut = measure(*both, 20.0, hosts, lambda: mended_s.append(cut_a_rail(hosts)))
    with lab(RAIL_BYTES_PER_S, 0.0005, RAIL_BYTES_PER_S / 4) as hosts:
        uneven = measure(*both, seconds, hosts)
    print(f"one rail   {alone}\n100 + 100  {twins}\n100 + 25   {uneven}\nrail cut   {cut}")
    gain, small_gain = twins.mbit_per_s / alone.mbit_per_s, uneven.mbit_per_s / alone.mbit_per_s
    added, back_s = twins.cpu - alone.cpu, cut.back_s(mended_s[0], 0.9 * twins.mbit_per_s)
    return [
        ("100 + 100 Mbit/s", f"{gain:.2f} × one rail", ">= 1.9", gain >= 1.9),
        ("100 + 25 Mbit/s", f"{small_gain:.2f} × the fast one", ">= 1.2", small_gain >= 1.2),
        ("a cut rail in full use again", f"after {back_s:.1f} s", "<= 10", back_s <= 10.0),
        ("CPU of the second path", f"{added:.1%} of a core", "<= 5 %", added <= 0.05),
    ]


def cut_a_rail(hosts: Any) -> float:
    """Cuts the second network for a while; when it was mended, by the clock of the machine."""
    for change in (hosts.cut, hosts.mend):
        time.sleep(6.0)
        change("h1-h2", network=1)
    return time.monotonic()


MEASUREMENTS: dict[str, Callable[[float], list[Goal]]] = {
    "loopback": loopback,
    "links": one_link,
    "rails": two_rails,
}


def lab(rate: float, rtt_s: float, second_rate: float | None = None) -> Any:
    from tests.lab.lab import Lab, SecondNetwork

    second = second_rate and SecondNetwork(("h1", "h2"), rtt_s, second_rate)
    return Lab(2, rtt_s=rtt_s, rate_bytes_per_s=rate, second_network=second or None)


def measure(
    from_ips: Sequence[str],
    to_ips: Sequence[str],
    seconds: float,
    hosts: Any = None,
    disturb: Callable[[], None] | None = None,
) -> Measured:
    """Two processes, one of which sends to the other as fast as it can."""
    order = {
        "addresses": [
            [f"{ip}:{PORT + i}" for ip in ips] for i, ips in enumerate((from_ips, to_ips))
        ],
        "secret": secrets.token_hex(32),
        "seconds": seconds,
    }
    processes = [start(json.dumps({**order, "rank": rank}), rank, hosts) for rank in (0, 1)]
    if disturb is not None:
        disturb()
    outputs = [process.communicate(timeout=seconds + 60)[0] for process in processes]
    sender, receiver = (json.loads(text.splitlines()[-1]) for text in outputs)
    receiver["cpu"] = max(sender["cpu"], receiver["cpu"])
    receiver["share_by_path"] = tuple(sender["share_by_path"])
    receiver["round_trip_ms"] = sender["round_trip_ms"]
    return Measured(**receiver)


def start(order: str, rank: int, hosts: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", order]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if hosts is None:
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    process: subprocess.Popen[str] = hosts.popen(
        f"h{rank + 1}",
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    return process


def run_worker(order: dict[str, Any]) -> int:
    secret = bytes.fromhex(order["secret"])
    with open_mesh(order["rank"], order["addresses"], secret, timeout_s=20.0) as mesh:
        seen = send_all(mesh, order["seconds"]) if mesh.rank == 0 else receive_all(mesh)
        print(json.dumps(asdict(seen)))
    return 0


def send_all(mesh: Mesh, seconds: float) -> Measured:
    round_trip_ms = round_trips(mesh)
    payload = np.random.default_rng(0).integers(0, 255, MESSAGE_BYTES, np.uint8)
    more = np.ones(1, np.uint8)
    begin_s, begin_cpu_s = time.monotonic(), cpu_s()
    number, waiting = 1 << 20, []
    while more[0]:
        more[0] = time.monotonic() - begin_s < seconds
        waiting.append(mesh.send(1, number, more.copy()))
        waiting.append(mesh.send(1, number + 1, payload))
        number += 2
        if len(waiting) > 4:
            waiting.pop(0).wait()
            waiting.pop(0).wait()
    for departure in waiting:
        departure.wait()
    cpu = (cpu_s() - begin_cpu_s) / (time.monotonic() - begin_s)
    sent = [figures.sent_bytes for figures in mesh.figures()]
    return Measured(0.0, cpu, round_trip_ms, tuple(n / sum(sent) for n in sent), ())


def receive_all(mesh: Mesh) -> Measured:
    round_trips(mesh)
    expected = np.random.default_rng(0).integers(0, 255, MESSAGE_BYTES, np.uint8)
    buffers = [np.empty(MESSAGE_BYTES, np.uint8) for _ in range(3)]
    flags = [np.zeros(1, np.uint8) for _ in range(3)]
    first = 1 << 20

    def post(i: int) -> tuple[Any, Any]:
        tag = first + 2 * i
        return mesh.receive(0, tag, flags[i % 3]), mesh.receive(0, tag + 1, buffers[i % 3])

    pending, arrived_s = [post(0), post(1)], []
    begin_s, begin_cpu_s = time.monotonic(), cpu_s()
    for i in range(1 << 30):
        flag, payload = pending.pop(0)
        flag.wait()
        pending.append(post(i + 2)) if flags[i % 3][0] else None
        payload.wait()
        arrived_s.append(time.monotonic())
        if not flags[i % 3][0]:
            break
    took_s = arrived_s[-1] - begin_s
    cpu = (cpu_s() - begin_cpu_s) / took_s
    if not all((buffer == expected).all() for buffer in buffers[: min(3, i + 1)]):
        raise SystemExit("a message was damaged")
    n_bytes = MESSAGE_BYTES * len(arrived_s)
    return Measured(8e-6 * n_bytes / took_s, cpu, 0.0, (), tuple(arrived_s))


def round_trips(mesh: Mesh) -> float:
    """The median round trip of a small message, in milliseconds."""
    peer = 1 - mesh.rank
    there, back = np.zeros(SMALL_BYTES, np.uint8), np.zeros(SMALL_BYTES, np.uint8)
    took_s = []
    for tag in range(200 if mesh.figures()[0].rtt_s > 0.005 else N_SMALL):
        begin_s = time.perf_counter()
        arrival = mesh.receive(peer, tag, back)
        if mesh.rank == 1:
            arrival.wait()
        departure = mesh.send(peer, tag, there)
        arrival.wait()
        departure.wait()
        took_s.append(time.perf_counter() - begin_s)
    return 1e3 * statistics.median(took_s)


def cpu_s() -> float:
    """CPU time of this process, without its companion's, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def plain_mbit_per_s(seconds: float) -> float:
    """What iperf3 gets over loopback, or nan where it is not installed."""
    if shutil.which("iperf3") is None:
        return float("nan")
    return _iperf(None, "127.0.0.1", seconds)


def iperf_mbit_per_s(hosts: Any, seconds: float) -> float:
    return _iperf(hosts, hosts.ip("h2"), seconds)


def _iperf(hosts: Any, ip: str, seconds: float) -> float:
    popen = subprocess.Popen if hosts is None else None
    serve, ask = ["iperf3", "-s", "-1", "-p", "18790"], ["iperf3", "-J", "-p", "18790", "-c", ip]
    ask += ["-t", f"{seconds:.0f}"]
    quiet = {"stdout": subprocess.DEVNULL}
    server = popen(serve, **quiet) if popen else hosts.popen("h2", serve, **quiet)
    time.sleep(1.0)
    if popen:
        result = subprocess.run(ask, capture_output=True, text=True, check=False)
    else:
        result = hosts.run("h1", ask, timeout_s=seconds + 30)
    server.wait(10)
    return float(json.loads(result.stdout)["end"]["sum_received"]["bits_per_second"] / 1e6)


if __name__ == "__main__":
    sys.exit(main())
