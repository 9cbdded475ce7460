"""How long a sum over four hosts takes by each algorithm, and what segments are worth.

Hosts h1, h2 and h3, h4 are two sites: 0.5 ms inside, `--rtt` between. Each interface carries
200 Mbit/s. Needs root (the lab).
"""

import argparse
import functools
import json
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from launcher.worker.exchange.algorithms.call import Call, Scratch, Vector
from launcher.worker.exchange.algorithms.one_shot import one_shot
from launcher.worker.exchange.algorithms.ring import ring
from launcher.worker.exchange.algorithms.two_level import two_level
from launcher.worker.exchange.algorithms.two_shot import two_shot
from launcher.worker.exchange.transport.mesh import Mesh, open_mesh

ROOT = Path(__file__).resolve().parent.parent
N = 4
NIC_BYTES_PER_S = 25e6
SITES = ((0, 1), (2, 3))
ALGORITHMS: dict[str, Callable[[Call, Vector, Vector], None]] = {
    "one_shot": one_shot,
    "two_shot": two_shot,
    "ring": ring,
    "two_level": functools.partial(two_level, sites=SITES),
}
WHOLE = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt", type=float, nargs="+", default=[0.0005, 0.01, 0.05])
    parser.add_argument("--payload", type=float, nargs="+", default=[0.1, 1.0, 10.0], help="MB")
    parser.add_argument("--segment", type=int, nargs="+", default=[1 << 18, 1 << 20, WHOLE])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return run_worker(json.loads(options.worker))
    print("RTT between sites | payload | algorithm | segment | median ms")
    for rtt_s in options.rtt:
        for line in measure(rtt_s, options.payload, options.segment):
            print(f"{1e3 * rtt_s:g} ms | {line}", flush=True)
    return 0


def measure(rtt_s: float, payloads: Sequence[float], segments: Sequence[int]) -> list[str]:
    from tests.lab.lab import Lab

    with Lab(N, rtt_s=0.0005, nic_bytes_per_s=NIC_BYTES_PER_S) as lab:
        for here in SITES[0]:
            for there in SITES[1]:
                lab.set(f"{lab.names[here]}-{lab.names[there]}", rtt_s=rtt_s)
        order = {
            "addresses": [[f"{lab.ip(name)}:18760"] for name in lab.names],
            "secret": secrets.token_hex(32),
            "payloads": payloads,
            "segments": segments,
        }
        processes = [
            lab.popen(
                name,
                [sys.executable, __file__, "--worker", json.dumps({**order, "rank": rank})],
                cwd=ROOT,
                env={"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(lab.names)
        ]
        outputs = [process.communicate(timeout=280)[0] for process in processes]
    return list(outputs[0].splitlines())


def run_worker(order: dict[str, Any]) -> int:
    secret = bytes.fromhex(order["secret"])
    numbers = iter(range(1 << 20))
    with open_mesh(order["rank"], order["addresses"], secret) as mesh:
        for payload_mb in order["payloads"]:
            for name, algorithm in ALGORITHMS.items():
                for segment in order["segments"]:
                    if payload_mb < 2 and segment < WHOLE:
                        continue
                    took_s = time_sums(mesh, algorithm, payload_mb, segment, numbers)
                    print(f"{payload_mb:g} MB | {name} | {segment >> 10} KiB | {1e3 * took_s:.1f}")
    return 0


def time_sums(
    mesh: Mesh,
    algorithm: Callable[[Call, Vector, Vector], None],
    payload_mb: float,
    segment_bytes: int,
    numbers: Any,
) -> float:
    """The median time of a sum, in seconds; all ranks begin at the same time."""
    vector = np.full(int(payload_mb * 1e6) // 4, mesh.rank, np.float32)
    total, scratch, took_s = np.empty_like(vector), Scratch(), []
    for _ in range(8 if payload_mb < 2 else 4):
        flags = np.zeros(1, np.float32)
        two_shot(Call(mesh, next(numbers), scratch), flags, np.empty_like(flags))
        begin_s = time.monotonic()
        algorithm(Call(mesh, next(numbers), scratch, segment_bytes), vector, total)
        took_s.append(time.monotonic() - begin_s)
        if not (total == 6.0).all():
            raise SystemExit("a sum is wrong")
    return statistics.median(took_s[1:])


if __name__ == "__main__":
    sys.exit(main())
