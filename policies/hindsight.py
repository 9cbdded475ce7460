"""What a plan would have taken in a past run, by all that is known now."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from policies.constants import CONSTANTS
from policies.cost_model import StepParts, nodes_cost_usd_per_h, step_parts
from policies.forecast import LogNormal, from_moments, startup_time
from policies.node_start import lingering_usd, node_start
from policies.past import PastRun, sound
from policies.paths import Paths
from policies.residual import Residual
from policies.robust import Prior
from policies.rows import prior_of
from policies.schema import Basis, Experience, Plan
from policies.startup import NOISE as STARTUP_NOISE
from policies.startup import startup_parts
from policies.survey import survey

# Plans are alike when each part of their steps is within a factor of √2; parts that differ by less
# than this much of a step do not count.
ALIKE: Final = math.sqrt(2.0)
TINY: Final = 0.05


@dataclass(frozen=True, slots=True)
class Judged:
    """Step and start-up of a plan in a past run, in seconds, and what the step rests on.

    `measured_in` names the runs in which a plan alike was measured; it is empty where the step
    is predicted.
    """

    plan: Plan
    parts: StepParts
    step: LogNormal
    startup: LogNormal
    usd_per_h: float
    lingering_usd: float
    measured_in: tuple[str, ...] = ()

    @property
    def basis(self) -> Basis:
        """What the step rests on."""
        return "measured" if self.measured_in else "predicted"


@dataclass(frozen=True, slots=True)
class _Row:
    """A measured segment, and what the cost model says of it."""

    segment: Experience
    parts: StepParts


@dataclass(frozen=True, slots=True)
class _Era:
    """What the model says of a time in which the cluster did not change, in seconds since 1970."""

    residual: Residual
    from_s: float
    until_s: float

    def has(self, each: Experience) -> bool:
        """Whether a segment was measured then, as far as is known."""
        at_s = each.measured_at_s
        return at_s is None or self.from_s <= at_s < self.until_s


class Hindsight:
    """Judges plans by every segment that was ever measured.

    Where the cluster has changed, a run is judged by what was measured on its side of the change.

    Args:
        segments: of all runs, those of the run that is judged among them.
        prior: what the model believes before any of them.
    """

    def __init__(self, segments: Sequence[Experience], prior: Prior | None = None) -> None:
        self._segments, self.prior = sound(segments), prior
        self._eras: dict[tuple[object, ...], _Era] = {}

    @cached_property
    def _rows_by_script(self) -> dict[str, list[_Row]]:
        found: dict[str, list[_Row]] = {}
        for each in self._segments:
            found.setdefault(each.workload.fingerprint, []).append(_Row(each, prior_of(each)))
        return found

    def judge(self, past: PastRun, plan: Plan, paths: Paths) -> Judged:
        """Step and start-up of a plan in a past run: measured in runs alike, else predicted.

        Args:
            past: the run.
            plan: on nodes of its cluster.
            paths: between its nodes.
        """
        situation, era = past.situation, self._era_of(past)
        nodes, workload = situation.nodes, situation.workload
        links, batch = paths.links_of(plan), situation.work.global_batch
        parts = step_parts(plan, nodes, links, workload, batch)
        rows = [x for x in self._alike(workload.fingerprint, parts) if era.has(x.segment)]
        predicted = era.residual.step(parts)
        step = LogNormal(math.log(parts.total_s) + predicted.mean, predicted.std)
        startup = startup_time(startup_parts(plan, nodes, workload), era.residual)
        if rows:
            noise = era.residual.noise_std(parts)
            step, startup = _measured_step(rows, parts, noise), _measured_startup(rows) or startup
        starting = node_start(plan, nodes, era.residual.node_start_by_type)
        if starting is not None:
            mu = math.log(CONSTANTS.node_start_s) + starting.mean
            startup = _sum(startup, LogNormal(mu, starting.std))
        return Judged(
            plan,
            parts,
            step,
            startup,
            nodes_cost_usd_per_h(plan, nodes),
            lingering_usd(plan, nodes),
            tuple(dict.fromkeys(row.segment.run for row in rows)),
        )

    def _era_of(self, past: PastRun) -> _Era:
        """The model of a run's time, fitted to all segments but those beyond a change."""
        began_s, until_s = past.segments[0].measured_at_s, math.inf
        while True:
            era = self._era_until(past, until_s)
            if began_s is None or began_s >= era.from_s:
                return era
            until_s = era.from_s

    def _era_until(self, past: PastRun, until_s: float) -> _Era:
        situation = past.situation
        machines = frozenset((n.ip, n.kind, n.is_up, n.node_type) for n in situation.nodes)
        key = situation.workload.fingerprint, machines, until_s
        if key not in self._eras:
            known = [x for x in self._segments if (x.measured_at_s or -math.inf) < until_s]
            residual = survey(situation, known, self.prior).residual
            from_s = -math.inf if residual.change is None else residual.change.at_s
            self._eras[key] = _Era(residual, from_s, until_s)
        return self._eras[key]

    def alike(self, script: str, parts: StepParts) -> list[Experience]:
        """Measured segments of the same script, n and exchange over links and nodes alike."""
        return [row.segment for row in self._alike(script, parts)]

    def _alike(self, script: str, parts: StepParts) -> list[_Row]:
        return [row for row in self._rows_by_script.get(script, ()) if are_alike(row.parts, parts)]


def are_alike(a: StepParts, b: StepParts) -> bool:
    """Whether two steps have the same n, exchange, and parts of about the same length."""
    if (a.n_workers, a.strategy, a.algorithm) != (b.n_workers, b.strategy, b.algorithm):
        return False
    tiny_s = TINY * min(a.total_s, b.total_s)
    pairs = (
        (a.compute_s, b.compute_s),
        (a.latency_s, b.latency_s),
        (a.transfer_s, b.transfer_s),
        (a.software_s, b.software_s),
        (a.hidden_s, b.hidden_s),
    )
    return all(abs(x - y) <= tiny_s or max(x, y) <= ALIKE * min(x, y) for x, y in pairs)


def _measured_step(alike: Sequence[_Row], parts: StepParts, noise: float) -> LogNormal:
    """The mean of the measured steps, each taken over by the ratio of the two priors.

    What one more run would take differs from it as runs of one plan differ from each other.
    """
    logs = [math.log(row.segment.step_s / row.parts.total_s) for row in alike]
    weights = [float(row.segment.steps) for row in alike]
    mean = math.fsum(x * w for x, w in zip(logs, weights, strict=True)) / math.fsum(weights)
    n_runs = len({row.segment.run for row in alike})
    return _with_mean(parts.total_s * math.exp(mean), noise * math.sqrt(1.0 + 1.0 / n_runs))


def _measured_startup(alike: Sequence[_Row]) -> LogNormal | None:
    """The mean of the start-ups that were timed."""
    timed_s = [row.segment.startup_s for row in alike if row.segment.startup_s]
    if not timed_s:
        return None
    mean_s = math.fsum(timed_s) / len(timed_s)
    return _with_mean(mean_s, STARTUP_NOISE * math.sqrt(1.0 + 1.0 / len(timed_s)))


def _sum(a: LogNormal, b: LogNormal) -> LogNormal:
    return from_moments(a.mean + b.mean, a.variance + b.variance)


def _with_mean(mean: float, sigma: float) -> LogNormal:
    return LogNormal(math.log(mean) - sigma**2 / 2.0, sigma)
