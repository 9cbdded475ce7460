"""Over which networks the workers of a plan talk."""

from itertools import permutations

from policies.schema import DEFAULT_PATH, Network, Plan

RAIL_SPEED = 0.5  # of the plan's own network, from which on NCCL gets another one, too


def paths_of(plan: Plan, network: Network | None) -> tuple[str, ...]:
    """Names of a plan's networks, its own first.

    `direct` gives each network as much as it carries, so it has all. NCCL gives all networks
    equally much, so it has those that every node of the plan is on and that are not much slower.
    """
    own = plan.options.path
    others = sorted({each.path for each in (network.interfaces if network else ())} - {own})
    if network is None or not others:
        return (own,)
    if plan.strategy == "direct":
        return (own, *others)
    if uses_nccl(plan):
        least = RAIL_SPEED * (_slowest_bytes_per_s(plan, network, own) or float("inf"))
        fast = [x for x in others if (_slowest_bytes_per_s(plan, network, x) or 0.0) >= least]
        return (own, *fast)
    return (own,)


def uses_nccl(plan: Plan) -> bool:
    """Whether NCCL exchanges the gradients of the plan's workers."""
    return plan.strategy == "allreduce" and plan.n_workers > 1 and plan.options.gpus_per_worker > 0


def _slowest_bytes_per_s(plan: Plan, network: Network, path: str) -> float | None:
    """The least bandwidth between the plan's nodes on a network; None where one is not known."""
    nodes = dict.fromkeys(plan.nodes)
    if path != DEFAULT_PATH:
        on_it = {each.node for each in network.interfaces if each.path == path}
        if not on_it.issuperset(nodes):
            return None
    found = {(k.src, k.dst): k.bandwidth_bytes_per_s for k in network.links if k.path == path}
    known = [found.get(pair) for pair in permutations(nodes, 2)]
    return min((rate for rate in known if rate), default=None) if all(known) else None
