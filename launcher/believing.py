"""What the policy believes, of a run's cluster and script or of the newest run's."""

from collections.abc import Sequence

import numpy as np

from launcher.errors import RecordError
from launcher.network_text import near_groups
from launcher.past_runs import SENSELESS, History
from launcher.record import RunRecord
from policies.beliefs import Beliefs, believed
from policies.data.sweep import shipped_prior
from policies.schema import DEFAULT_PATH, Network


def newest_beliefs(records: Sequence[RunRecord]) -> tuple[RunRecord, Beliefs] | None:
    """Those of the newest run that got as far as a decision; None where none did.

    Args:
        records: all that can be read, newest first.
    """
    history = History(records)
    for record in records:
        try:
            found = _beliefs(record, history)
        except SENSELESS:
            continue
        if found is not None:
            return record, found
    return None


def beliefs_of(record: RunRecord, records: Sequence[RunRecord]) -> Beliefs:
    """Those of one run's cluster and script.

    Args:
        record: of that run.
        records: all that can be read.

    Raises:
        RecordError: the run does not tell.
    """
    try:
        found = _beliefs(record, History(records))
    except SENSELESS as error:
        raise RecordError(
            f"The record of {record.run} makes no sense ({error}). Choose another run: launch runs"
        ) from error
    if found is None:
        raise RecordError(
            f"{record.run} ended before its cluster and script were known. Choose another run: "
            "launch runs"
        )
    return found


@np.errstate(all="ignore")  # of values that cannot be
def _beliefs(record: RunRecord, history: History) -> Beliefs | None:
    situation = record.situation(0)
    if situation is None or not situation.workload.node_kinds or not situation.nodes:
        return None
    groups = _groups(record.network)
    return believed(record.run, situation, history.segments, groups, shipped_prior())


def _groups(network: Network | None) -> list[frozenset[str]]:
    """Nodes that are near each other on Ray's own network."""
    links = () if network is None else network.links
    known = [
        link
        for link in links
        if link.src != link.dst and link.path == DEFAULT_PATH and link.rtt_s is not None
    ]
    return [frozenset(group) for group in near_groups(known)] if known else []
