"""The sweep's cells as they were measured, and how far two runs of one cell lie apart."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.data.sweep import SweepCell
from policies.question import ALLREDUCE, Arm

# Without any cell that was measured twice: what short runs on a quiet machine differ by.
ASSUMED_NOISE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Network:
    """What the hosts of a cell were joined by."""

    rtt_s: float
    rate_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured; `cpus` are the hosts' cores, in rank order."""

    workload: str
    batch: int
    arm: Arm
    cpus: tuple[float, ...]
    network: Network


def cell_of(row: SweepCell) -> Cell:
    """What all runs of a cell have in common."""
    arm, network = Arm(row.n, row.algorithm or ALLREDUCE), network_of(row)
    return Cell(row.workload, row.batch, arm, row.cpus, network)


def network_of(row: SweepCell) -> Network:
    """The network that a row was measured on."""
    return Network(row.rtt_s, row.rate_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of a cell: the geometric mean of its runs, and that mean's log error."""

    step_s: float
    error: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """All cells, and the deviation of the logarithm from run to run of one cell, by exchange."""

    rows: tuple[SweepCell, ...]
    truth: Mapping[Cell, Truth]
    noise: Mapping[str, float]


def kind_of(arm: Arm) -> str:
    """Arms that are measured equally well."""
    return "one worker" if arm.n_workers == 1 else arm.exchange


def sweep_of(rows: Sequence[SweepCell]) -> Sweep:
    """What several runs of each cell say."""
    logs: dict[Cell, list[float]] = {}
    for row in rows:
        if math.isfinite(row.mean_s) and row.mean_s > 0.0:
            logs.setdefault(cell_of(row), []).append(math.log(row.mean_s))
    noise = {kind: _noise(logs, kind) for kind in {kind_of(cell.arm) for cell in logs}}
    truth = {
        cell: Truth(
            math.exp(float(np.mean(found))), noise[kind_of(cell.arm)] / math.sqrt(len(found))
        )
        for cell, found in logs.items()
    }
    return Sweep(tuple(rows), truth, noise)


def _noise(logs: Mapping[Cell, Sequence[float]], kind: str) -> float:
    """Pooled over the cells of a kind that have several runs, else over all such cells."""
    several = {cell: found for cell, found in logs.items() if len(found) > 1}
    own = [found for cell, found in several.items() if kind_of(cell.arm) == kind]
    return _pooled(own or several.values())


def _pooled(groups: Iterable[Sequence[float]]) -> float:
    squares = [(len(found) - 1, float(np.var(found, ddof=1))) for found in groups]
    if not squares:
        return ASSUMED_NOISE
    return math.sqrt(sum(k * x for k, x in squares) / sum(k for k, _ in squares))
