"""What the workers of a plan need to exchange gradients by themselves."""

import secrets

from launcher.worker.job import Decentralized, Direct, Stages
from policies.schema import Plan, Workload

SECRET_BYTES = 32


def direct_of(plan: Plan) -> Direct | None:
    """For `direct`; None for other plans."""
    options = plan.options
    if plan.strategy != "direct" or options.algorithm is None:
        return None
    secret = secrets.token_bytes(SECRET_BYTES)
    return Direct(options.algorithm, options.sites, secret, options.overlap)


def decentralized_of(plan: Plan, site_by_rank: tuple[str, ...] = ()) -> Decentralized | None:
    """For `decentralized`; None for other plans.

    Args:
        plan: of the next segment.
        site_by_rank: where each site has data of its own, the site of each rank; else empty.
    """
    asynchrony = plan.options.asynchrony
    if plan.strategy != "decentralized" or asynchrony is None:
        return None
    return Decentralized(
        secrets.token_bytes(SECRET_BYTES),
        asynchrony.max_staleness,
        asynchrony.transfer_every_steps,
        asynchrony.merge,
        site_by_rank,
    )


def stages_of(plan: Plan, workload: Workload) -> Stages | None:
    """For `pipeline`; None for other plans."""
    if plan.strategy != "pipeline" or workload.layers is None:
        return None
    return Stages(
        plan.options.cuts,
        len(workload.layers.parts),
        plan.options.micro_batches,
        secrets.token_bytes(SECRET_BYTES),
    )
