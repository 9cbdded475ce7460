"""Start-up: from the first node held to the first step, by its parts, and what is learned of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Floats
from policies.constants import CONSTANTS
from policies.cost_model import held_cpus
from policies.robust import Correction, Posterior, before_any_row, robust_fit, standard
from policies.rows import kinship, machines_of
from policies.schema import Experience, Node, Plan, Workload

# How far each part may be off, as standard deviation of its logarithm.
TRAIN: Final = 0.3
PROCESS: Final = 0.3
MEASURED_PROCESS: Final = 0.15
SETUP: Final = 0.15
GROUP: Final = 1.0
# Seconds that each further worker may add; of many workers that start at the same time only
# the logarithm of their number counts.
FURTHER_S: Final = 2.0
FURTHER_LINEAR: Final = 4
# From one start of the very same plan to the next.
NOISE: Final = 0.12


@dataclass(frozen=True, slots=True)
class StartupParts:
    """Seconds of a start-up by cause.

    `train_s` is Ray Train's controller and worker group, `process_s` a worker's process up to
    the script's first line (measured by the profiler where `measured`), `setup_s` from there to
    the first step, `group_s` what more than one worker add; with `direct` another part than with
    TensorFlow's collectives.
    """

    train_s: float
    process_s: float
    setup_s: float
    group_s: float = 0.0
    n_workers: int = 1
    measured: bool = False
    direct: bool = False

    @property
    def total_s(self) -> float:
        """The whole start-up."""
        return self.train_s + self.process_s + self.setup_s + self.group_s


def startup_parts(plan: Plan, nodes: Sequence[Node], workload: Workload) -> StartupParts:
    """The prior's start-up of a plan.

    A process is slowed where it holds less than a whole CPU. How slow processes really start on
    these nodes (a quota that Ray does not know of, a cold disk) the profiler has measured; it
    slows Ray Train's own processes alike.
    """
    k, n = CONSTANTS, plan.n_workers
    cpus = min(1.0, max(min(held_cpus(plan, nodes).values()), 0.01))
    if workload.startup_s is None:
        process_s = k.process_s / cpus
    else:
        process_s = workload.startup_s * max(1.0, _profiled_cpus(workload) / cpus)
    pace = max(1.0, process_s / k.process_s)
    direct = plan.strategy != "allreduce"
    joining_s = k.mesh_s if direct else k.collective_s
    group_s = (joining_s + k.worker_s * (n - 1)) * pace if n > 1 else 0.0
    measured = workload.startup_s is not None
    return StartupParts(k.train_s * pace, process_s, workload.setup_s, group_s, n, measured, direct)


def _profiled_cpus(workload: Workload) -> float:
    """CPUs, at most one, that the process held whose start the profiler measured."""
    return min([1.0, *(speed.cpus for speed in workload.node_kinds if speed.cpus > 0)])


@dataclass(frozen=True, slots=True)
class LearnedStartup:
    """Posterior of the regression of log(observed / prior) on the parts of a start-up."""

    posterior: Posterior

    def of(self, parts: StartupParts) -> Correction:
        """What experience says of a start-up with these parts."""
        x = startup_features(parts)
        return Correction(self.posterior.mean(x), math.sqrt(self.posterior.variance(x)))


def startup_features(parts: StartupParts) -> Floats:
    """Features of log(observed / prior), shape `(6,)`.

    As for steps: each part's fraction of the whole, times how far that part may be off.
    """
    process = MEASURED_PROCESS if parts.measured else PROCESS
    further_s = FURTHER_S * FURTHER_LINEAR * math.log1p((parts.n_workers - 1) / FURTHER_LINEAR)
    off_s = [
        TRAIN * parts.train_s,
        process * parts.process_s,
        SETUP * parts.setup_s,
        0.0 if parts.direct else GROUP * parts.group_s,
        GROUP * parts.group_s if parts.direct else 0.0,
        further_s,
    ]
    return np.array(off_s) / max(parts.total_s, 1e-9)


def learn_startup(
    experience: Sequence[Experience], script: str, nodes: Sequence[Node]
) -> LearnedStartup:
    """The posterior after the start-ups that were timed.

    Those of other scripts and of other clusters weigh less.
    """
    timed = [
        (e, e.startup_s)
        for e in experience
        if e.startup_s is not None and math.isfinite(e.startup_s) and e.startup_s > 0.0
    ]
    if not timed:
        n_features = len(startup_features(StartupParts(1.0, 1.0, 0.0)))
        return LearnedStartup(before_any_row(standard(n_features), NOISE))
    parts = [startup_parts(e.plan, e.nodes, e.workload) for e, _ in timed]
    x = np.array([startup_features(each) for each in parts])
    y = np.array([math.log(s / p.total_s) for (_, s), p in zip(timed, parts, strict=True)])
    machines = machines_of(nodes)
    weight = np.array([kinship(e, script, machines) for e, _ in timed])
    return LearnedStartup(robust_fit(x, y, weight, NOISE))
