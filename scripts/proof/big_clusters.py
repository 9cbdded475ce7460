"""Made-up clusters of 10 to 1,000 nodes: how good choices are there, and how long they take.

Assumed: nodes of 8 CPUs and one kind on three networks (one switch; racks; regions of a
continent, see `policies.data.topologies`); three scripts, of which one computes long, one
has large gradients, and one has short steps; steps follow the prior's law with computing, latency,
transfer and software off by factors that are drawn anew for each cluster (deviations 0.06, 0.22,
0.22 and 0.28 of the logarithm). The recommender sees what a probe of O(N log N) pairs finds, with
its noise, and has no experience but what it ships with. The best known is the better of its own
plan and the best of those that it finds when it is told the whole network without noise, by their
true times.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from policies.candidates import pools
from policies.cost_model import step_parts
from policies.data.sweep import shipped_prior
from policies.data.topologies import TOPOLOGIES, Topology
from policies.greedy import tours
from policies.links import Links
from policies.paths import Path, Paths
from policies.placement import EXACT_UP_TO, site_of
from policies.probe_schedule import schedule
from policies.recommend import recommend
from policies.schema import (
    DEFAULT_PATH,
    Fit,
    KindSpeed,
    Limits,
    Plan,
    Situation,
    Work,
    Workload,
)
from policies.survey import Ground, survey

NETWORKS: Final = ("flat", "two-level", "geo")
SIZES: Final = (10, 30, 100, 300, 1000)
QUICK_SIZES: Final = (10, 100, 1000)
OFF: Final = (0.06, 0.22, 0.22, 0.28)
BATCH, STEPS = 4096, 20_000


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision: its size, its true step over the best known, minus one, and its CPU time.

    `again_s` is the time of another decision on the same map, as while a run goes on.
    """

    network: str
    script: str
    n_nodes: int
    n_workers: int
    regret: float
    decision_s: float
    again_s: float


def script(name: str, c0_s: float, c1_s: float, payload: int) -> Workload:
    """A script as profiled on a node of 8 CPUs."""
    speed = KindSpeed("c5", c0_s, c1_s, 8.0)
    fits = (Fit(BATCH, 100, 10),)
    return Workload(name, "keras", "exact", payload // 4, payload, 10, fits, (speed,), 5.0)


SCRIPTS: Final = (
    script("long steps", 0.02, 2e-3, 4_000_000),
    script("large gradients", 0.02, 5e-4, 100_000_000),
    script("short steps", 0.004, 2e-5, 1_000_000),
)


def choices(sizes: Sequence[int], seeds: Sequence[int]) -> Iterator[Choice]:
    """Decisions on every kind of network, size and script."""
    for n_nodes in sizes:
        for name in NETWORKS:
            for seed, load in product(seeds, SCRIPTS):
                rng = np.random.default_rng([seed, n_nodes, load.payload_bytes])
                topology = TOPOLOGIES[name](n_nodes, rng)
                pairs = [pair for pairs in schedule(topology.nodes, seed) for pair in pairs]
                network = topology.probed(pairs, rng)
                work = Work(STEPS, 10, BATCH)
                told = Situation(topology.nodes, network, load, work, Limits())
                yield decided(name, told, topology, np.exp(rng.normal(0.0, OFF)))


def decided(name: str, told: Situation, topology: Topology, factors: np.ndarray) -> Choice:
    """A decision, timed, and what it is worth."""
    prior, start_s = shipped_prior(), time.process_time()
    chosen = recommend(told, (), 0, prior=prior).chosen
    took_s = time.process_time() - start_s
    later = replace(told, spent_s=600.0, work=replace(told.work, steps=STEPS // 2))
    start_s = time.process_time()
    recommend(later, (), 0, prior=prior)
    again_s = time.process_time() - start_s
    links = true_links(topology)

    def true_s(plan: Plan) -> float:
        p = step_parts(plan, told.nodes, links, told.workload, BATCH)
        return float(factors @ (p.compute_s, p.latency_s, p.transfer_s, p.software_s)) - p.hidden_s

    mine_s = true_s(chosen)
    best_s = min(mine_s, *(true_s(plan) for plan in informed_plans(told, links)))
    n_nodes = len(told.nodes)
    regret = mine_s / best_s - 1.0
    load, n_workers = told.workload.fingerprint, chosen.n_workers
    return Choice(name, load, n_nodes, n_workers, regret, took_s, again_s)


def true_links(topology: Topology) -> Links:
    """All links as they are."""
    n_nodes = len(topology.nodes)
    inverse = 1.0 / topology.bandwidth_bytes_per_s
    apart = np.where(np.eye(n_nodes, dtype=bool), np.inf, inverse)
    known = np.ones((n_nodes, n_nodes), dtype=bool)
    index = {node.id: i for i, node in enumerate(topology.nodes)}
    nic = np.stack([apart.min(axis=1), apart.min(axis=0)])
    nothing = np.zeros_like(inverse)
    return Links(index, topology.rtt_s / 2.0, inverse, known, ~known, nothing, nic)


def informed_plans(told: Situation, links: Links) -> list[Plan]:
    """The best plan of every n that is looked at, by a recommender that knows all links."""
    path = Path(DEFAULT_PATH, told.nodes, links)
    (pool,) = pools(told.nodes, told.limits)
    site = site_of(pool, links, told.workload, BATCH)
    along = tours(site) if len(told.nodes) > EXACT_UP_TO else ()
    found = replace(
        survey(told, (), shipped_prior()),
        paths=Paths({DEFAULT_PATH: path}, path),
        grounds=(Ground(site, along, site),),
    )
    return [each.plan for each in found.all_forecasts().values()]


@dataclass(frozen=True, slots=True)
class SizeScore:
    """All decisions on clusters of one size: what they are worth, and how long they took.

    `first_s` and `again_s` are medians, of the first decision on a map and of another.
    """

    n_nodes: int
    n_choices: int
    within_10: float
    regret: float
    worst: float
    first_s: float
    longest_s: float
    again_s: float


def size_scores(found: Sequence[Choice]) -> list[SizeScore]:
    """A line for each size."""
    scores = []
    for n_nodes in sorted({each.n_nodes for each in found}):
        own = [each for each in found if each.n_nodes == n_nodes]
        regrets, times_s = [each.regret for each in own], [each.decision_s for each in own]
        scores.append(
            SizeScore(
                n_nodes,
                len(own),
                float(np.mean([x <= 0.1 for x in regrets])),
                float(np.mean(regrets)),
                max(regrets),
                float(np.median(times_s)),
                max(times_s),
                float(np.median([each.again_s for each in own])),
            )
        )
    return scores
