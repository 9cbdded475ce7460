"""How long a sum over four hosts takes by each algorithm, and what segments are worth.

Hosts h1, h2 and h3, h4 are two sites: 0.5 ms inside, `--rtt` between. Each pair of hosts has a
link of its own of 25 Mbit/s in each direction, so that twelve links at once are no burden for the
lab's relay. Needs root (the lab).
"""

import argparse
import functools
import json
import secrets
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
LINK_BYTES_PER_S = 3.125e6
SITES = ((0, 1), (2, 3))
ALGORITHMS: dict[str, Callable[[Call, Vector, Vector], None]] = {
    "one_shot": one_shot,
    "two_shot": two_shot,
    "ring": ring,
    "two_level": functools.partial(two_level, sites=SITES),
}
NEAR_RTT_S = 0.0005
WHOLE = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt", type=float, nargs="+", default=[0.0005, 0.05])
    parser.add_argument("--payload", type=float, nargs="+", default=[0.1, 1.0, 4.0], help="MB")
    parser.add_argument("--segment", type=int, nargs="+", default=[1 << 20, WHOLE])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return run_worker(json.loads(options.worker))
    print("RTT between sites | payload | algorithm | segment | ms | by formula")
    for rtt_s in options.rtt:
        for line in measure(rtt_s, options.payload, options.segment):
            print(f"{1e3 * rtt_s:g} ms | {line}", flush=True)
    return 0


def measure(rtt_s: float, payloads: Sequence[float], segments: Sequence[int]) -> list[str]:
    from tests.lab.lab import Lab

    with Lab(N, rtt_s=NEAR_RTT_S, rate_bytes_per_s=LINK_BYTES_PER_S) as lab:
        for here in SITES[0]:
            for there in SITES[1]:
                lab.set(f"{lab.names[here]}-{lab.names[there]}", rtt_s=rtt_s)
        order = {
            "addresses": [[f"{lab.ip(name)}:18760"] for name in lab.names],
            "secret": secrets.token_hex(32),
            "payloads": payloads,
            "segments": segments,
            "far_s": rtt_s / 2,
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
                    formula_s = predicted_s(name, 1e6 * payload_mb, order["far_s"])
                    size = "whole" if segment == WHOLE else f"{segment >> 10} KiB"
                    print(
                        f"{payload_mb:g} MB | {name} | {size} | {1e3 * took_s:.0f} "
                        f"| {1e3 * formula_s:.0f}"
                    )
    return 0


def time_sums(
    mesh: Mesh,
    algorithm: Callable[[Call, Vector, Vector], None],
    payload_mb: float,
    segment_bytes: int,
    numbers: Any,
) -> float:
    """The mean time of a sum among others of its kind, in seconds."""
    vector = np.full(int(payload_mb * 1e6) // 4, mesh.rank, np.float32)
    total, scratch = np.empty_like(vector), Scratch()
    n_warm, n_timed = (3, 12) if payload_mb < 2 else (1, 3)
    begin_s = time.monotonic()
    for i in range(n_warm + n_timed):
        if i == n_warm:
            begin_s = time.monotonic()
        algorithm(Call(mesh, next(numbers), scratch, segment_bytes), vector, total)
        if not (total == 6.0).all():
            raise SystemExit("a sum is wrong")
    return (time.monotonic() - begin_s) / n_timed


def predicted_s(name: str, payload_bytes: float, far_s: float) -> float:
    """The formulas of `exchange.algorithms` where each pair has a link of its own.

    Args:
        name: of the algorithm.
        payload_bytes: of the vector.
        far_s: one way between sites, in seconds.
    """
    near_s, whole_s = NEAR_RTT_S / 2, payload_bytes / LINK_BYTES_PER_S
    return {
        "one_shot": far_s + whole_s,
        "two_shot": 2 * far_s + 2 / N * whole_s,
        "ring": 3 * far_s + 3 * near_s + 2 * (N - 1) / N * whole_s,  # every other hop is far
        "two_level": 2 * near_s + far_s + 3 / 2 * whole_s,  # half a vector in each of three phases
    }[name]


if __name__ == "__main__":
    sys.exit(main())
