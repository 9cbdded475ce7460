"""Where each rank of a decentralized run goes on from a checkpoint."""

from collections.abc import Mapping
from typing import Any


def position_of(position: Mapping[str, Any], rank: int, site: str | None = None) -> dict[str, Any]:
    """The position of one rank: its own as the checkpoint tells it, in the first one's epoch.

    What the script's callbacks know is the first worker's. So a rank that was in another epoch
    goes on at that end of this one which is nearer to it. Ranks that were not there go on with
    the first one.

    Args:
        position: of the first worker, see `Session`.
        rank: of this worker.
        site: whose data it trains on, where each site has its own; there it goes on where its
            site's workers were, or at the beginning of the first one's epoch if that isn't known.
    """
    place_by_site = position.get("place_by_site")
    if place_by_site is not None and rank > 0:
        epoch, step = place_by_site.get(site, (position["epoch"], 0))
        return {**position, "epoch": epoch, "step": step}
    steps, epoch_steps = position.get("steps_by_rank"), position.get("epoch_steps")
    if not steps or not epoch_steps or not 0 < rank < len(steps) or not steps[rank]:
        return dict(position)
    step = position["step"] + steps[rank] - steps[0]
    return {**position, "step": min(max(step, 0), epoch_steps - 1)}
