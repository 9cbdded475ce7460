"""The nodes of a search: which trial has which, and what they leave for the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from launcher.record import RunRecord
from launcher.tune_record import Trial, TuneRecord
from policies.schema import Network, Node
from policies.tuning import (
    HALVING,
    Habits,
    Left,
    Split,
    Width,
    allotment_usd,
    expected_share,
    nodes_for,
    split,
    widening_saves_s,
    widths_of,
)

EARLY = frozenset({"done", "stopped"})


@dataclass(frozen=True, slots=True)
class Berth:
    """What a trial gets: nodes of its own (none: all there are), and money.

    `width_s` is what a whole trial there was predicted to take, at first.
    """

    nodes: tuple[str, ...]
    allotment_usd: float | None
    width_s: float | None


@dataclass(frozen=True, slots=True)
class Wider:
    """A running trial that had better go on with so many nodes, and what that saves."""

    trial: Trial
    n_nodes: int
    saves_s: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes that a search has, and what a whole trial takes on so many of them.

    Attributes:
        address: of the cluster; "local" where each trial starts a Ray of its own.
        nodes: that can be split between trials; none where one trial runs at a time.
        order: ids of nodes, the best first.
        epochs: of a whole trial, where known.
    """

    address: str
    nodes: tuple[Node, ...]
    widths: tuple[Width, ...]
    network: Network | None = None
    order: tuple[str, ...] = ()
    epochs: int | None = None

    @classmethod
    def of(cls, measured: RunRecord) -> "Fleet":
        """What a dry run of the first trial has found."""
        cluster, decision = measured.cluster, measured.decision
        assert cluster is not None and decision is not None
        fits = () if measured.workload is None else measured.workload.fits
        epochs = fits[0].epochs if fits else None
        widths = widths_of(decision.candidates, cluster.nodes)
        nodes = tuple(node for node in cluster.nodes if node.is_up)
        if cluster.embedded or not widths:
            address = "local" if cluster.embedded else cluster.address
            return cls(address, (), widths[:1], epochs=epochs)
        order = tuple(dict.fromkeys(decision.chosen.nodes))
        return cls(cluster.address, nodes, widths, measured.network, order, epochs)

    def split(self, record: TuneRecord, left: Left) -> Split | None:
        """How the trials that are left are best run; None where nothing is known of them."""
        limits = [limit for limit in (record.max_at_once, None if self.nodes else 1) if limit]
        return split(
            [width.scaled(pace(record)) for width in self.widths],
            max(1, len(self.nodes)),
            left,
            habits(record, self.epochs),
            objective=record.request.objective,
            max_at_once=min(limits, default=None),
        )

    def berth(self, record: TuneRecord, left: Left) -> Berth | None:
        """What the next trial gets now; None if it has to wait, or cannot be paid for."""
        running = [trial for trial in record.trials if trial.status == "running"]
        best = self.split(record, _with(left, running))
        at_once = 1 if best is None else best.at_once
        if len(running) >= at_once:
            return None
        free = self._free(record)
        width = None if best is None else best.width
        if self.nodes and (width is None or len(free) < width.n_nodes):
            return None
        money = self._allotment_usd(left, at_once - len(running), width)
        if money == 0.0:
            return None
        n = 0 if width is None else width.n_nodes
        width_s = next((each.time_s for each in self.widths if each.n_nodes == n), None)
        return Berth(self._nodes(free, width), money, width_s)

    def to_widen(self, record: TuneRecord) -> Wider | None:
        """The running trial that gains most by its part of the nodes that nobody needs any more.

        For when no trial is left to start; None if none gains.
        """
        running = [trial for trial in record.trials if trial.status == "running"]
        n_free = len(self._free(record))
        if not running or not n_free:
            return None
        n_more = -(-n_free // len(running))
        found = max(
            (
                Wider(trial, width.n_nodes, self._saves_s(record, trial, width))
                for trial in running
                for width in self.widths
                if len(trial.nodes) < width.n_nodes <= len(trial.nodes) + n_more
            ),
            key=lambda each: each.saves_s,
            default=None,
        )
        return found if found is not None and found.saves_s > 0 else None

    def _saves_s(self, record: TuneRecord, trial: Trial, wide: Width) -> float:
        narrow = next((each for each in self.widths if each.n_nodes == len(trial.nodes)), None)
        if narrow is None or not trial.epochs:
            return 0.0
        left_share = max(0.0, 1.0 - trial.epoch / trial.epochs)
        factor = pace(record)
        own = habits(record, self.epochs)
        return widening_saves_s(left_share, narrow.scaled(factor), wide.scaled(factor), own)

    def wide_berth(self, record: TuneRecord, left: Left, wider: Wider) -> Berth | None:
        """What a trial gets that has stopped to go on with more nodes; None if that is too little.

        Args:
            left: with that trial among those to start.
        """
        free = self._free(record)
        width = next(each for each in self.widths if each.n_nodes == wider.n_nodes)
        n_running = sum(trial.status == "running" for trial in record.trials)
        money = self._allotment_usd(left, n_running + 1, width.scaled(pace(record)))
        if len(free) < width.n_nodes or money == 0.0:
            return None
        return Berth(self._nodes(free, width), money, width.time_s)

    def _free(self, record: TuneRecord) -> list[Node]:
        """The nodes that no running trial has to itself."""
        used = {n for trial in record.trials if trial.status == "running" for n in trial.nodes}
        return [node for node in self.nodes if node.id not in used]

    def _nodes(self, free: Sequence[Node], width: Width | None) -> tuple[str, ...]:
        if not self.nodes or width is None:
            return ()
        chosen = nodes_for(free, width.n_nodes, self.network, self.order)
        return tuple(node.id for node in chosen)

    def _allotment_usd(self, left: Left, n_open: int, width: Width | None) -> float | None:
        if left.budget_usd is None:
            return None
        expected_usd = 0.0 if width is None else width.cost_usd
        n_open = min(n_open, left.n_trials)
        return allotment_usd(left.budget_usd, n_open, left.n_trials, expected_usd)


def habits(record: TuneRecord, epochs: int | None) -> Habits:
    """What trials of a search are like, from those that have ended."""
    ended = [trial for trial in record.trials if trial.status in EARLY and trial.epochs]
    shares = [min(1.0, trial.epoch / (trial.epochs or 1)) for trial in ended]
    share = 1.0
    if record.stops_early and epochs is not None:
        share = expected_share(epochs, HALVING, shares)
    overheads_s = [t.time_s - t.training_s for t in ended if t.training_s is not None]
    if not overheads_s:
        return Habits(share)
    return Habits(share, max(0.0, median(overheads_s)))


def pace(record: TuneRecord) -> float:
    """How long whole trials took, as a part of what was predicted for their width."""
    whole = [t for t in record.trials if t.status == "done" and t.training_s and t.width_s]
    ratios = [(t.training_s or 0.0) / (t.width_s or 1.0) for t in whole]
    return median(ratios) if ratios else 1.0


def left_of(record: TuneRecord, spent_s: float) -> Left:
    """What a search has left to start new trials with; running ones keep their allotments.

    Args:
        spent_s: since the search began, all stretches together.
    """
    request = record.request
    n_left = max(0, record.n_trials - len(record.trials))
    budget_usd = None
    if request.budget_usd is not None:
        budget_usd = max(0.0, request.budget_usd - sum(reserved_usd(t) for t in record.trials))
    deadline_s = None if request.deadline_s is None else max(0.0, request.deadline_s - spent_s)
    return Left(n_left, budget_usd, deadline_s)


def _with(left: Left, running: Sequence[Trial]) -> Left:
    """What is left, running trials and what they may still cost included."""
    budget_usd = left.budget_usd
    if budget_usd is not None:
        budget_usd += sum(reserved_usd(trial) - trial.cost_usd for trial in running)
    return Left(left.n_trials + len(running), budget_usd, left.deadline_s)


def reserved_usd(trial: Trial) -> float:
    """What a trial has cost, or may still cost while it runs."""
    if trial.status == "running" and trial.allotment_usd is not None:
        return max(trial.cost_usd, trial.allotment_usd)
    return trial.cost_usd
