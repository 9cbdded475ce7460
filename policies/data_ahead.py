"""Time and money that bringing data to a plan's nodes takes, before training begins there."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from policies.schema import DataAhead, Plan

# Relative error of a predicted rate: one that was measured from this very source (other hours,
# other nodes), and one that is assumed (object stores give a node 20 to 200 MB/s).
SIGMA_MEASURED: Final = 0.25
SIGMA_ASSUMED: Final = 0.8
START_S: Final = 2.0  # an agent's process on each node, and looking at what is there


def missing_bytes(plan: Plan, data: DataAhead) -> tuple[int, ...]:
    """What each of a plan's nodes lacks; nodes that lack nothing are left out."""
    if data.sites:
        parts = _by_site(plan, data)
        return tuple(n_bytes for part, site in parts for n_bytes in missing_bytes(part, site))
    lacks = {each.node: each.missing_bytes for each in data.nodes}
    found = (lacks.get(node, data.n_bytes) for node in dict.fromkeys(plan.nodes))
    return tuple(n_bytes for n_bytes in found if n_bytes > 0)


def bringing_s(plan: Plan, data: DataAhead) -> tuple[float, float]:
    """Mean and variance of the time until all of a plan's nodes have the data.

    All nodes are served at the same time: each at the source's rate, or all together where there
    is one way for all (the driver's machine, a web server). Sites with data of their own are
    served beside each other.
    """
    if data.sites:
        return max(bringing_s(part, site) for part, site in _by_site(plan, data))
    missing = missing_bytes(plan, data)
    if not missing:
        return 0.0, 0.0
    n_bytes = sum(missing) if data.is_shared else max(missing)
    mean_s = START_S + n_bytes / data.bytes_per_s
    sigma = SIGMA_MEASURED if data.basis == "measured" else SIGMA_ASSUMED
    return mean_s, (sigma * mean_s) ** 2


def egress_usd(plan: Plan, data: DataAhead) -> float:
    """What the source's provider charges for the data on their way out."""
    if data.sites:
        return math.fsum(egress_usd(part, site) for part, site in _by_site(plan, data))
    return math.fsum(missing_bytes(plan, data)) * data.usd_per_byte


def _by_site(plan: Plan, data: DataAhead) -> Iterator[tuple[Plan, DataAhead]]:
    """Each site's data, with the part of the plan that is there."""
    for site in data.sites:
        there = {each.node for each in site.nodes}
        yield replace(plan, nodes=tuple(node for node in plan.nodes if node in there)), site
