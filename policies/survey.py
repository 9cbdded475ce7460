"""The best plan of every number of workers, found once per decision."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from policies.bandit import ALIKE, best, loss
from policies.candidates import Ceiling, Pool, ceiling, obtainable, strategies, worker_counts
from policies.direct_placement import direct_placements
from policies.forecast import Forecast, forecast
from policies.greedy import Tour, placements_along, sets_along, tours
from policies.paths import Path, Paths, paths_between
from policies.placement import EXACT_UP_TO, Placed, Site, placements, site_of, subsets
from policies.residual import Residual, learn
from policies.robust import Prior
from policies.schema import DEFAULT_PATH, Experience, Plan, Situation, Strategy

# Rounds of looking beside the best n where not every n was looked at.
REFINE_ROUNDS: Final = 12


@dataclass(frozen=True, slots=True)
class Ground:
    """A pool of nodes on one network, with tours through it where there are many.

    `direct` is the same pool with all networks at once; None beyond Ray's own network, which
    direct plans begin with.
    """

    site: Site
    tours: tuple[Tour, ...]
    direct: Site | None

    def ringed(self, n_workers: int) -> tuple[Placed, ...]:
        """Good plans of n workers in a ring."""
        if self.tours:
            return placements_along(self.site, n_workers, self.tours)
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
    paths: Paths
    residual: Residual
    grounds: tuple[Ground, ...]
    ceiling: Ceiling

    def best_of(self, n_workers: int, among: Sequence[Strategy] | None = None) -> Forecast | None:
        """The best plan of n workers by the objective, or None where there is none.

        Args:
            n_workers: their number.
            among: ways to exchange gradients; None takes all that are open to n workers.
        """
        ways = strategies(self.situation, n_workers) if among is None else among
        plans = [
            placed.plan
            for ground in self.grounds
            if n_workers <= ground.site.pool.n_max
            for placed in self._placements(ground, n_workers, ways)
        ]
        return self._best([self._forecast(plan) for plan in plans]) if plans else None

    def rival_of(self, plan: Plan) -> Forecast | None:
        """The best plan of as many workers that exchanges gradients in the other way."""
        others = [x for x in strategies(self.situation, plan.n_workers) if x != plan.strategy]
        return self.best_of(plan.n_workers, others) if others else None

    def _placements(self, ground: Ground, n_workers: int, ways: Sequence[Strategy]) -> list[Placed]:
        """Good plans of each way."""
        ringed = ground.ringed(n_workers)
        found = list(ringed) if "allreduce" in ways else []
        if "direct" in ways and ground.direct is not None:
            sets, asked = ground.sets(n_workers), self.situation.limits.strategy == "direct"
            found += direct_placements(ground.direct, n_workers, sets, ringed, beside_nccl=asked)
        return found

    def _forecast(self, plan: Plan) -> Forecast:
        if plan.strategy == "direct":
            is_exact = self.situation.limits.sync_batchnorm
            plan = replace(plan, options=replace(plan.options, sync_batchnorm=is_exact))
        return forecast(plan, self.situation, self.paths.links_of(plan), self.residual)

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

    def forecasts(self, counts: Sequence[int]) -> dict[int, Forecast]:
        """The best plan of each n that has one, by n."""
        found = {n: self.best_of(n) for n in counts}
        return {n: f for n, f in found.items() if f is not None}

    def all_forecasts(self) -> dict[int, Forecast]:
        """Every n where there are few; else a grid, ever finer around the best."""
        by_n = self.forecasts(worker_counts(self.ceiling.n_workers))
        for _ in range(REFINE_ROUNDS):
            chosen = best([by_n[n] for n in sorted(by_n)], self.situation.limits.objective)
            fresh = self._around(chosen.plan.n_workers, sorted(by_n))
            if not fresh:
                break
            by_n |= self.forecasts(fresh)
        return dict(sorted(by_n.items()))

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
    sets = obtainable(nodes, situation.limits)
    usual = [pool for each in sets for pool in each]
    found = [(pool, paths.default) for pool in usual]
    up = [pool for each in sets[:1] for pool in each]
    for path in paths.others:  # which only nodes that are up are known to be on
        found += [(pool.on_path(path.name, path.nodes), path) for pool in up]
    grounds = tuple(_ground(pool, path, ordered, paths) for pool, path in found if pool.nodes)
    residual = learn(ordered, experience, prior)
    return Survey(ordered, paths, residual, grounds, ceiling(ordered, usual))


def _ground(pool: Pool, path: Path, situation: Situation, paths: Paths) -> Ground:
    load, batch = situation.workload, situation.work.global_batch
    site = site_of(pool, path.links, load, batch)
    along = tours(site) if len(pool.nodes) > EXACT_UP_TO else ()
    if path.name != DEFAULT_PATH:
        return Ground(site, along, None)
    alone = paths.together is paths.default
    direct = site if alone else site_of(pool, paths.together.links, load, batch)
    return Ground(site, along, direct)
