"""Watches a segment from outside: nodes and workers that are lost, training that is stuck."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from launcher.patience import Patience
from launcher.sentries import Sentries
from launcher.stacks import who_waits
from launcher.standing import Standing
from launcher.supervise import Lost, Move
from launcher.worker.activity import Activity
from policies.schema import Node, Plan

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.4
SILENT_S: Final = 4.0  # a node that is not heard for so long while no step is made is lost
STOPPED_S: Final = 3.0
# While everything starts, processors are short and no step tells that all is well.
STARTING_SILENT_S: Final = 15.0


class SegmentLookout:
    """Looks after the workers of one segment.

    Args:
        run: the run's name.
        plan: of the segment.
        nodes: of the cluster, by id.
        sentries: have been told to watch this segment.
        review: whether another plan is better by now.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        run: str,
        plan: Plan,
        nodes: Mapping[str, Node],
        sentries: Sentries,
        review: Callable[[Standing], Move | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._plan, self._nodes = run, plan, nodes
        self._sentries, self._review, self._clock = sentries, review, clock
        self._patience = Patience()
        self._next_s = 0.0
        self._steps, self._step_at_s = 0, clock()
        self._stopped_since_s: dict[int, float] = {}
        self._pid_by_rank: dict[int, int] = {}

    def look(self, standing: Standing) -> Lost | Move | None:
        """See `Lookout`."""
        now_s = self._clock()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + LOOK_EVERY_S
        by_node = self._sentries.poll()
        if standing.steps != self._steps:
            self._steps, self._step_at_s = standing.steps, now_s
            self._patience.moved(now_s)
        workers = [each for node in self._used for each in by_node.get(node, ())]
        self._patience.note(workers, now_s)
        return (
            self._lost_nodes(now_s)
            or self._lost_worker(workers, standing, now_s)
            or self._stuck(workers, standing, now_s)
            or self._review(standing)
        )

    @property
    def _used(self) -> tuple[str, ...]:
        """The plan's nodes, each once."""
        return tuple(dict.fromkeys(self._plan.nodes))

    def _lost_nodes(self, now_s: float) -> Lost | None:
        """All workers take part in every step: where steps are made, no node is lost.

        Where workers do not wait for each other, the first one alone makes those that are told.
        """
        patience_s = SILENT_S if self._steps else STARTING_SILENT_S
        if now_s - self._step_at_s < patience_s:
            return None
        nodes = self._plan.nodes[:1] if self._bears_losses else self._used
        silent = self._sentries.silent(nodes, patience_s)
        if not silent:
            return None
        names = ", ".join(self._nodes[node].ip for node in silent)
        return Lost(f"Lost {names}: no sign of life for {patience_s:g} s.", silent)

    def _lost_worker(
        self, workers: list[Activity], standing: Standing, now_s: float
    ) -> Lost | None:
        """A process that is gone without a word, or was stopped for good."""
        stopped = {each.rank for each in workers if each.is_stopped}
        self._stopped_since_s = {
            rank: self._stopped_since_s.get(rank, now_s) for rank in sorted(stopped)
        }
        for each in workers:
            if self._bears_losses and each.rank > 0:
                self._warn_of(each, standing)
                continue
            if not each.is_alive:
                return Lost(f"The worker of rank {each.rank} on {self._place(each.rank)} died.")
            since_s = self._stopped_since_s.get(each.rank, now_s)
            if now_s - since_s >= STOPPED_S:
                place = self._place(each.rank)
                return Lost(f"The worker of rank {each.rank} on {place} was stopped by a signal.")
        return None

    @property
    def _bears_losses(self) -> bool:
        """Whether the others go on when a worker other than the first is lost."""
        return self._plan.strategy == "decentralized"

    def _warn_of(self, worker: Activity, standing: Standing) -> None:
        """Say once of a worker that the others go on without it.

        Another process may be there in its place before anyone has seen it dead.
        """
        is_same = self._pid_by_rank.setdefault(worker.rank, worker.pid) == worker.pid
        self._pid_by_rank[worker.rank] = worker.pid
        if worker.is_alive and not worker.is_stopped and is_same:
            return
        what = "was stopped by a signal" if worker.is_alive and is_same else "died"
        standing.warn_once(
            f"The worker of rank {worker.rank} on {self._place(worker.rank)} {what}: the others "
            "go on without it. When it is there again, it takes their weights."
        )

    def _stuck(self, workers: list[Activity], standing: Standing, now_s: float) -> Lost | None:
        """No progress anywhere: say who waits for whom."""
        if not self._patience.is_over(workers, standing.step_times, now_s):
            return None
        idle_s = self._patience.idle_s(now_s)
        stacks = self._sentries.stacks(self._used)
        for rank, text in sorted(stacks.items()):
            logger.info("stack of rank %d on %s:\n%s", rank, self._place(rank), text)
        places = {rank: self._nodes[node].ip for rank, node in enumerate(self._plan.nodes)}
        who = who_waits(workers, stacks, places, self._run)
        return Lost(f"Training is stuck: no progress for {idle_s:.0f} s. {who}", is_stuck=True)

    def _place(self, rank: int) -> str:
        return self._nodes[self._plan.nodes[rank]].ip
