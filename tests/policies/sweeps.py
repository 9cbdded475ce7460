"""A small made-up sweep with the columns of `scripts/sweep.py`, its truth known."""

import csv
import io
import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from policies.cost_model import StepParts
from policies.data.sweep import SweepCell, experience, read_cells, workloads_of
from policies.rows import prior_of

COLUMNS = (
    *("workload", "batch", "n", "strategy", "algorithm", "cpus", "rtt_ms", "rate_mbit", "run"),
    *("n_params", "steps", "mean_ms", "median_ms", "std_ms"),
)
WORKLOADS = {"tiny_mlp": (14_000, 0.004, 2e-5), "wide_mlp": (1_900_000, 0.012, 1.5e-4)}
CPUS = ("0.45", "0.6", "0.2")
WAYS = (("allreduce", ""), ("direct", "one_shot"))


@dataclass(frozen=True, slots=True)
class Truth:
    """Factors on compute, latency, transfer and software; noise of a cell and of a workload."""

    factors: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    noise: float = 0.03
    by_workload: float = 0.0

    def step_s(self, parts: StepParts) -> float:
        times_s = (parts.compute_s, parts.latency_s, parts.transfer_s, parts.software_s)
        return float(np.dot(self.factors, times_s))


def sweep_csv(truth: Truth = Truth(), rng: np.random.Generator | None = None) -> str:
    """The file: cells of one worker, and of two to four on four networks in both ways."""
    rng = rng or np.random.default_rng(0)
    alone = [
        row(name, batch, 1, ("allreduce", ""), cpus, 0.5, 1000, 1e3 * alone_s(name, batch, cpus))
        for name, batch, cpus in product(WORKLOADS, (32, 64, 128, 256), CPUS)
    ]
    shared = [
        row(name, batch, n, way, " ".join(["0.45"] * n), rtt, rate, 1.0)
        for name, batch, n, way, rtt, rate in product(
            WORKLOADS, (128, 256), (2, 4), WAYS, (0.5, 20.0), (100, 1000)
        )
    ]
    loads = workloads_of(read_cells(text_of([*alone, *shared])))
    own = {name: math.exp(rng.normal(0.0, truth.by_workload or 1e-9)) for name in WORKLOADS}
    for each, cell in zip(shared, read_cells(text_of(shared)), strict=True):
        parts = prior_of(experience(cell, loads[cell.workload]))
        chance = own[cell.workload] * math.exp(rng.normal(0.0, truth.noise))
        each["mean_ms"] = each["median_ms"] = 1e3 * truth.step_s(parts) * chance
    return text_of([*alone, *shared])


def alone_s(name: str, batch: int, cpus: str) -> float:
    _, c0_s, c1_s = WORKLOADS[name]
    return (c0_s + c1_s * batch) * 0.45 / float(cpus)


def row(name, batch, n, way, cpus, rtt_ms, rate_mbit, ms) -> dict:
    strategy, algorithm = way
    values = (name, batch, n, strategy, algorithm, cpus, rtt_ms, rate_mbit, 0)
    measured = (WORKLOADS[name][0], 20, ms, ms, 0.05 * ms)
    return dict(zip(COLUMNS, (*values, *measured), strict=True))


def text_of(rows: list[dict]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def cells_of(truth: Truth = Truth(), seed: int = 0) -> tuple[SweepCell, ...]:
    return read_cells(sweep_csv(truth, np.random.default_rng(seed)))
