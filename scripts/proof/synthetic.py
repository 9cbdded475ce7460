"""A made-up sweep with the columns of the real one, to try the benchmark on.

Assumed: steps follow the prior's law, with computing, latency, transfer and software each off by
factors that differ from workload to workload (deviations 0.06, 0.2, 0.2 and 0.3 of the logarithm,
half of its variance common to all workloads), and 4 % from run to run. It says nothing of the real
world.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from policies.data import PAYLOAD_SHARE
from policies.data.sweep import SweepCell, experience, workloads_of
from policies.rows import prior_of
from policies.schema import Workload

NOISE: Final = 0.04
OFF: Final = (0.06, 0.2, 0.2, 0.3)
HALF: Final = 0.5**0.5
EQUAL, UNEQUAL = (0.45, 0.45, 0.45, 0.45), (0.6, 0.6, 0.4, 0.2)
NETWORKS: Final = tuple(
    (rtt_ms / 1e3, mbit * 125e3 * PAYLOAD_SHARE)
    for rtt_ms, mbit in product((0.5, 10.0, 50.0), (100.0, 1000.0))
)
AGAIN_EVERY, RUNS, STEPS = 8, 3, 20


@dataclass(frozen=True, slots=True)
class Script:
    """Parameters, seconds of a step on a whole core (constant and a row's), and batches."""

    n_params: int
    c0_s: float
    c1_s: float
    batches: tuple[int, int]


SCRIPTS: Final = {
    "tiny_mlp": Script(11_000, 0.001, 4e-6, (128, 1024)),
    "deep_mlp": Script(450_000, 0.004, 2e-5, (256, 2048)),
    "wide_mlp": Script(1_860_000, 0.012, 8e-5, (128, 512)),
    "small_cnn": Script(117_000, 0.004, 4e-4, (64, 512)),
    "large_cnn": Script(10_000_000, 0.03, 2.5e-3, (32, 128)),
    "lstm": Script(56_000, 0.005, 6e-4, (64, 256)),
    "conv_lstm": Script(33_000, 0.01, 6e-3, (16, 64)),
    "embedding": Script(964_000, 0.01, 2e-5, (256, 2048)),
}


def synthetic(seed: int, names: Sequence[str] = tuple(SCRIPTS)) -> tuple[SweepCell, ...]:
    """Rows of all cells of some workloads."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0.0, HALF, len(OFF))
    rows = [row for name in names for row in _alone(name)]
    loads = workloads_of(rows)
    for name in names:
        factors = np.exp(np.array(OFF) * (common + rng.normal(0.0, HALF, len(OFF))))
        rows += _of_several(name, factors, loads)
    return tuple(_measured(rows, rng))


def _alone(name: str) -> Iterator[SweepCell]:
    """One worker on every kind of host."""
    script = SCRIPTS[name]
    sizes = sorted({b // k for b in script.batches for k in (1, 2, 4)})
    for batch, cpus in product(sizes, sorted({*EQUAL, *UNEQUAL})):
        step_s = (script.c0_s + script.c1_s * batch) / cpus**0.9
        yield replace(_row(name, batch, (cpus,), "", *NETWORKS[1]), mean_s=step_s)


def _of_several(
    name: str, factors: np.ndarray, loads: Mapping[str, Workload]
) -> Iterator[SweepCell]:
    """Two to four workers in both ways, on every network."""
    for batch, hosts, n, way, network in product(
        SCRIPTS[name].batches, (EQUAL, UNEQUAL), (2, 3, 4), ("", "one_shot"), NETWORKS
    ):
        cpus = (0.6, 0.2) if hosts == UNEQUAL and n == 2 else hosts[:n]
        row = _row(name, batch, cpus, way, *network)
        p = prior_of(experience(row, loads[name]))
        step_s = float(factors @ (p.compute_s, p.latency_s, p.transfer_s, p.software_s))
        yield replace(row, mean_s=step_s)


def _row(
    name: str, batch: int, cpus: tuple[float, ...], way: str, rtt_s: float, rate: float
) -> SweepCell:
    return SweepCell(
        workload=name,
        batch=batch,
        n=len(cpus),
        strategy="direct" if way else "allreduce",
        algorithm="one_shot" if way else None,
        cpus=cpus,
        rtt_s=rtt_s,
        rate_bytes_per_s=rate,
        run=0,
        n_params=SCRIPTS[name].n_params,
        payload_bytes=4 * SCRIPTS[name].n_params,
        n_slices=0,
        steps=STEPS,
        mean_s=1.0,
        median_s=1.0,
        std_s=0.0,
    )


def _measured(rows: Sequence[SweepCell], rng: np.random.Generator) -> Iterator[SweepCell]:
    for i, row in enumerate(rows):
        for run in range(RUNS if i % AGAIN_EVERY == 0 else 1):
            noise = float(np.exp(rng.normal(0.0, NOISE)))
            yield replace(row, run=run, mean_s=row.mean_s * noise)
