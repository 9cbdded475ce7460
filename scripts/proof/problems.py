"""Choices to make: one script on hosts and a network, with the arms that were measured there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Final, cast

from policies.baselines import Case
from policies.data.sweep import kind_of, workloads_of
from policies.question import ALLREDUCE, Arm, Question, RingLink
from policies.schema import (
    Algorithm,
    Experience,
    Fit,
    Limits,
    Link,
    Node,
    Plan,
    PlanOptions,
    Situation,
    Work,
    Workload,
)
from policies.schema import Network as Map

from .cells import Cell, Network, Sweep, Truth

USD_PER_H: Final = 0.1
# A job takes one worker an hour.
JOB_S: Final = 3600.0
STEPS_PER_RUN: Final = 500
ALL_REDUCE_ONLY: Final = (ALLREDUCE,)


@dataclass(frozen=True)
class Problem:
    """A script with one batch, on hosts that one network joins, and what its arms took.

    Args:
        hosts: CPUs of the cluster's nodes.
        truth: of every arm that was measured.
        nodes_by_arm: the numbers of an arm's hosts, in rank order.
        load: the script as profiled on each kind of host.
        usd_per_h: the hosts' prices.
    """

    workload: str
    batch: int
    hosts: tuple[float, ...]
    network: Network
    truth: Mapping[Arm, Truth]
    nodes_by_arm: Mapping[Arm, tuple[int, ...]]
    load: Workload
    usd_per_h: tuple[float, ...]

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What can be chosen."""
        return tuple(sorted(self.truth))

    @cached_property
    def best_s(self) -> float:
        """The shortest measured step."""
        return min(truth.step_s for truth in self.truth.values())

    @property
    def steps(self) -> int:
        """Steps of the job."""
        return max(1, round(JOB_S / self.truth[min(self.arms)].step_s))

    @cached_property
    def situation(self) -> Situation:
        """What the recommender is told."""
        nodes = tuple(
            Node(f"n{i}", f"10.1.0.{i + 1}", cpus, 0.0, None, usd, "label", kind_of(cpus))
            for i, (cpus, usd) in enumerate(zip(self.hosts, self.usd_per_h, strict=True))
        )
        rate = self.network.rate_bytes_per_s
        links = tuple(
            Link(a.id, b.id, "default", self.network.rtt_s, 0.0, 0.0, rate)
            for a, b in product(nodes, nodes)
            if a != b
        )
        work = Work(self.steps, 1.0, self.batch)
        return Situation(nodes, Map(links, "", 0.0), self.load, work, Limits())

    def plan(self, arm: Arm) -> Plan:
        """An arm on its hosts."""
        names = tuple(f"n{i}" for i in self.nodes_by_arm[arm])
        cpus = min(self.hosts[i] for i in self.nodes_by_arm[arm])
        if arm.exchange == ALLREDUCE:
            return Plan(arm.n_workers, names, "allreduce", PlanOptions(cpus))
        options = PlanOptions(cpus, algorithm=cast(Algorithm, arm.exchange), sync_batchnorm=False)
        return Plan(arm.n_workers, names, "direct", options)

    def experience(self, arm: Arm, step_s: float, run: str) -> Experience:
        """A run with an arm, as a record tells of it."""
        told = self.situation
        return Experience(
            run,
            told.nodes,
            told.network,
            self.load,
            self.plan(arm),
            self.batch,
            STEPS_PER_RUN,
            step_s,
        )

    def alone_s(self, rows: float) -> float:
        """Step of one worker on the fastest host, as profiled."""
        fastest = kind_of(self.hosts[self.nodes_by_arm[min(self.arms)][0]])
        speed = next(each for each in self.load.node_kinds if each.kind == fastest)
        return speed.c0_s + speed.c1_s * rows

    def question(self, table: Sequence[Case] = (), **limits: Any) -> Question:
        """What the rules are asked."""
        link = RingLink(self.network.rtt_s / 2, self.network.rate_bytes_per_s)
        return Question(
            self.arms,
            self.batch,
            self.load.payload_bytes,
            self.network.rtt_s,
            self.alone_s,
            lambda n: [link] * n,
            table,
            **limits,
        )

    def case(self) -> Case:
        """The problem as a table holds it."""
        single_s = self.truth[min(self.arms)].step_s
        speedup = {arm: single_s / truth.step_s for arm, truth in self.truth.items()}
        return Case(self.batch, self.network.rtt_s, speedup)

    def with_arms(self, exchanges: Sequence[str]) -> "Problem":
        """With one worker, and of more only those that exchange gradients in these ways."""
        kept = {
            arm: truth
            for arm, truth in self.truth.items()
            if arm.n_workers == 1 or arm.exchange in exchanges
        }
        return replace(self, truth=kept)


def problems_of(sweep: Sweep) -> tuple[Problem, ...]:
    """Every script, batch, cluster and network of which all arms were measured."""
    alone = {
        (cell.workload, cell.batch, cell.cpus[0]): truth
        for cell, truth in sweep.truth.items()
        if cell.arm.n_workers == 1
    }
    loads = workloads_of(sweep.rows)
    sent = {(row.workload, row.batch): (row.payload_bytes, row.n_slices) for row in sweep.rows}
    groups: dict[tuple[Any, ...], dict[Cell, Truth]] = {}
    for cell, truth in sweep.truth.items():
        for hosts in _clusters(cell, sweep) if cell.arm.n_workers > 1 else ():
            key = cell.workload, cell.batch, hosts, cell.network
            groups.setdefault(key, {})[cell] = truth
    found = [
        _problem(
            key, cells, alone.get((key[0], key[1], max(key[2]))), _load(key[0], key[1], loads, sent)
        )
        for key, cells in groups.items()
    ]
    return tuple(problem for problem in found if problem is not None)


def _load(
    workload: str,
    batch: int,
    loads: Mapping[str, Workload],
    sent: Mapping[tuple[str, int], tuple[int, int]],
) -> Workload | None:
    """A workload as it is profiled with this batch."""
    load, (payload_bytes, n_slices) = loads.get(workload), sent[workload, batch]
    return load and replace(load, payload_bytes=payload_bytes, n_slices=n_slices)


def _clusters(cell: Cell, sweep: Sweep) -> Iterator[tuple[float, ...]]:
    """The clusters that a cell's hosts belong to: those of the most hosts that hold them all."""
    sets = {each.cpus for each in sweep.truth}
    most = max(len(hosts) for hosts in sets)
    for hosts in sets:
        if len(hosts) == most and _numbers(cell.cpus, hosts) is not None:
            yield hosts


def _numbers(cpus: Sequence[float], hosts: Sequence[float]) -> tuple[int, ...] | None:
    """Which hosts have these CPUs, each taken once."""
    free, found = list(range(len(hosts))), []
    for each in cpus:
        at = next((i for i in free if hosts[i] == each), None)
        if at is None:
            return None
        free.remove(at)
        found.append(at)
    return tuple(found)


def _problem(
    key: tuple[Any, ...],
    cells: Mapping[Cell, Truth],
    single: Truth | None,
    load: Workload | None,
) -> Problem | None:
    """A problem, if one worker and all others of every exchange were measured."""
    workload, batch, hosts, network = key
    counts = set(range(2, len(hosts) + 1))
    n_by_exchange: dict[str, set[int]] = {}
    for cell in cells:
        n_by_exchange.setdefault(cell.arm.exchange, set()).add(cell.arm.n_workers)
    whole = {exchange for exchange, found in n_by_exchange.items() if found >= counts}
    if single is None or load is None or not whole:
        return None
    if not {kind_of(cpus) for cpus in hosts} <= {speed.kind for speed in load.node_kinds}:
        return None
    first = Arm(1)
    truth = {first: single}
    at: dict[Arm, tuple[int, ...]] = {first: (hosts.index(max(hosts)),)}
    for cell, step in cells.items():
        if cell.arm.exchange in whole:
            truth[cell.arm], at[cell.arm] = step, _numbers(cell.cpus, hosts) or ()
    load = replace(load, fingerprint=f"held out {workload}", fits=(Fit(batch, 100, 10),))
    prices = (USD_PER_H,) * len(hosts)
    return Problem(workload, batch, hosts, network, truth, at, load, prices)
