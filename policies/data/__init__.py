"""Measured sweeps that the prior's constants were fitted to, and their reader.

No policy module reads a file: tests and benchmarks do, to check constants and choices.
"""

import csv
from dataclasses import dataclass
from importlib.resources import files
from typing import cast

import numpy as np

from policies.schema import Algorithm, KindSpeed, Link, Network, Node, Workload

# What the lab hosts had: part of a core each, and a link of 1 Gbit/s between any two.
LAB_CPUS = 0.45
LAB_BANDWIDTH_BYTES_PER_S = 1.25e8


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured step: the mean over steps within an epoch, in seconds.

    `use` is "fit" (the constants were fitted to it) or "check" (they were not).
    """

    use: str
    model: str
    global_batch: int
    payload_bytes: int
    rtt_s: float
    n_workers: int
    step_s: float


def exchange_cells() -> tuple[Cell, ...]:
    """All cells of `exchange_2026_11.csv`."""
    text = files(__name__).joinpath("exchange_2026_11.csv").read_text(encoding="utf-8")
    return tuple(
        Cell(
            row["use"],
            row["model"],
            int(row["global_batch"]),
            int(row["payload_bytes"]),
            float(row["rtt_ms"]) / 1000.0,
            int(row["n_workers"]),
            float(row["step_ms_mean"]) / 1000.0,
        )
        for row in csv.DictReader(text.splitlines())
    )


@dataclass(frozen=True, slots=True)
class DirectCell:
    """A measured step of `direct`: a little computing, then one sum, in seconds.

    All hosts have interfaces of one rate, in bytes of payload per second.
    """

    n_workers: int
    payload_bytes: int
    rtt_s: float
    bandwidth_bytes_per_s: float
    compute_s: float
    algorithm: Algorithm
    step_s: float


# Of a packet of 1,500 bytes, to which a rate refers.
PAYLOAD_SHARE = 1448 / 1500


def direct_cells() -> tuple[DirectCell, ...]:
    """All cells of `direct_2026_11.csv`, from `scripts/bench_exchange.py --quick`."""
    text = files(__name__).joinpath("direct_2026_11.csv").read_text(encoding="utf-8")
    return tuple(
        DirectCell(
            int(row["n_workers"]),
            int(row["payload_bytes"]),
            float(row["rtt_ms"]) / 1000.0,
            float(row["rate_mbit_per_s"]) * 1e6 / 8.0 * PAYLOAD_SHARE,
            float(row["compute_ms"]) / 1000.0,
            cast(Algorithm, row["algorithm"]),
            float(row["step_ms"]) / 1000.0,
        )
        for row in csv.DictReader(text.splitlines())
    )


def lab_workload(model: str) -> Workload:
    """A model with c0 and c1 from its cells of one worker (least squares of relative errors)."""
    alone = [c for c in exchange_cells() if c.use == "fit" and c.model == model]
    alone = [c for c in alone if c.n_workers == 1]
    step_s = np.array([c.step_s for c in alone])
    rows = np.array([c.global_batch for c in alone], dtype=float)
    scaled = np.column_stack([1.0 / step_s, rows / step_s])
    (c0_s, c1_s), *_ = np.linalg.lstsq(scaled, np.ones(len(alone)), rcond=None)
    speed = KindSpeed("lab", float(c0_s), float(c1_s), LAB_CPUS)
    payload = alone[0].payload_bytes
    return Workload(model, "keras", "exact", payload // 4, payload, 6, (), (speed,), 3.0)


def lab_nodes(n_nodes: int = 4) -> tuple[Node, ...]:
    """The lab hosts, at 0.1 $ per hour."""
    names = "abcdefgh"[:n_nodes]
    return tuple(Node(x, "10.0.0.1", LAB_CPUS, 0.0, None, 0.1, "label", "lab") for x in names)


def lab_network(rtt_s: float, n_nodes: int = 4) -> Network:
    """All pairs of the lab hosts at one RTT."""
    names = "abcdefgh"[:n_nodes]
    links = tuple(
        Link(a, b, "default", rtt_s, 0.0, 0.0, LAB_BANDWIDTH_BYTES_PER_S)
        for a in names
        for b in names
        if a != b
    )
    return Network(links, "2026-11-30T04:20:00Z", 0.0)
