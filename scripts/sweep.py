"""Measure steps in the lab: models × batches × networks × speeds × numbers of workers.

The rows go to a CSV file one by one, so a sweep that was ended goes on where it stopped. Cells
are measured by processes that stay: one group of them for each number of workers and way to
exchange gradients, in four passes (`sweeping/design.py`), so that an hour's rows are balanced over
workloads and networks too. Some cells are measured again later, which tells how noisy they are. A
cell that its processes do not survive is left out. Needs root and a quiet machine.
"""

import argparse
import csv
import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ranks import Ask, ranks  # noqa: E402 - beside this file
from sweeping.design import Cell, Way, all_cells, group_of, is_quick  # noqa: E402

from tests.lab.lab import Lab  # noqa: E402 - the checkout's own package

# Many times the 100 ms in which a host's share of a core is counted out: shorter steps than that go
# by at full speed, and then wait.
MEASURE_S, MIN_STEPS, MAX_STEPS = 1.5, 2, 500
LONG_S = 1.0  # of steps beyond this a few are made
# A cell is measured until two measurements agree, for TCP's windows have to grow.
AGREE, TRIES, SETTLE_S = 0.08, 8, 15.0
ANSWER_S = 180.0  # processes that say nothing for so long are ended
MBIT = 125_000.0


@dataclass(frozen=True, slots=True)
class Row(Cell):
    """A cell and its steps, in milliseconds."""

    n_params: int = 0
    payload_bytes: int = 0
    n_slices: int = 0
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
    for way, group in itertools.groupby(left, key=group_of):
        own = list(group)
        while own and time.monotonic() < ends_at_s:
            own = measure_group(way, own, options.out, ends_at_s)
    return 0


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


def measure_group(way: Way, cells: Sequence[Cell], out: Path, ends_at_s: float) -> list[Cell]:
    """All cells that one group of processes measures, until the time is over.

    Returns:
        What is left when the processes end early: all after the cell that ended them.
    """
    script = str(ROOT / "scripts" / "sweeping" / "worker.py")
    n, strategy, algorithm = way

    def command(rank: int, hosts: str) -> list[str]:
        return [sys.executable, script, str(rank), hosts, strategy, algorithm]

    with Lab(n) as lab, ranks(lab, command, ANSWER_S) as ask:
        built: set[tuple[str, int]] = set()
        for number, cell in enumerate(cells):
            if time.monotonic() > ends_at_s:
                break
            try:
                if (cell.workload, cell.batch) not in built:
                    build(lab, ask, cell)
                    built.add((cell.workload, cell.batch))
                row = measured(lab, ask, cell)
            except SystemExit as error:
                if isinstance(error.code, int):
                    raise  # a signal, and not what processes said where they ended
                print(f"left out: {cell}: {error}", file=sys.stderr, flush=True)
                return list(cells[number + 1 :])
            append(out, row)
            print(
                f"{number + 1}/{len(cells)} {cell.workload} {cell.batch} n={n} {strategy} "
                f"{algorithm} [{cell.cpus}] {cell.rtt_ms:g} ms {cell.rate_mbit:g} Mbit/s: "
                f"{row.mean_ms:.1f} ms",
                file=sys.stderr,
                flush=True,
            )
    return []


def measured(lab: Lab, ask: Ask, cell: Cell) -> Row:
    """The steps of a cell on its hosts and network."""
    for name, cpus in zip(lab.names, cell.cpus.split(), strict=True):
        lab.set_cpu(name, float(cpus))
        lab.set_nic(name, cell.rate_mbit * MBIT)
    if cell.n > 1:
        lab.set("*-*", rtt_s=cell.rtt_ms / 1e3)
    found = settled(ask, cell)
    ms = {f"{name}_ms": round(1e3 * found[f"{name}_s"], 3) for name in ("mean", "median", "std")}
    return Row(
        **asdict(cell),
        **{name: found[name] for name in ("n_params", "payload_bytes", "n_slices", "steps")},
        **ms,
    )


def settled(ask: Ask, cell: Cell) -> dict[str, Any]:
    """The last of several measurements, of which two in a row agree; the first is a short one."""
    begin_s = time.monotonic()
    before = made(ask, cell, MIN_STEPS)
    for number in range(1, TRIES + 1):
        wish = math.ceil(MEASURE_S / before["mean_s"])
        least = MIN_STEPS if before["mean_s"] > LONG_S else MIN_STEPS + 1
        found = made(ask, cell, max(least, min(MAX_STEPS, wish)))
        is_long = found["steps"] * found["mean_s"] >= MEASURE_S / 2
        agrees = abs(math.log(found["mean_s"] / before["mean_s"])) < AGREE
        if is_long and (agrees or time.monotonic() - begin_s > SETTLE_S or number == TRIES):
            break
        before = found
    return found


def made(ask: Ask, cell: Cell, count: int) -> dict[str, Any]:
    """What so many steps took, in seconds."""
    order: dict[str, Any] = {"workload": cell.workload, "batch": cell.batch, "steps": count}
    if cell.strategy == "direct":  # as the launcher begins: by the ranks' speeds
        order["shares"] = [float(each) for each in cell.cpus.split()]
    return dict(json.loads(ask(json.dumps(order), "{")))


def build(lab: Lab, ask: Ask, cell: Cell) -> None:
    """Have all ranks build and trace a cell's model, at full speed."""
    for name in lab.names:
        lab.set_cpu(name, None)
    made(ask, cell, MIN_STEPS)


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
