"""Which n of N nodes where workers talk directly: the farthest pair and the narrowest count."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from policies.arrays import Bools, Floats, Ints
from policies.cost_model import gpu_copies_s, slowest
from policies.direct import Mesh, Sum, mesh_of, one_shot, two_level, two_shot
from policies.direct import sum_of as direct_sum
from policies.placement import Placed, Site, plan_of, shares, undominated
from policies.schema import Algorithm, Plan

# So many numbers of one array are held at a time, which bounds memory to some megabytes.
NUMBERS_AT_ONCE: Final = 500_000
# Where all workers have GPUs and are no farther apart (one way), NCCL exchanges better than CPUs.
NCCL_WITHIN_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class _Sets:
    """R sets of nodes, at most M each: nodes, workers on them (0 where there are fewer nodes).

    `members` and `counts` have shape `(R, M)`; what else a step and a price consist of, and
    the part of the time that losses add, `(R,)`.
    """

    members: Ints
    counts: Ints
    compute_s: Floats
    cpus: Floats
    price: Floats
    lost: Floats

    def at(self, rows: slice) -> "_Sets":
        """Some of the sets."""
        return _Sets(
            self.members[rows],
            self.counts[rows],
            self.compute_s[rows],
            self.cpus[rows],
            self.price[rows],
            self.lost[rows],
        )


def direct_placements(
    site: Site,
    n_workers: int,
    found: Iterable[Sequence[int]],
    ringed: Sequence[Placed],
    *,
    beside_nccl: bool,
) -> tuple[Placed, ...]:
    """The plans of several workers that talk directly, none beaten in both time and price.

    Args:
        site: nodes and links.
        n_workers: at least 2.
        found: sets of nodes with room for them.
        ringed: plans whose order of ranks suits a ring.
        beside_nccl: also where near GPUs have NCCL, which is as a rule the better choice.
    """
    every = dict.fromkeys(tuple(sorted(x)) for x in found)
    every |= dict.fromkeys(_members(site, placed.plan) for placed in ringed)
    sets = _sets_of(site, n_workers, list(every))
    placed = [*_best_sets(site, sets), *(_as_ring(site, x.plan) for x in ringed)]
    if site.pool.gpus_per_worker > 0 and not beside_nccl:
        placed = [x for x in placed if _farthest_s(site, x.plan) > NCCL_WITHIN_S]
    return undominated(placed)


def _members(site: Site, plan: Plan) -> tuple[int, ...]:
    return tuple(sorted({site.links.index[node] for node in plan.nodes}))


def _farthest_s(site: Site, plan: Plan) -> float:
    at = np.array(_members(site, plan))
    return float(site.links.one_way_s[np.ix_(at, at)].max())


def _sets_of(site: Site, n_workers: int, found: Sequence[tuple[int, ...]]) -> _Sets:
    width = max(len(x) for x in found)
    members = np.zeros((len(found), width), dtype=np.int64)
    counts = np.zeros_like(members)
    compute_s, cpus, price, lost = np.zeros((4, len(found)))
    for row, nodes in enumerate(found):
        workers = shares(site.pool, nodes, n_workers)
        members[row, : len(nodes)], counts[row, : len(nodes)] = nodes, workers
        compute_s[row], cpus[row] = _pace(site, nodes, workers)
        price[row] = math.fsum(site.price[i] for i in nodes)
        lost[row] = math.fsum(site.lost[i] for i in nodes)
    return _Sets(members, counts, compute_s, cpus, price, lost)


def _pace(site: Site, nodes: Sequence[int], workers: Sequence[int]) -> tuple[float, float]:
    """Compute time of a step of these workers, and the fewest CPUs that one holds."""
    like = Counter((site.alike[i], k) for i, k in zip(nodes, workers, strict=True))
    lines = [site.line(i, k, n_nodes) for (i, k), n_nodes in like.items()]
    step_s, _ = slowest(lines, site.global_batch, "direct")
    return step_s, min(site.held(i, k) for i, k in like)


def _best_sets(site: Site, sets: _Sets) -> list[Placed]:
    """Of all sets those that no other beats in time and price, with their best algorithm."""
    n_rows = max(1, NUMBERS_AT_ONCE // sets.members.shape[1] ** 2)
    blocks = [
        _step_times_s(site, sets.at(slice(start, start + n_rows)))
        for start in range(0, len(sets.price), n_rows)
    ]
    time_s, hidden_s = np.concatenate(blocks, axis=-1)
    step_s = time_s.min(axis=0) * (1.0 + sets.lost)
    found = []
    for row in np.flatnonzero(_unbeaten(step_s, sets.price)).tolist():
        choice = _simplest(time_s[:, row])
        plan = _plan_of(site, sets, row, choice, overlap=bool(hidden_s[choice, row] > 0.0))
        found.append(Placed(plan, float(step_s[row]), float(sets.price[row])))
    return found


def _simplest(time_s: Floats) -> int:
    """The first of the fastest: two levels of one site, say, are a two-shot."""
    return int(np.argmax(time_s <= time_s.min() * (1.0 + 1e-7)))


def _step_times_s(site: Site, sets: _Sets) -> Floats:
    """Step times, and what overlap saves of them, shape `(2, A, R)`.

    By algorithm (in the order of `_choices`) and set.
    """
    mesh = mesh_of(site.links, sets.members, sets.counts, sets.compute_s)
    payload = site.workload.payload_bytes
    sums = [_summed(site, name, cut, mesh, sets.members) for name, cut in _choices(site)]
    rest_s = sets.compute_s + gpu_copies_s(payload, site.pool.gpus_per_worker)
    hidden_s = np.stack([_hidden_s(site, each, sets.compute_s, sets.cpus) for each in sums])
    whole_s = np.stack([each.total_s(sets.cpus) for each in sums])
    return np.stack([rest_s + whole_s - hidden_s, hidden_s])


def _hidden_s(site: Site, found: Sum, compute_s: Floats | float, cpus: Floats | float) -> Floats:
    """What overlap saves; nothing on GPUs, where it was not measured."""
    hidden_s = found.hidden_s(compute_s, cpus)
    return np.zeros_like(hidden_s) if site.pool.gpus_per_worker > 0 else hidden_s


def _choices(site: Site) -> list[tuple[Algorithm, int]]:
    """Algorithms that do not mind the order of ranks, and which partition into sites they use."""
    shots: list[tuple[Algorithm, int]] = [("one_shot", 0), ("two_shot", 0)]
    return shots + [("two_level", cut) for cut in range(len(site.groups))]


def _summed(site: Site, algorithm: Algorithm, cut: int, mesh: Mesh, members: Ints) -> Sum:
    payload = max(site.workload.payload_bytes, 1)
    if algorithm == "two_level":
        return two_level(mesh, payload, site.groups[cut][members])
    return one_shot(mesh, payload) if algorithm == "one_shot" else two_shot(mesh, payload)


def _unbeaten(step_s: Floats, price: Floats) -> Bools:
    """Which are cheaper than all that are faster."""
    order = np.lexsort((price, step_s))
    cheapest = np.minimum.accumulate(np.concatenate([[np.inf], price[order][:-1]]))
    kept = np.zeros(len(price), dtype=bool)
    kept[order] = price[order] < cheapest * (1.0 - 1e-9)
    return kept


def _plan_of(site: Site, sets: _Sets, row: int, choice: int, *, overlap: bool) -> Plan:
    algorithm, cut = _choices(site)[choice]
    used = sets.counts[row] > 0
    ranks = np.repeat(sets.members[row][used], sets.counts[row][used])
    groups: tuple[tuple[int, ...], ...] = ()
    if algorithm == "two_level":
        labels = site.groups[cut][ranks]
        groups = tuple(
            tuple(np.flatnonzero(labels == label).tolist()) for label in dict.fromkeys(labels)
        )
    return _direct(plan_of(site.pool, ranks.tolist()), algorithm, groups, overlap=overlap)


def _as_ring(site: Site, plan: Plan) -> Placed:
    """The same ranks in a ring of direct connections."""
    direct = _direct(plan, "ring", (), overlap=False)
    nodes = _members(site, plan)
    counts = [plan.nodes.count(site.pool.nodes[i].id) for i in nodes]
    compute_s, cpus = _pace(site, nodes, counts)
    found = direct_sum(direct, site.links, site.workload.payload_bytes, compute_s)
    copies_s = gpu_copies_s(site.workload.payload_bytes, site.pool.gpus_per_worker)
    hidden_s = _hidden_s(site, found, compute_s, cpus).item()
    step_s = compute_s + copies_s + found.total_s(cpus).item() - hidden_s
    overlapped = replace(direct, options=replace(direct.options, overlap=hidden_s > 0.0))
    step_s = site.with_losses_s(step_s, nodes)
    return Placed(overlapped, step_s, math.fsum(site.price[i] for i in nodes))


def _direct(
    plan: Plan, algorithm: Algorithm, sites: tuple[tuple[int, ...], ...], *, overlap: bool
) -> Plan:
    options = replace(plan.options, algorithm=algorithm, sites=sites, overlap=overlap)
    return replace(plan, strategy="direct", options=options)
