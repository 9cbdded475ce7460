"""The best plan of every number of workers, found once per decision."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from policies.bandit import ALIKE, P_FITS, best, loss
from policies.candidates import (
    DENSE_UP_TO,
    Ceiling,
    Pool,
    ceiling,
    obtainable,
    strategies,
    worker_counts,
)
from policies.constants import S_PER_H
from policies.decentralized_placement import decentralized_placements
from policies.direct_placement import direct_placements
from policies.forecast import Forecast, forecast
from policies.greedy import Tour, placements_along, sets_along, tours
from policies.memo import remembered
from policies.paths import Path, Paths, paths_between
from policies.placement import EXACT_UP_TO, Placed, Site, placements, site_of, subsets
from policies.residual import Residual, learn
from policies.robust import Prior
from policies.schema import (
    DEFAULT_PATH,
    Experience,
    Limits,
    Network,
    Node,
    Plan,
    Situation,
    Strategy,
    Workload,
)

# Rounds of looking beside the best n where not every n was looked at.
REFINE_ROUNDS: Final = 12
# How much longer than it takes the prior may say that a step takes.
HOPELESS: Final = 0.3
# Plans of many nodes that small moves may make the best: so much slower, and at most so many.
NEARLY: Final = 0.15
MAX_NEARLY: Final = 4


@dataclass(frozen=True, slots=True)
class Ground:
    """A pool of nodes on one network, with tours through it where there are many.

    `direct` is the same pool with all networks at once; None beyond Ray's own network, which
    direct plans begin with. `known` remembers what `placements` has found.
    """

    site: Site
    tours: tuple[Tour, ...]
    direct: Site | None
    known: dict[tuple[object, ...], list[Placed]] = field(default_factory=dict, compare=False)

    def placements(
        self, n_workers: int, ways: Sequence[Strategy], limits: Limits, *, polish: bool
    ) -> list[Placed]:
        """Good plans of n workers of each way, whatever experience says of them.

        Args:
            n_workers: at most what the pool has room for.
            ways: to exchange gradients.
            limits: what was asked for.
            polish: whether to improve plans on many nodes by small moves.
        """
        beside_nccl = limits.strategy == "direct"
        key = (n_workers, *ways, beside_nccl, limits.asynchrony, polish)
        if key not in self.known:
            self.known[key] = self._placements(n_workers, ways, limits, polish=polish)
        return self.known[key]

    def _placements(
        self, n_workers: int, ways: Sequence[Strategy], limits: Limits, *, polish: bool
    ) -> list[Placed]:
        found: list[Placed] = []
        if "allreduce" in ways or "direct" in ways:
            ringed = self.ringed(n_workers, polish=polish)
            found += ringed if "allreduce" in ways else ()
        if "direct" in ways and self.direct is not None:
            sets, beside_nccl = self.sets(n_workers), limits.strategy == "direct"
            found += direct_placements(
                self.direct, n_workers, sets, ringed, beside_nccl=beside_nccl
            )
        if "decentralized" in ways and self.direct is not None:
            sets = self.sets(n_workers)
            found += decentralized_placements(self.site, n_workers, sets, limits.asynchrony)
        return found

    def ringed(self, n_workers: int, *, polish: bool = True) -> tuple[Placed, ...]:
        """Good plans of n workers in a ring; `polish` improves them where there are many nodes."""
        if self.tours:
            return placements_along(self.site, n_workers, self.tours, polish=polish)
        return placements(self.site, n_workers)

    def sets(self, n_workers: int) -> Iterable[Sequence[int]]:
        """Sets of nodes for n workers: all of few nodes, good ones of many."""
        if self.tours:
            return sets_along(self.site, n_workers, self.tours)
        return subsets(self.site.pool, n_workers)


@dataclass(frozen=True, slots=True)
class Survey:
    """What all candidates of one decision share; nodes are in the order of their ids.

    `grounds` are pools of nodes on a path, those on Ray's own network first.
    """

    situation: Situation
    node_by_id: Mapping[str, Node]
    paths: Paths
    residual: Residual
    grounds: tuple[Ground, ...]
    ceiling: Ceiling

    def best_of(
        self, n_workers: int, among: Sequence[Strategy] | None = None, *, polish: bool = True
    ) -> Forecast | None:
        """The best plan of n workers by the objective, or None where there is none.

        Args:
            n_workers: their number.
            among: ways to exchange gradients; None takes all that are open to n workers.
            polish: whether to improve plans on many nodes by small moves.
        """
        ways = strategies(self.situation, n_workers) if among is None else among
        placed = self._placements(n_workers, ways, polish=polish)
        found = [
            f
            for way in ways
            for f in self._forecasts([p for p in placed if p.plan.strategy == way])
        ]
        return self._best(found) if found else None

    def _placements(
        self, n_workers: int, ways: Sequence[Strategy], *, polish: bool
    ) -> list[Placed]:
        limits = self.situation.limits
        return [
            placed
            for ground in self.grounds
            if n_workers <= ground.site.pool.n_max
            for placed in ground.placements(n_workers, ways, limits, polish=polish)
        ]

    def _forecasts(self, placed: Sequence[Placed]) -> list[Forecast]:
        """Of plans of one n and way those that may be the best; the others take far longer."""
        found: list[Forecast] = []
        least = math.inf
        for each in sorted(placed, key=self._at_least):
            if self._at_least(each) > least:
                break
            found.append(self._forecast(each.plan))
            least = min(least, self._loss_if_it_fits(found[-1]))
        return found

    def _at_least(self, placed: Placed) -> float:
        """The time or cost that a plan's steps alone take if the prior is far too pessimistic."""
        steps_s = self.situation.work.steps * placed.step_s / (1.0 + HOPELESS)
        by_cost = self.situation.limits.objective == "cost"
        return steps_s * placed.price_usd_per_h / S_PER_H if by_cost else steps_s

    def _loss_if_it_fits(self, found: Forecast) -> float:
        return loss(found, self.situation.limits.objective) if found.p_fits >= P_FITS else math.inf

    def rival_of(self, plan: Plan) -> Forecast | None:
        """The best plan of as many workers that exchanges gradients in another way."""
        others = [x for x in strategies(self.situation, plan.n_workers) if x != plan.strategy]
        return self.best_of(plan.n_workers, others) if others else None

    def _forecast(self, plan: Plan) -> Forecast:
        if plan.strategy == "direct":
            is_exact = self.situation.limits.sync_batchnorm
            plan = replace(plan, options=replace(plan.options, sync_batchnorm=is_exact))
        held = tuple(self.node_by_id[name] for name in sorted(set(plan.nodes)))
        situation = replace(self.situation, nodes=held)
        return forecast(plan, situation, self.paths.links_of(plan), self.residual)

    def _best(self, forecasts: Sequence[Forecast]) -> Forecast:
        """The best; on Ray's own network where no other is better by more than likeness."""
        objective = self.situation.limits.objective
        chosen = best(forecasts, objective)
        usual = [f for f in forecasts if f.plan.options.path == DEFAULT_PATH]
        if chosen.plan.options.path == DEFAULT_PATH or not usual:
            return chosen
        rival = best(usual, objective)
        alike = loss(rival, objective) <= loss(chosen, objective) * (1.0 + ALIKE)
        return rival if alike and rival.p_fits >= chosen.p_fits - ALIKE else chosen

    def forecasts(self, counts: Sequence[int], *, polish: bool = True) -> dict[int, Forecast]:
        """The best plan of each n that has one, by n."""
        found = {n: self.best_of(n, polish=polish) for n in counts}
        return {n: f for n, f in found.items() if f is not None}

    def all_forecasts(self) -> dict[int, Forecast]:
        """Every n where there are few; else a grid, ever finer around the best.

        Where there are many nodes, only the plans of the best n and of its neighbours are
        polished, until the best of all is one of these.
        """
        if not self._is_large:
            return self._refined(self.forecasts(worker_counts(self.ceiling.n_workers)))
        by_n = self._refined(self._screened(worker_counts(self.ceiling.n_workers)))
        polished: set[int] = set()
        for _ in range(REFINE_ROUNDS):
            fresh = sorted(self._promising(by_n) - polished)
            if not fresh:
                break
            polished |= set(fresh)
            by_n |= self.forecasts(fresh)
        return dict(sorted(by_n.items()))

    @property
    def _is_large(self) -> bool:
        """Whether there are too many n to look at each closely."""
        tours = any(ground.tours for ground in self.grounds)
        return tours and self.ceiling.n_workers > DENSE_UP_TO

    def _refined(self, by_n: dict[int, Forecast]) -> dict[int, Forecast]:
        """With more n, ever nearer to the best one, unpolished where there are many nodes."""
        looked_at = {*worker_counts(self.ceiling.n_workers), *by_n}
        for _ in range(REFINE_ROUNDS):
            fresh = self._around(self._best_n(by_n), sorted(looked_at))
            if not fresh:
                break
            looked_at |= set(fresh)
            by_n |= self.forecasts(fresh, polish=not self._is_large)
        return dict(sorted(by_n.items()))

    def _screened(self, counts: Sequence[int]) -> dict[int, Forecast]:
        """Unpolished plans of those n that may be the best, of one worker, and of the most.

        Left out is an n whose steps alone take longer than all of a plan that fits, even if the
        prior is far too pessimistic about them.
        """
        at_least: dict[int, float] = {}
        for n in counts:
            placed = self._placements(n, strategies(self.situation, n), polish=False)
            if placed:
                at_least[n] = min(self._at_least(each) for each in placed)
        found: dict[int, Forecast] = {}
        least = math.inf
        for n in sorted(at_least, key=lambda n: at_least[n]):
            if at_least[n] > least and n not in (counts[0], counts[-1]):
                continue
            found |= self.forecasts([n], polish=False)
            if n in found:
                least = min(least, self._loss_if_it_fits(found[n]))
        return found

    def _best_n(self, by_n: Mapping[int, Forecast]) -> int:
        objective = self.situation.limits.objective
        return best([by_n[n] for n in sorted(by_n)], objective).plan.n_workers

    def _promising(self, by_n: Mapping[int, Forecast]) -> set[int]:
        """The best n and its neighbours, and those that are nearly as good."""
        n, objective = self._best_n(by_n), self.situation.limits.objective
        least = loss(by_n[n], objective)
        near = {m for m in by_n if loss(by_n[m], objective) <= least * (1.0 + NEARLY)}
        nearest = sorted(near, key=lambda m: loss(by_n[m], objective))[:MAX_NEARLY]
        return {n, *nearest} | ({n - 1, n + 1} & by_n.keys())

    def _around(self, n: int, seen: list[int]) -> list[int]:
        """Counts beside n, and the middles of the gaps on both sides of n, as far as not seen."""
        below = max((m for m in seen if m < n), default=n)
        above = min((m for m in seen if m > n), default=n)
        near = {n - 1, n + 1, (below + n) // 2, (above + n) // 2}
        return sorted(m for m in near - set(seen) if 1 <= m <= self.ceiling.n_workers)


def survey(
    situation: Situation, experience: Sequence[Experience], prior: Prior | None = None
) -> Survey:
    """Prepare a decision: paths, what experience says, pools of nodes and tours through them."""
    nodes = tuple(sorted(situation.nodes, key=lambda node: node.id))
    ordered = replace(situation, nodes=nodes)
    paths = paths_between(nodes, situation.network)
    batch = situation.work.global_batch
    grounds = _grounds(nodes, situation.network, situation.workload, batch, situation.limits)
    residual = learn(ordered, experience, prior)
    usual = [pool for each in obtainable(nodes, situation.limits) for pool in each]
    limit = ceiling(ordered, usual)
    return Survey(ordered, {node.id: node for node in nodes}, paths, residual, grounds, limit)


@remembered
def _grounds(
    nodes: tuple[Node, ...],
    network: Network | None,
    workload: Workload,
    global_batch: int,
    limits: Limits,
) -> tuple[Ground, ...]:
    """Pools of nodes on every path, and tours through them."""
    paths, sets = paths_between(nodes, network), obtainable(nodes, limits)
    found = [(pool, paths.default) for each in sets for pool in each]
    up = [pool for each in sets[:1] for pool in each]
    for path in paths.others:  # which only nodes that are up are known to be on
        found += [(pool.on_path(path.name, path.nodes), path) for pool in up]
    return tuple(_ground(p, path, paths, workload, global_batch) for p, path in found if p.nodes)


def _ground(pool: Pool, path: Path, paths: Paths, load: Workload, batch: int) -> Ground:
    site = site_of(pool, path.links, load, batch)
    along = tours(site) if len(pool.nodes) > EXACT_UP_TO else ()
    if path.name != DEFAULT_PATH:
        return Ground(site, along, None)
    alone = paths.together is paths.default
    direct = site if alone else site_of(pool, paths.together.links, load, batch)
    return Ground(site, along, direct)
