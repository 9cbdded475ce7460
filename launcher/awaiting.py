"""Waits for a node when none is left to train on."""

import logging
import time
from typing import Final

from launcher.budget import seconds_left
from launcher.cluster import Cluster
from launcher.errors import BudgetTooSmallError, ClusterError
from launcher.growing import Growing
from launcher.prepare import Measured
from launcher.roster import Roster
from launcher.stretch import Stretch
from launcher.surroundings import Surroundings

logger = logging.getLogger(__name__)

AWAIT_S: Final = 600.0
NOTICED_S: Final = 60.0  # by then Ray's books know which of the lost nodes are dead
POLL_S: Final = 0.5


def await_node(
    stretch: Stretch, growing: Growing, roster: Roster, around: Surroundings
) -> tuple[Cluster, Measured]:
    """Wait until there is a node that is fit, measured as any other; that costs nothing.

    Raises:
        BudgetTooSmallError: the deadline came first.
        ClusterError: none came in time.
    """
    stretch.meter.release_all()
    stretch.stage("no node is left to train on: waiting for one")
    left_s = seconds_left(stretch.meter, None, stretch.allowance.deadline_at_s)
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < min(AWAIT_S, left_s):
        gone = around.leaving if waited_s > NOTICED_S else around.gone
        fresh = tuple(node for node in roster.free() if node.id not in gone)
        found = _measured(stretch, growing, around.with_only(fresh)) if fresh else None
        if found is not None:
            return found
        time.sleep(POLL_S)
    if left_s <= AWAIT_S:
        raise BudgetTooSmallError(
            "No node is left to train on, and none came before the deadline. Add nodes first."
        )
    raise ClusterError(
        f"No node is left to train on, and none came in {AWAIT_S / 60:.0f} minutes. Add nodes, "
        f"then go on from the last checkpoint with: launch resume {stretch.run}"
    )


def _measured(
    stretch: Stretch, growing: Growing, cluster: Cluster
) -> tuple[Cluster, Measured] | None:
    """What is fit of the cluster; None if nothing is."""
    try:
        return growing.measured(cluster)
    except ClusterError as error:
        stretch.note(str(error))
        return None
