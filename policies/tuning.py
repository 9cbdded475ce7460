"""Split nodes, money and time between the trials of a hyper-parameter search.

More trials at once use nodes better, for two workers are rarely twice as fast as one. More workers
per trial bring results sooner, and each trial that begins after another has ended can be chosen
with what that one showed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from policies.schema import Candidate, Network, Node, Objective

HALVING = 3  # of the trials at a rung, one in so many goes on
SEQUENTIAL_WORTH = 0.1  # a search may take so much longer if fewer trials run at once
PRIOR_TRIALS = 3.0  # what is expected of early stopping counts as much as so many ended trials
MAX_OVERRUN = 4.0  # a trial may cost so many times what is expected of one
STOP_S = 10.0  # to stop at a checkpoint, and to find it again
ROOM = 1.2  # and gets at least so many times that, as long as there is enough


@dataclass(frozen=True, slots=True)
class Width:
    """What a whole trial is predicted to take on so many nodes: seconds and US dollars."""

    n_nodes: int
    time_s: float
    cost_usd: float

    def scaled(self, factor: float) -> "Width":
        """The same, with time and cost changed by a factor."""
        return replace(self, time_s=self.time_s * factor, cost_usd=self.cost_usd * factor)


@dataclass(frozen=True, slots=True)
class Left:
    """What a search has left: trials, US dollars, seconds; None means no limit."""

    n_trials: int
    budget_usd: float | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Habits:
    """What trials are like, beside what was predicted of a whole one.

    Attributes:
        share: of a whole trial that one is trained for, in the mean.
        overhead_s: from the start of a trial's driver to its training, and after it.
    """

    share: float = 1.0
    overhead_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Split:
    """So many trials at once, each of the same width; how far that leads.

    Attributes:
        n_trials: that get done with what is left.
        time_s: until they are done.
        cost_usd: of all of them.
    """

    width: Width
    at_once: int
    n_trials: int
    time_s: float
    cost_usd: float


def widths_of(candidates: Iterable[Candidate], nodes: Iterable[Node]) -> tuple[Width, ...]:
    """What the plans of a decision say of a trial, the fastest for each number of nodes.

    Plans with nodes that are not among `nodes`, or not up, are left out.
    """
    up = {node.id for node in nodes if node.is_up}
    found: dict[int, Width] = {}
    for candidate in candidates:
        if not set(candidate.plan.nodes) <= up:
            continue
        n = len(set(candidate.plan.nodes))
        prediction = candidate.prediction
        width = Width(n, prediction.time_s.mean, prediction.cost_usd.mean)
        if n not in found or width.time_s < found[n].time_s:
            found[n] = width
    return tuple(found[n] for n in sorted(found))


def split(
    widths: Sequence[Width],
    n_nodes: int,
    left: Left,
    habits: Habits,
    *,
    objective: Objective = "time",
    max_at_once: int | None = None,
) -> Split | None:
    """Decide how many trials run at once, and on how many nodes each.

    The most trials that what is left allows; among equals the soonest (or cheapest) end, and
    among those within `SEQUENTIAL_WORTH` of it the fewest at once.

    Args:
        n_nodes: that the search has.
        max_at_once: at most so many.

    Returns:
        None if there is no width that fits the nodes.
    """
    splits = [
        _split(width, left, habits, at_most)
        for width in widths
        if (at_most := _at_most(width, n_nodes, left, max_at_once)) > 0
    ]
    if not splits:
        return None
    most = max(each.n_trials for each in splits)
    able = [each for each in splits if each.n_trials == most]
    if objective == "cost":
        return min(able, key=lambda each: (each.cost_usd, each.time_s))
    soonest_s = min(each.time_s for each in able)
    soon = [each for each in able if each.time_s <= soonest_s * (1 + SEQUENTIAL_WORTH)]
    return min(soon, key=lambda each: (each.at_once, each.time_s))


def _at_most(width: Width, n_nodes: int, left: Left, max_at_once: int | None) -> int:
    limits = (n_nodes // width.n_nodes, left.n_trials, max_at_once)
    return min(limit for limit in limits if limit is not None)


def _split(width: Width, left: Left, habits: Habits, at_once: int) -> Split:
    trial_s = habits.share * width.time_s + habits.overhead_s
    trial_usd = habits.share * width.cost_usd
    limits = [float(left.n_trials)]
    if left.budget_usd is not None and trial_usd > 0:
        limits.append(left.budget_usd // trial_usd)
    if left.deadline_s is not None:
        limits.append(at_once * (left.deadline_s // trial_s))
    n_trials = int(min(limits))
    at_once = max(1, min(at_once, n_trials))
    rounds = math.ceil(n_trials / at_once)
    return Split(width, at_once, n_trials, rounds * trial_s, n_trials * trial_usd)


def rungs(epochs: int, factor: int) -> tuple[int, ...]:
    """Epochs after which a trial may be stopped: two of them, in steps of the factor.

    Asynchronous successive halving (Li et al., 2020) begins at the first. Fewer where a trial
    has few epochs.
    """
    first = max(1, math.ceil(epochs / factor**2))
    found = (first, first * factor)
    return tuple(rung for rung in found if rung < epochs)


def expected_share(epochs: int, factor: int, measured: Sequence[float] = ()) -> float:
    """The share of its epochs that a trial is trained for, in the mean.

    Of those that reach a rung, one in `factor` goes on. What ended trials showed replaces that.

    Args:
        measured: shares of trials that have ended.
    """
    share, survivors, before = 0.0, 1.0, 0
    for rung in (*rungs(epochs, factor), epochs):
        share += survivors * (rung - before) / epochs
        survivors, before = survivors / factor, rung
    return (PRIOR_TRIALS * share + sum(measured)) / (PRIOR_TRIALS + len(measured))


def allotment_usd(left_usd: float, n_open: int, n_left: int, expected_usd: float) -> float:
    """What one trial may cost, so that all trials together never cost more than there is.

    What is left is shared out among the trials that could run now, but each gets enough for a whole
    trial while that lasts. And none gets so much that one bad configuration takes all: a few times
    what is expected of it, or of its part in what all trials may cost.

    Args:
        left_usd: that no running trial may spend.
        n_open: trials that could start now, this one included.
        n_left: trials that are still to start, this one included.
        expected_usd: cost of a whole trial; 0 where it is not known.
    """
    if left_usd <= 0:
        return 0.0
    even = left_usd / max(1, n_open)
    if expected_usd <= 0:  # not known
        return even
    wanted = max(even, ROOM * expected_usd)
    fair = left_usd / max(1, n_left)
    return min(left_usd, wanted, MAX_OVERRUN * max(expected_usd, fair))


def widening_saves_s(left_share: float, narrow: Width, wide: Width, habits: Habits) -> float:
    """What a trial saves if it stops at a checkpoint and goes on with more nodes; seconds.

    Going on costs what a trial's start does, and `STOP_S`. Only what is saved beyond twice that
    counts, for predictions err: not above 0 means that it had better stay.

    Args:
        left_share: of the trial's epochs.
        narrow, wide: what whole trials take on its nodes, and on those that it would have.
    """
    price_s = habits.overhead_s + STOP_S
    return left_share * (narrow.time_s - wide.time_s) - 2.0 * price_s


def nodes_for(
    free: Sequence[Node], n: int, network: Network | None, order: Sequence[str] = ()
) -> tuple[Node, ...]:
    """The nodes of one trial: a good one, and those that are nearest to it.

    Args:
        free: at least `n` nodes.
        network: their round trips; a link that is not known counts as the farthest.
        order: ids of nodes, best first.
    """
    rank = {node: index for index, node in enumerate(order)}
    ordered = sorted(free, key=lambda node: rank.get(node.id, len(rank)))
    first, *others = ordered
    rtt_s = _rtt_s(first, network)
    near = sorted(others, key=lambda node: rtt_s.get(node.id, math.inf))
    return (first, *near[: n - 1])


def _rtt_s(node: Node, network: Network | None) -> Mapping[str, float]:
    """Round trips from a node, by the other's id."""
    links = () if network is None else network.links
    found = [(link.dst, link.rtt_s) for link in links if link.src == node.id]
    return {dst: rtt_s for dst, rtt_s in found if rtt_s is not None}
