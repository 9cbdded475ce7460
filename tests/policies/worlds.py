"""Simulated worlds that differ from the prior, with disturbed runs and disturbed probes."""

import math
from dataclasses import dataclass, replace

import numpy as np

from policies.cost_model import step_parts
from policies.forecast import LogNormal, forecast
from policies.links import links_between
from policies.residual import learn
from policies.schema import Experience, Network, Situation
from tests.policies.cases import experience, lab, plan_on


@dataclass(frozen=True, slots=True)
class World:
    """Factors on compute, latency, transfer and software, shape `(4,)`, and run-to-run noise."""

    factors: np.ndarray
    noise: float = 0.09

    def step_s(self, case: Situation, names: str) -> float:
        """What a step takes when nothing disturbs it."""
        links = links_between(case.nodes, case.network)
        plan = plan_on(names, 0.45)
        p = step_parts(plan, case.nodes, links, case.workload, case.work.global_batch)
        times_s = np.array([p.compute_s, p.latency_s, p.transfer_s, p.software_s])
        return float(self.factors @ times_s)

    def run_s(self, case: Situation, names: str, rng: np.random.Generator) -> float:
        """What a run measures: the step with noise from run to run."""
        return self.step_s(case, names) * math.exp(rng.normal(0.0, self.noise))


def drawn_world(rng: np.random.Generator) -> World:
    return World(np.exp(rng.normal(0.0, [0.06, 0.22, 0.22, 0.28])))


def drawn_runs(
    world: World, rng: np.random.Generator, n_runs: int, p_disturbed: float
) -> list[Experience]:
    """Runs of random n and RTT; a disturbed one is slowed 1.5 to 5 times, or its probe is off."""
    seen = []
    for i in range(n_runs):
        case = lab(rtt_s=float(rng.choice([0.0005, 0.005, 0.02])))
        names = "abcd"[: int(rng.integers(1, 5))]
        step_s = world.run_s(case, names, rng)
        if rng.random() < p_disturbed:
            if rng.random() < 0.5:
                step_s *= math.exp(rng.uniform(math.log(1.5), math.log(5.0)))
            else:
                case = replace(case, network=disturbed(case.network, "a", "b"))
        seen.append(experience(case, names, step_s, run=f"run-{i}"))
    return seen


def disturbed(net: Network, a: str, b: str, rtt_s: float = 0.032, jitter_s: float = 0.072):
    """The network as a probe saw it that ran beside other work on one link."""
    links = [
        replace(x, rtt_s=rtt_s, jitter_s=jitter_s) if {x.src, x.dst} == {a, b} else x
        for x in net.links
    ]
    return replace(net, links=tuple(links))


def predicted(case: Situation, names: str, seen=(), cpus: float = 0.45) -> LogNormal:
    links = links_between(case.nodes, case.network)
    return forecast(plan_on(names, cpus), case, links, learn(case, seen)).step


@dataclass(frozen=True, slots=True)
class Score:
    """Mean error of the log of undisturbed steps, and how often a new run's interval held."""

    error: float
    coverage: float


def score(
    n_seen: int, p_disturbed: float, rng: np.random.Generator, n_worlds: int, names: str = "abc"
) -> Score:
    """How well runs that were not seen are predicted after `n_seen` that were."""
    errors, inside = [], []
    for _ in range(n_worlds):
        world = drawn_world(rng)
        seen = drawn_runs(world, rng, n_seen, p_disturbed)
        for rtt_s in (0.002, 0.03):
            case = lab(rtt_s=rtt_s)
            step = predicted(case, names, seen)
            interval = step.interval()
            errors.append(abs(math.log(world.step_s(case, names)) - step.mu))
            inside.append(interval.low <= world.run_s(case, names, rng) <= interval.high)
    return Score(float(np.mean(errors)), float(np.mean(inside)))
