"""Ask the policy for a plan: the situation from what was measured, and what is left to do."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from launcher import stored
from launcher.cluster import Cluster
from launcher.errors import BudgetTooSmallError, LauncherError, UsageError
from launcher.prepare import Measured
from launcher.stretch import Stretch
from policies.candidates import pools
from policies.schema import Decision, Experience, Limits, Situation

logger = logging.getLogger(__name__)

SURE: Final = 0.9  # a plan that fits with at least this probability needs no question


class Decider:
    """Makes the decisions of one stretch of a run."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch

    def situation(
        self, cluster: Cluster, measured: Measured, position: Mapping[str, Any]
    ) -> Situation:
        """What the next decision rests on, from a position on."""
        stretch = self._stretch
        return Situation(
            nodes=cluster.nodes,
            network=measured.network,
            workload=measured.workload,
            work=stored.work_left(measured.workload, dict(position)),
            limits=self._limits(cluster),
            spent_usd=stretch.meter.session_usd,
            spent_s=stretch.spent_s,
        )

    def decided(self, situation: Situation, at_step: int) -> Decision:
        """The policy's decision, written down and shown.

        Raises:
            UsageError: no plan is possible.
            BudgetTooSmallError: none has a fair chance to keep budget and deadline.
        """
        from policies.recommend import NoPlanError, recommend

        stretch = self._stretch
        try:
            decision = recommend(
                situation, self.experience(), stretch.request.seed, at_step=at_step
            )
        except NoPlanError as error:
            if error.cheapest is None:
                raise UsageError(str(error)) from error
            raise BudgetTooSmallError(str(error)) from error
        stretch.book.write(stretch.book.record.decided(decision, situation))
        stretch.screen.decided(decision, situation)
        return decision

    def experience(self) -> list[Experience]:
        """What past runs measured, this one's earlier segments included."""
        try:
            return list(self._stretch.store.experiences())
        except LauncherError as error:
            logger.warning("Past runs cannot be read: %s", error)
            return list(self._stretch.book.record.experiences())

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
        """What was asked for; after a loss at most so many workers as there are nodes left for."""
        limits, segments = self._stretch.request.limits, self._stretch.book.record.segments
        asked = limits.workers
        if asked is None or not segments or segments[-1].end not in ("failed", "moved"):
            return limits
        if asked <= sum(pool.n_max for pool in pools(cluster.nodes, replace(limits, workers=None))):
            return limits
        self._stretch.screen.warn(f"{asked} workers cannot be had any more: going on with fewer.")
        return replace(limits, workers=None, max_workers=asked)
