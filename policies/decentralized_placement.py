"""Which n of N nodes where workers wait for nobody: how fast they compute together is all."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from policies.cost_model import slowest_of_sites, unhindered_s
from policies.links import Links
from policies.placement import Placed, Site, plan_of, shares, undominated
from policies.schema import Asynchrony, Plan

# A link is filled up to this part of what it carries, see `exchange/decentralized/budget.py`.
FILL = 0.9


def decentralized_placements(
    site: Site, n_workers: int, found: Iterable[Sequence[int]], asynchrony: Asynchrony
) -> tuple[Placed, ...]:
    """The plans of several workers that wait for nobody, none beaten in both time and price.

    Args:
        site: nodes and links.
        n_workers: at least 2.
        found: sets of nodes with room for them.
        asynchrony: how far they may drift apart.
    """
    if asynchrony.own_data:
        found = _at_every_site(site, n_workers)
    sets = dict.fromkeys(tuple(sorted(members)) for members in found)
    return undominated(_placed(site, n_workers, members, asynchrony) for members in sets)


def _at_every_site(site: Site, n_workers: int) -> Iterator[Sequence[int]]:
    """The fastest node of each site, then the fastest of all, as far as there is room to fill."""
    nodes = site.pool.nodes
    rows = site.global_batch / n_workers
    order = sorted(
        range(len(nodes)), key=lambda i: (site.line(site.alike[i], 1, 1).step_s(rows), nodes[i].id)
    )
    first_by_site: dict[str | None, int] = {}
    for i in order:
        first_by_site.setdefault(nodes[i].site, i)
    firsts = [*first_by_site.values()]
    members = [*firsts, *(i for i in order if i not in firsts)][:n_workers]
    has_room = sum(site.pool.room[i] for i in members) >= n_workers
    if has_room and len(firsts) <= n_workers:
        yield members


def _placed(site: Site, n_workers: int, members: Sequence[int], asynchrony: Asynchrony) -> Placed:
    """The fastest node first: its worker keeps the model, and training ends with its last step."""
    count_by_node = dict(zip(members, shares(site.pool, members, n_workers), strict=True))
    own, nodes = asynchrony.own_data, site.pool.nodes
    like = Counter(
        (site.alike[i], k, nodes[i].site if own else None) for i, k in count_by_node.items()
    )
    lines = {key: site.line(*key[:2], n_nodes) for key, n_nodes in like.items()}
    sites = [name for *_, name in lines]
    pace_s, _ = slowest_of_sites(list(lines.values()), sites, site.global_batch, "decentralized")
    rows = site.global_batch / n_workers

    def alone_s(i: int) -> float:
        return site.line(site.alike[i], count_by_node[i], 1).step_s(rows)

    ordered = sorted(members, key=lambda i: (alone_s(i), site.pool.nodes[i].id))
    first = site.held(ordered[0], count_by_node[ordered[0]])
    step_s = pace_s + unhindered_s(n_workers, site.workload.payload_bytes, first)
    plan = plan_of(site.pool, [i for i in ordered for _ in range(count_by_node[i])])
    options = replace(plan.options, sync_batchnorm=False, asynchrony=asynchrony)
    price = math.fsum(site.price[i] for i in members)
    step_s = site.with_losses_s(step_s, members)
    return Placed(replace(plan, strategy="decentralized", options=options), step_s, price)


def carried(plan: Plan, links: Links, payload_bytes: int, step_s: float) -> float:
    """The part of its gradients that the narrowest link of a plan carries in a step, at most 1.

    Args:
        plan: of several workers.
        links: between its nodes.
        payload_bytes: gradients of one worker.
        step_s: how long a step takes.
    """
    at = [links.index[node] for node in dict.fromkeys(plan.nodes)]
    pairs = [(a, b) for a in at for b in at if a != b] or [(at[0], at[0])]
    narrowest = max(float(links.s_per_byte[pair]) for pair in pairs)
    return min(1.0, FILL * step_s / (narrowest * max(payload_bytes, 1)))
