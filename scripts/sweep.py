"""Measure steps in the lab: models × batches × networks × speeds × numbers of workers.

The rows go to a CSV file one by one, so a sweep that was ended goes on where it stopped. Cells
are measured by processes that stay: one group of them for each number of workers and way to
exchange gradients. Some cells are measured again later, which tells how noisy they are. Needs
root and a quiet machine.
"""

import argparse
import csv
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ranks import Ask, ranks  # noqa: E402 - beside this file

from tests.lab.lab import Lab  # noqa: E402 - the checkout's own package

BATCHES_BY_WORKLOAD = {
    "tiny_mlp": (128, 1024),
    "deep_mlp": (256, 2048),
    "wide_mlp": (128, 512),
    "small_cnn": (64, 512),
    "large_cnn": (32, 128),
    "lstm": (64, 256),
    "conv_lstm": (16, 64),
    "embedding": (256, 2048),
}
RTTS_MS = (0.5, 10.0, 50.0)
RATES_MBIT = (100.0, 1000.0)
EQUAL, UNEQUAL = (0.45, 0.45, 0.45, 0.45), (0.6, 0.6, 0.4, 0.2)
COUNTS = (1, 2, 3, 4)
STRATEGIES = ("allreduce", "direct")
ALGORITHMS = ("one_shot", "two_shot")
LARGE = {"wide_mlp", "large_cnn"}  # whose gradients are worth `two_shot`
MEASURE_S, MIN_STEPS, MAX_STEPS = 2.0, 2, 40
SLOW_S = 1.0  # a step beyond this is written down from the first few
AGAIN_EVERY, RUNS = 8, 3  # every eighth cell is measured three times
MBIT = 125_000.0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured; `cpus` are the hosts' cores, in rank order."""

    workload: str
    batch: int
    n: int
    strategy: str
    algorithm: str
    cpus: str
    rtt_ms: float
    rate_mbit: float
    run: int = 0


@dataclass(frozen=True, slots=True)
class Row(Cell):
    """A cell and its steps, in milliseconds."""

    n_params: int = 0
    steps: int = 0
    mean_ms: float = 0.0
    median_ms: float = 0.0
    std_ms: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("sweep.csv"), help="the CSV file")
    parser.add_argument("--minutes", type=float, help="stop after this long")
    parser.add_argument("--quick", action="store_true", help="two workloads on two networks")
    options = parser.parse_args()
    cells = [cell for cell in all_cells() if not options.quick or is_quick(cell)]
    done = read_done(options.out)
    left = [cell for cell in cells if cell not in done]
    print(f"{len(cells)} cells, {len(left)} left", file=sys.stderr)
    ends_at_s = time.monotonic() + 60 * (options.minutes or math.inf)
    for (n, strategy, algorithm), own in itertools.groupby(left, key=group_of):
        measure_group(n, strategy, algorithm, list(own), options.out, ends_at_s)
    return 0


def all_cells() -> Iterator[Cell]:
    """Every cell, those of one group of processes and one model in a row."""
    ways = [(1, "allreduce", "")]
    ways += [(n, "allreduce", "") for n in COUNTS[1:]]
    ways += [(n, "direct", algorithm) for n in COUNTS[1:] for algorithm in ALGORITHMS]
    for run in range(RUNS):
        for n, strategy, algorithm in ways:
            cells = cells_of_group(n, strategy, algorithm, run)
            yield from (cell for i, cell in enumerate(cells) if run == 0 or i % AGAIN_EVERY == 0)


def cells_of_group(n: int, strategy: str, algorithm: str, run: int) -> Iterator[Cell]:
    for workload, batches in BATCHES_BY_WORKLOAD.items():
        if algorithm == "two_shot" and workload not in LARGE:
            continue
        if n == 1:
            sizes = sorted({b for batch in batches for b in (batch, batch // 2, batch // 4)})
            for batch, cpus in itertools.product(sizes, sorted({*EQUAL, *UNEQUAL})):
                yield Cell(workload, batch, 1, strategy, "", f"{cpus:g}", 0.5, 1000.0, run)
            continue
        for batch, hosts, rate, rtt in itertools.product(
            batches, (EQUAL, UNEQUAL), RATES_MBIT, RTTS_MS
        ):
            cpus = " ".join(f"{each:g}" for each in hosts[:n])
            if hosts is UNEQUAL and n == 2:
                cpus = "0.6 0.2"
            yield Cell(workload, batch, n, strategy, algorithm, cpus, rtt, rate, run)


def is_quick(cell: Cell) -> bool:
    near = (cell.rtt_ms, cell.rate_mbit) in {(0.5, 1000.0), (50.0, 100.0)}
    return cell.workload in {"small_cnn", "wide_mlp"} and near and cell.run == 0 and cell.n < 3


def group_of(cell: Cell) -> tuple[int, str, str]:
    """What one group of processes can measure."""
    return cell.n, cell.strategy, cell.algorithm


def read_done(path: Path) -> set[Cell]:
    """The cells that are in the file already."""
    if not path.exists():
        return set()
    kinds = {field.name: field.type for field in fields(Cell)}
    with path.open() as file:
        return {
            Cell(**{name: kinds[name](row[name]) for name in kinds})  # type: ignore[operator]
            for row in csv.DictReader(file)
        }


def measure_group(
    n: int, strategy: str, algorithm: str, cells: Sequence[Cell], out: Path, ends_at_s: float
) -> None:
    """All cells that one group of processes measures, until the time is over."""
    if time.monotonic() > ends_at_s:
        return
    script = str(ROOT / "scripts" / "sweeping" / "worker.py")

    def command(rank: int, hosts: str) -> list[str]:
        return [sys.executable, script, str(rank), hosts, strategy, algorithm]

    with Lab(n) as lab, ranks(lab, command) as ask:
        for number, cell in enumerate(cells):
            if time.monotonic() > ends_at_s:
                return
            row = measured(lab, ask, cell)
            append(out, row)
            print(
                f"{number + 1}/{len(cells)} {cell.workload} {cell.batch} n={n} {strategy} "
                f"{algorithm} [{cell.cpus}] {cell.rtt_ms:g} ms {cell.rate_mbit:g} Mbit/s: "
                f"{row.mean_ms:.1f} ms",
                file=sys.stderr,
                flush=True,
            )


def measured(lab: Lab, ask: Ask, cell: Cell) -> Row:
    """The steps of a cell: a few to settle, which also say how many can be made."""
    for name, cpus in zip(lab.names, cell.cpus.split(), strict=True):
        lab.set_cpu(name, float(cpus))
        lab.set_nic(name, cell.rate_mbit * MBIT)
    if cell.n > 1:
        lab.set("*-*", rtt_s=cell.rtt_ms / 1e3)

    def steps(count: int) -> dict[str, Any]:
        order = {"workload": cell.workload, "batch": cell.batch, "steps": count}
        return dict(json.loads(ask(json.dumps(order), "{")))

    found = steps(MIN_STEPS)
    if found["median_s"] < SLOW_S:
        wish = math.ceil(MEASURE_S / found["median_s"])
        found = steps(max(MIN_STEPS, min(MAX_STEPS, wish)))
    ms = {f"{name}_ms": round(1e3 * found[f"{name}_s"], 3) for name in ("mean", "median", "std")}
    return Row(**asdict(cell), n_params=found["n_params"], steps=found["steps"], **ms)


def append(path: Path, row: Row) -> None:
    """Write a row, and the header first."""
    names = [field.name for field in fields(Row)]
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, names)
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


if __name__ == "__main__":
    sys.exit(main())
