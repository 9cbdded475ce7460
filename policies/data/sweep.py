"""The measured sweep that warms the recommender up: its rows as experience.

`sweep.csv` holds the rows of `scripts/sweep.py`. Cells of one worker tell how fast a workload
computes at a number of CPUs, as the profiler would; cells of more are what a step took.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Final, cast

import numpy as np

from policies.data import PAYLOAD_SHARE
from policies.robust import Prior
from policies.schema import (
    Algorithm,
    Experience,
    KindSpeed,
    Link,
    Network,
    Node,
    Plan,
    PlanOptions,
    Strategy,
    Workload,
)
from policies.warmth import prior_after

FILE: Final = "sweep.csv"
BYTES_PER_PARAMETER: Final = 4
# Scripts and runs of the sweep are called so, which no script or run of a user is.
RUN: Final = "sweep"
MBIT: Final = 125_000.0


@dataclass(frozen=True, slots=True)
class SweepCell:
    """What was measured: a row of the sweep, its times in seconds.

    `cpus` are those of each rank, in the order of ranks; `payload_bytes` are what the gradients of
    this batch send, `n_slices` of which are slices of tables.
    """

    workload: str
    batch: int
    n: int
    strategy: Strategy
    algorithm: Algorithm | None
    cpus: tuple[float, ...]
    rtt_s: float
    rate_bytes_per_s: float
    run: int
    n_params: int
    payload_bytes: int
    n_slices: int
    steps: int
    mean_s: float
    median_s: float
    std_s: float


def read_cells(text: str) -> tuple[SweepCell, ...]:
    """The cells of a sweep's CSV file; those without a time are left out."""
    cells = (_cell(row) for row in csv.DictReader(text.splitlines()))
    return tuple(cell for cell in cells if cell.mean_s > 0.0)


def _cell(row: Mapping[str, str]) -> SweepCell:
    return SweepCell(
        workload=row["workload"],
        batch=int(row["batch"]),
        n=int(row["n"]),
        strategy=cast(Strategy, row["strategy"]),
        algorithm=cast(Algorithm, row["algorithm"]) if row["algorithm"] else None,
        cpus=tuple(float(each) for each in row["cpus"].split()),
        rtt_s=float(row["rtt_ms"]) / 1e3,
        rate_bytes_per_s=float(row["rate_mbit"]) * MBIT * PAYLOAD_SHARE,
        run=int(row["run"]),
        n_params=int(row["n_params"]),
        payload_bytes=int(row.get("payload_bytes") or BYTES_PER_PARAMETER * int(row["n_params"])),
        n_slices=int(row.get("n_slices") or 0),
        steps=int(row["steps"]),
        mean_s=float(row["mean_ms"]) / 1e3,
        median_s=float(row["median_ms"]) / 1e3,
        std_s=float(row["std_ms"]) / 1e3,
    )


@lru_cache(maxsize=1)
def sweep_cells() -> tuple[SweepCell, ...]:
    """The shipped cells; none where the file is not there."""
    file = files("policies.data").joinpath(FILE)
    return read_cells(file.read_text(encoding="utf-8")) if file.is_file() else ()


@lru_cache(maxsize=1)
def shipped_prior() -> Prior | None:
    """What is believed before any run of the user's own; None where nothing is shipped."""
    cells = sweep_cells()
    return prior_after(experience_of(cells)) if cells else None


def experience_of(cells: Sequence[SweepCell]) -> tuple[Experience, ...]:
    """Cells of several workers as measured segments, where their workload's speed is known."""
    workloads = workloads_of(cells)
    known = [cell for cell in cells if cell.n > 1 and _is_known(cell, workloads)]
    # Those on one network in a row, whose links then are found once.
    known.sort(key=lambda cell: (cell.cpus, cell.rtt_s, cell.rate_bytes_per_s))
    return tuple(experience(cell, workloads[cell.workload]) for cell in known)


def _is_known(cell: SweepCell, workloads: Mapping[str, Workload]) -> bool:
    load = workloads.get(cell.workload)
    return load is not None and {kind_of(c) for c in cell.cpus} <= {s.kind for s in load.node_kinds}


def experience(cell: SweepCell, workload: Workload) -> Experience:
    """A cell as one measured segment; an embedding's payload is that of its batch."""
    workload = replace(workload, payload_bytes=cell.payload_bytes, n_slices=cell.n_slices)
    return Experience(
        run=RUN,
        nodes=nodes_of(cell.cpus),
        network=network_of(cell.n, cell.rtt_s, cell.rate_bytes_per_s),
        workload=workload,
        plan=plan_of(cell),
        global_batch=cell.batch,
        steps=cell.steps,
        step_s=cell.mean_s,
    )


def plan_of(cell: SweepCell) -> Plan:
    """What was run; batch statistics, where a workload has them, were those of all rows."""
    nodes = tuple(node.id for node in nodes_of(cell.cpus))
    options = PlanOptions(min(cell.cpus), algorithm=cell.algorithm)
    return Plan(cell.n, nodes, cell.strategy, options)


def kind_of(cpus: float) -> str:
    """The kind of a host with so many CPUs."""
    return f"lab-{cpus:g}"


@lru_cache(maxsize=64)
def nodes_of(cpus: tuple[float, ...]) -> tuple[Node, ...]:
    """Hosts h1, h2, … with so many CPUs each, at 0.1 $ per hour."""
    return tuple(
        Node(f"h{i}", f"10.99.0.{i}", each, 0.0, None, 0.1, "label", kind_of(each))
        for i, each in enumerate(cpus, start=1)
    )


@lru_cache(maxsize=256)
def network_of(n_hosts: int, rtt_s: float, rate_bytes_per_s: float) -> Network:
    """All pairs of the hosts alike."""
    names = [f"h{i}" for i in range(1, n_hosts + 1)]
    links = tuple(
        Link(a, b, "default", rtt_s, 0.0, 0.0, rate_bytes_per_s)
        for a in names
        for b in names
        if a != b
    )
    return Network(links, "2026-11-30T00:00:00Z", 0.0)


def workloads_of(cells: Iterable[SweepCell]) -> dict[str, Workload]:
    """Each workload's speed by CPUs, fitted to its cells of one worker."""
    alone: dict[str, dict[float, list[SweepCell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.n == 1:
            alone[cell.workload][cell.cpus[0]].append(cell)
    return {name: _workload(name, by_cpus) for name, by_cpus in alone.items()}


def _workload(name: str, by_cpus: Mapping[float, Sequence[SweepCell]]) -> Workload:
    n_params = max(cell.n_params for cells in by_cpus.values() for cell in cells)
    speeds = tuple(speed_of(by_cpus[cpus]) for cpus in sorted(by_cpus))
    payload = BYTES_PER_PARAMETER * n_params
    script = f"{RUN}/{name}"
    return Workload(script, "keras", "exact", n_params, payload, 10, (), speeds, 3.0)


def speed_of(cells: Sequence[SweepCell]) -> KindSpeed:
    """c0 and c1 of steps of one worker, by least squares of relative errors, none below zero."""
    step_s = np.array([cell.mean_s for cell in cells])
    rows = np.array([cell.batch for cell in cells], dtype=float)
    cpus = cells[0].cpus[0]
    scaled = np.column_stack([1.0 / step_s, rows / step_s])
    (c0_s, c1_s), *_ = np.linalg.lstsq(scaled, np.ones(len(cells)), rcond=None)
    if c0_s < 0.0 or c1_s < 0.0 or len(set(rows)) < 2:
        column = scaled[:, 0] if c1_s < 0.0 else scaled[:, 1]
        only = float(column.sum() / (column @ column))
        c0_s, c1_s = (only, 0.0) if c1_s < 0.0 else (0.0, only)
    return KindSpeed(kind_of(cpus), float(c0_s), float(c1_s), cpus)
