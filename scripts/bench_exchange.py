"""A step's exchange over the launcher's own connections against TensorFlow's ring, in the lab.

Every rank computes a little, then sums a vector over all ranks inside a `tf.function`, in turn
with TensorFlow's ring and with each algorithm of the direct exchange, in the same processes and
over the same links; the rate is that of each host's interface, which its links share. The floor
of a step is computing + one-way latency + 2(n−1)/n · payload / rate. The goals count the algorithm
that the recommender's cost model chooses for the cell, not the one that turned out best.

All of it takes a quarter of an hour. With --json the numbers are kept cell by cell, and what the
file holds already is not measured again.
"""

import argparse
import importlib
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ranks import ranks  # noqa: E402 - beside this file

PAYLOADS_BYTES = (100_000, 1_000_000, 10_000_000, 50_000_000)
RTTS_S = (0.0005, 0.010, 0.050)
RATES_BYTES_PER_S = (12.5e6, 125e6)
COUNTS = (2, 4)
WAYS = ("tensorflow", "one_shot", "two_shot", "ring")
CPUS = 0.45
HEADERS = 1448 / 1500  # of a packet is payload
LIMIT_S = 2.0  # for the measured steps of a way, after the first
MIN_STEPS, MAX_STEPS = 2, 12
FASTER = 3  # times, with 4 workers far apart and little to exchange
SIDE = 160  # of the matrices that stand for computing
TF_PORT, DIRECT_PORT = 7001, 7101
SECRET = b"of the benchmark of exchanges".ljust(32)


@dataclass(frozen=True, slots=True)
class Row:
    """Step times of one cell, in seconds."""

    n: int
    payload_bytes: int
    rtt_s: float
    rate_bytes_per_s: float
    compute_s: float
    step_s_by_way: dict[str, float]

    @property
    def floor_s(self) -> float:
        """The least a synchronous step can take."""
        traffic = 2 * (self.n - 1) / self.n * self.payload_bytes
        rate = self.rate_bytes_per_s * HEADERS
        return self.compute_s + self.rtt_s / 2 + traffic / rate

    @property
    def ring_s(self) -> float:
        """TensorFlow's."""
        return self.step_s_by_way["tensorflow"]

    @property
    def key(self) -> tuple[int, int, float, float]:
        """Names the cell."""
        return self.n, self.payload_bytes, self.rtt_s, self.rate_bytes_per_s

    @property
    def best(self) -> str:
        """The fastest algorithm of the direct exchange."""
        return min(WAYS[1:], key=lambda way: self.step_s_by_way[way])

    @property
    def chosen(self) -> str:
        """The algorithm that the cost model takes for the fastest."""
        return chosen(*self.key)

    @property
    def direct_s(self) -> float:
        """The step with it."""
        return self.step_s_by_way[self.chosen]


def chosen(n: int, payload_bytes: int, rtt_s: float, rate_bytes_per_s: float) -> str:
    """What the recommender would choose between hosts alike."""
    import numpy as np

    from policies import direct

    ways, pairs = np.full((1, n, n), rtt_s / 2), np.full((1, n, n), 1.0 / rate_bytes_per_s)
    nics = np.full((2, 1, n), 1.0 / rate_bytes_per_s)
    mesh = direct.Mesh(np.ones((1, n)), ways, pairs, nics, np.zeros(1))
    edges = np.full((1, n), rtt_s / 2), np.full((1, n), 1.0 / rate_bytes_per_s)
    found = {
        "one_shot": direct.one_shot(mesh, payload_bytes),
        "two_shot": direct.two_shot(mesh, payload_bytes),
        "ring": direct.ring(*edges, payload_bytes),
    }
    return min(found, key=lambda way: found[way].total_s(CPUS).item())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 Gbit/s, up to 1 MB")
    parser.add_argument("--counts", help="numbers of workers, such as 4 (default: 2,4)")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no cell after so many")
    parser.add_argument("--json", type=Path, help="keep the numbers in this file; go on with it")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hosts", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        serve(options.rank, options.hosts.split(","))
        return 0
    payloads = PAYLOADS_BYTES[:2] if options.quick else PAYLOADS_BYTES
    rates = RATES_BYTES_PER_S[1:] if options.quick else RATES_BYTES_PER_S
    counts = [int(n) for n in options.counts.split(",")] if options.counts else COUNTS
    wanted = list(itertools.product(counts, rates, RTTS_S, payloads))
    rows = measured(wanted, options.json, time.monotonic() + 60 * options.minutes)
    print_table(rows)
    if len(rows) < len(wanted):
        print(f"only {len(rows)} of {len(wanted)} cells were measured in {options.minutes:g} min")
    return print_goals(rows)


def measured(
    wanted: Sequence[tuple[int, float, float, int]], kept: Path | None, until_s: float
) -> list[Row]:
    """Cells (n, rate, RTT, payload), as far as the time allows; those that were kept at once."""
    known = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
    by_key = {row.key: row for row in (Row(**fields) for fields in known)}
    for n in dict.fromkeys(n for n, *_ in wanted):
        cells = [cell[1:] for cell in wanted if cell[0] == n]
        missing = [c for c in cells if (n, c[2], c[1], c[0]) not in by_key]
        for row in measured_now(n, missing, until_s):
            print(line(row), file=sys.stderr, flush=True)
            by_key[row.key] = row
            if kept is not None:
                rows = [asdict(row) for row in by_key.values()]
                kept.write_text(json.dumps(rows, indent=1) + "\n")
    keys = [(n, payload, rtt_s, rate) for n, rate, rtt_s, payload in wanted]
    return [by_key[key] for key in keys if key in by_key]


def measured_now(
    n: int, cells: Sequence[tuple[float, float, int]], until_s: float
) -> Iterator[Row]:
    """Cells of n workers, in one lab and by the same processes."""
    from tests.lab.lab import Lab

    if not cells or time.monotonic() > until_s:
        return
    with Lab(n, rtt_s=RTTS_S[0], cpus=(CPUS,) * n) as lab, ranks(lab, command) as ask:
        for rate, rtt_s, payload in cells:
            if time.monotonic() > until_s:
                return
            for name in lab.names:
                lab.set_nic(name, rate)
            lab.set("*-*", rtt_s=rtt_s)
            found = json.loads(ask(str(payload), "{"))
            yield Row(n, payload, rtt_s, rate, found.pop("compute"), found)


def command(rank: int, hosts: str) -> list[str]:
    """What runs a rank."""
    return [sys.executable, __file__, "--rank", str(rank), "--hosts", hosts]


def serve(rank: int, hosts: Sequence[str]) -> None:
    """One rank: measures a payload whenever rank 0 is told to."""
    task = {"type": "worker", "index": rank}
    workers = [f"{host}:{TF_PORT}" for host in hosts]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import numpy as np
    import tensorflow as tf

    from launcher.worker.devices import set_up_devices
    from launcher.worker.exchange.collective import CollectiveExchange
    from launcher.worker.exchange.direct import DirectExchange
    from launcher.worker.exchange.transport.mesh import open_mesh

    set_up_devices(1)
    exchanges: dict[str, Any] = {"tensorflow": CollectiveExchange.from_tf_config()}
    mesh = open_mesh(rank, [[f"{host}:{DIRECT_PORT}"] for host in hosts], SECRET)
    for way in WAYS[1:]:
        module = importlib.import_module(f"launcher.worker.exchange.algorithms.{way}")
        exchanges[way] = DirectExchange(mesh, getattr(module, way))
    control = exchanges["one_shot"]
    for way in WAYS[2:]:  # one numbering of the sums over the mesh
        exchanges[way]._numbers = control._numbers
    while True:
        told = int(sys.stdin.readline()) if rank == 0 else 0
        payload = int(control.sum_arrays([np.array([told])], "what to measure")[0][0])
        vector = tf.ones(payload // 4)
        found = {"compute": alone(lambda start, own=vector: own * compute(start))}
        for way, exchange in exchanges.items():
            found[way] = timed(stepper(exchange, vector), control)
        if rank == 0:
            print(json.dumps(found), flush=True)


def compute(start: Any) -> Any:
    """A little work, which the exchange waits for."""
    import tensorflow as tf

    matrix = tf.fill((SIDE, SIDE), start)
    for _ in range(4):
        matrix = tf.linalg.matmul(matrix, matrix) / float(SIDE)
    return tf.reduce_mean(matrix)


def alone(work: Any) -> float:
    """What computing takes by itself, in seconds."""
    import tensorflow as tf

    function = tf.function(work)
    times = []
    for _ in range(30):
        started_s = time.perf_counter()
        function(tf.constant(1.0))
        times.append(time.perf_counter() - started_s)
    return statistics.fmean(times[5:])


def stepper(exchange: Any, vector: Any) -> Any:
    import tensorflow as tf

    @tf.function
    def step() -> Any:
        (total,) = exchange.sum_tensors([vector * compute(tf.constant(1.0))], "payload")
        return total[0]

    return step


def timed(step: Any, control: Any) -> float:
    """The median step, in seconds; all ranks make equally many.

    The first step traces. Where the second one is long, it counts as one of the measured.
    """
    import numpy as np

    step().numpy()
    started_s = time.perf_counter()
    step().numpy()
    first_s = time.perf_counter() - started_s
    wish = max(MIN_STEPS, min(MAX_STEPS, math.ceil(LIMIT_S / first_s)))
    n_own = np.array([wish if control.rank == 0 else 0])
    n_steps = int(control.sum_arrays([n_own], "number of steps")[0][0])
    times = [first_s] if n_steps == MIN_STEPS else []
    while len(times) < n_steps:
        started_s = time.perf_counter()
        step().numpy()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


def line(row: Row) -> str:
    ways = "".join(f"{1e3 * row.step_s_by_way[way]:>9.1f}" for way in WAYS)
    return (
        f"{row.n:>2}{row.payload_bytes / 1e6:>6g} MB{1e3 * row.rtt_s:>6g} ms"
        f"{row.rate_bytes_per_s * 8e-6:>6g} Mbit/s{ways}{1e3 * row.floor_s:>9.1f} ms"
        f"  {row.chosen:<9}{row.ring_s / row.direct_s:>6.2f} ×{row.direct_s / row.floor_s:>7.2f}"
    )


def print_table(rows: Sequence[Row]) -> None:
    ways = "".join(f"{way[:8]:>9}" for way in WAYS)
    print(
        f"{'n':>2}{'payload':>9}{'RTT':>9}{'rate':>13}{ways}{'floor':>12}  chosen    "
        "faster  over floor"
    )
    for row in rows:
        print(line(row))
    print()


def print_goals(rows: Sequence[Row]) -> int:
    """One line per goal that the cells measured say something of; 1 if one was missed."""
    far = [r for r in rows if r.rtt_s >= 0.05 and r.n == 4 and r.payload_bytes <= 1e6]
    for row in [row for row in far if row.ring_s < FASTER * row.floor_s]:
        far.remove(row)
        print(f"the floor allows no {FASTER} ×: {line(row)}")
    goals = []
    if rows:
        slower = max(row.direct_s / row.ring_s for row in rows)
        over = statistics.median(row.direct_s / row.floor_s for row in rows)
        goals.append((f"direct_over_ring_at_worst: {slower:.2f} (target 1.05)", slower <= 1.05))
        goals.append((f"median_over_floor: {over:.2f} (target 1.3)", over <= 1.3))
    if far:
        faster = min(row.ring_s / row.direct_s for row in far)
        goals.append((f"times_faster_at_50_ms: {faster:.2f} (target {FASTER})", faster >= FASTER))
    for text, met in goals:
        print(f"goal {text} {'met' if met else 'missed'}")
    return 0 if all(met for _, met in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
