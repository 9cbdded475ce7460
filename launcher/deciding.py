"""Ask the policy for a plan: the situation from what was measured, and what is left to do."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from launcher import stored
from launcher.cluster import Cluster
from launcher.errors import BudgetTooSmallError, LauncherError, UsageError
from launcher.prepare import Measured
from launcher.record import RunRecord, parse_timestamp
from launcher.scaling import candidates
from launcher.site_data import AnyData
from launcher.storage import in_time
from launcher.stretch import Stretch
from policies.candidates import pools
from policies.schema import Decision, Experience, Limits, Situation

logger = logging.getLogger(__name__)

SURE: Final = 0.9  # a plan that fits with at least this probability needs no question
READ_S: Final = 60.0  # for all records of past runs


def stops_s(record: RunRecord) -> tuple[float, ...]:
    """How long each stop of this run took, from a segment's end until the next one's start."""
    pairs = zip(record.segments, record.segments[1:], strict=False)
    return tuple(
        (parse_timestamp(later.started) - parse_timestamp(earlier.ended)).total_seconds()
        for earlier, later in pairs
        if earlier.ended is not None and earlier.end in ("failed", "moved")
    )


class Decider:
    """Makes the decisions of one stretch of a run."""

    def __init__(self, stretch: Stretch, data: AnyData | None = None) -> None:
        self._stretch, self._data = stretch, data
        self._others: list[Experience] | None = None
        self._has_warned = False
        self.has_asked_for_nodes = False  # of which some may not have come

    def situation(
        self, cluster: Cluster, measured: Measured, position: Mapping[str, Any]
    ) -> Situation:
        """What the next decision rests on, from a position on."""
        stretch = self._stretch
        return Situation(
            nodes=candidates(cluster),
            network=measured.network,
            workload=measured.workload,
            work=stored.work_left(measured.workload, dict(position)),
            limits=replace(self._limits(cluster), max_started=cluster.n_to_start),
            spent_usd=stretch.meter.session_usd,
            spent_s=stretch.spent_s,
            data=self._data.ahead(cluster.nodes) if self._data is not None else None,
            upkeep_usd_per_h=stretch.meter.upkeep_usd_per_h,
        )

    def decided(self, situation: Situation, at_step: int, slow: Collection[str] = ()) -> Decision:
        """The policy's decision, written down and shown with all its candidates.

        Raises:
            LauncherError: see `made`.
        """
        decision = self.made(situation, at_step, slow)
        self._write(decision, situation)
        self._stretch.screen.decided(decision, situation)
        return decision

    def note(self, decision: Decision, situation: Situation, text: str) -> None:
        """Write a decision down and show it in a line."""
        self._write(decision, situation)
        self._stretch.screen.note(text)

    def _write(self, decision: Decision, situation: Situation) -> None:
        self._stretch.note_to_start(decision, situation.nodes)
        book = self._stretch.book
        book.write(book.record.decided(decision, situation))

    def made(self, situation: Situation, at_step: int, slow: Collection[str] = ()) -> Decision:
        """The policy's decision.

        Raises:
            UsageError: no plan is possible.
            BudgetTooSmallError: none has a fair chance to keep budget and deadline.
        """
        from policies.data.sweep import shipped_prior
        from policies.parallelism import recommend_any
        from policies.recommend import NoPlanError

        try:
            return recommend_any(
                situation,
                self.experience(slow),
                self._stretch.request.seed,
                at_step=at_step,
                prior=shipped_prior(),
            )
        except NoPlanError as error:
            if error.cheapest is None:
                raise UsageError(str(error)) from error
            raise BudgetTooSmallError(str(error)) from error

    def experience(self, slow: Collection[str] = ()) -> list[Experience]:
        """What past runs measured, read once, and this one's segments as they are now.

        Args:
            slow: nodes that became slower than they were: what was measured with them before
                and since does not tell what others of their kind do.
        """
        own = self._stretch.book.record
        if self._others is None:
            try:
                read = self._stretch.store.experiences
                found = in_time("Past runs cannot be read", read, READ_S)
            except LauncherError as error:
                logger.warning("Past runs cannot be read: %s", error)
                found = ()
            self._others = [each for each in found if each.run != own.run]
        return [
            *self._others,
            *(each for each in own.experiences() if not set(each.plan.nodes) & set(slow)),
        ]

    def confirm(self, decision: Decision) -> None:
        """Ask where the run will probably be cut short.

        Raises:
            BudgetTooSmallError: it shall not start so.
        """
        request, screen = self._stretch.request, self._stretch.screen
        if decision.p_fits >= SURE or request.yes:
            return
        limit = "budget" if request.budget_usd is not None else "deadline"
        warning = (
            f"The run will probably stop at the {limit}, with a checkpoint "
            f"(it fits with a probability of {decision.p_fits:.0%})."
        )
        if request.stdin_is_tty and not request.json:
            if screen.confirm(f"{warning} Start?"):
                return
            raise BudgetTooSmallError(f"Not started: raise --{limit}, or train less.")
        raise BudgetTooSmallError(
            f"{warning} Say --yes to start it all the same, or raise --{limit}."
        )

    def _limits(self, cluster: Cluster) -> Limits:
        """What was asked for; once begun, at most so many workers as there are nodes for."""
        limits, segments = self._stretch.request.limits, self._stretch.book.record.segments
        asked = limits.workers
        is_first = not segments
        if asked is None or (is_first and not self.has_asked_for_nodes):
            return limits
        if asked <= sum(pool.n_max for pool in pools(cluster.nodes, replace(limits, workers=None))):
            return limits
        if not self._has_warned:
            more = "" if is_first else " any more"
            self._stretch.warn(f"{asked} workers cannot be had{more}: going on with fewer.")
        self._has_warned = True
        return replace(limits, workers=None, max_workers=asked)
