"""Looks, while a segment runs, whether another plan has become better, and says why or why not."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

from launcher.deciding import Decider, stops_s
from launcher.errand import Errand, Errands, Outcome, UnderWay
from launcher.errors import LauncherError
from launcher.inspection import Inspection, Newcomers
from launcher.roster import Roster
from launcher.standing import Standing
from launcher.stretch import Stretch
from launcher.supervise import Move
from launcher.surroundings import Surroundings
from policies.data.sweep import shipped_prior
from policies.moving import Outlook, Pace, outlook
from policies.recommend import NoPlanError
from policies.schema import Decision, Network, Node, Plan, Situation
from policies.slowed import slow_factors
from policies.wording import workers

logger = logging.getLogger(__name__)

REVIEW_EVERY_S: Final = 2.0
RECENT_S: Final = 10.0
RECENT_STEPS: Final = 5  # at least
# Before steps are compared with what they took, or were predicted to take.
SETTLED_S: Final = 20.0
SETTLED_STEPS: Final = 30
SURPRISE: Final = 1.25  # beyond the prediction's interval
# What measuring may disturb: a hundredth of the time, and a little to begin with.
DISTURBED_PART: Final = 0.01
DISTURBED_S: Final = 8.0
LINKS_LIMIT_S: Final = 20.0
NEWCOMERS_LIMIT_S: Final = 150.0
AGAIN_S: Final = 60.0  # until a node that was not fit is looked at again


class Reviewer:
    """Reviews the plan of one segment.

    Args:
        around: what may be planned with; kept up to date.
        plan: of the segment.
        predicted_s: 90 % interval of a step, as it was predicted.
        clock: monotonic seconds.
        errands: send what is slow into the background.
    """

    def __init__(
        self,
        stretch: Stretch,
        decider: Decider,
        around: Surroundings,
        roster: Roster,
        inspection: Inspection,
        plan: Plan,
        predicted_s: tuple[float, float],
        clock: Callable[[], float],
        errands: Errands = Errand,
    ) -> None:
        self._stretch, self._decider, self._around = stretch, decider, around
        self._roster, self._inspection, self._plan = roster, inspection, plan
        self._predicted_s, self._clock, self._errands = predicted_s, clock, errands
        self._next_s = 0.0
        self._first_step_s: float | None = None
        self._recent: deque[tuple[float, float]] = deque()  # when it was heard, seconds of a step
        self._n_timed = 0
        self._pace = Pace()
        self._was_compared = False
        self._speeds: Mapping[str, float] = {}
        self._errand: tuple[str, UnderWay] | None = None
        self._joining: tuple[Node, ...] = ()
        self._not_before_s: dict[str, float] = {}
        self._disturbed_s = 0.0
        self._errand_began_s = 0.0
        self._has_moved = False

    def review(self, standing: Standing) -> Move | None:
        """Whether to move, now and then; called several times a second."""
        now_s = self._clock()
        self._time(standing, now_s)
        if now_s < self._next_s or self._has_moved:
            return None
        self._next_s = now_s + REVIEW_EVERY_S
        move = self._notices(standing)
        if move is None and standing.can_go_on:
            move = self._come_home(standing, now_s) or self._surprise(standing, now_s)
        self._has_moved = move is not None
        if move is None and standing.can_go_on:
            self._joins(now_s)
            self._slowness(now_s)
        return move

    # ------------------------------------------------------------------ steps

    def _time(self, standing: Standing, now_s: float) -> None:
        """Keep the steps of the last seconds."""
        new = standing.n_timed - self._n_timed
        self._n_timed = standing.n_timed
        if new > 0:
            self._recent.extend((now_s, each) for each in standing.step_times[-new:])
        if standing.steps and self._first_step_s is None:
            self._first_step_s = now_s
        while len(self._recent) > RECENT_STEPS and self._recent[0][0] < now_s - RECENT_S:
            self._recent.popleft()

    @property
    def _step_s(self) -> float | None:
        """What a step takes at present."""
        if len(self._recent) < RECENT_STEPS:
            return None
        return median(each for _, each in self._recent)

    def _is_settled(self, now_s: float) -> bool:
        began_s = self._first_step_s
        return (
            began_s is not None and now_s - began_s >= SETTLED_S and self._n_timed >= SETTLED_STEPS
        )

    # ------------------------------------------------------------------ what may happen

    def _notices(self, standing: Standing) -> Move | None:
        """Nodes that are to leave: off them with a checkpoint before they do."""
        leaving = self._roster.leaving()
        fresh = [node for node in leaving if node not in self._around.leaving]
        if not fresh:
            return None
        self._around.leaving |= set(fresh)
        names = self._around.names(fresh)
        left_s = min((s for s in map(leaving.get, fresh) if s is not None), default=None)
        when = "soon" if left_s is None else f"in {left_s:.0f} s"
        cause = f"{names} had notice to leave {when}"
        if not set(fresh) & set(self._plan.nodes):
            self._stretch.note(f"{cause}: not planned with any more.")
            return None
        return self._forced(standing, cause)

    def _joins(self, now_s: float) -> None:
        """Nodes that have come, or come back: look at them in the background."""
        if self._errand is not None or not self._is_settled(now_s):
            return
        around = self._around
        known = {node.id for node in around.cluster.nodes} | around.leaving
        if now_s - (self._first_step_s or now_s) > AGAIN_S:  # Ray has noticed by now who is dead
            known -= around.lost
        fresh = tuple(
            node
            for node in self._roster.free()
            if node.id not in known and now_s >= self._not_before_s.get(node.id, 0.0)
        )
        if not fresh or not self._may_disturb(now_s):
            return
        self._joining = fresh
        beside = [node for node in around.candidates.nodes if node.id in self._plan.nodes]
        known_measured = around.measured
        self._stretch.note(f"{_names(fresh)} joined: looking at it while training goes on.")
        self._send(
            "joined",
            lambda: self._inspection.newcomers(fresh, beside, known_measured),
            NEWCOMERS_LIMIT_S,
        )

    def _slowness(self, now_s: float) -> None:
        """Steps that have become slow: measure the plan's links and nodes again."""
        step_s = self._step_s
        if step_s is None or not self._is_settled(now_s):
            return
        used = tuple(dict.fromkeys(self._plan.nodes))
        if not self._speeds and self._errand is None:
            self._send("speeds", lambda: self._inspection.speeds(used), LINKS_LIMIT_S)
        self._pace = self._pace.after(step_s, now_s)
        if not self._pace.is_slow(now_s) or self._errand is not None:
            return
        if not self._may_disturb(now_s):
            return
        nodes = [n for n in self._around.candidates.nodes if n.id in used]
        self._stretch.note(
            f"steps take {step_s * 1e3:.0f} ms, not {(self._pace.usual_s or 0) * 1e3:.0f} ms as "
            "before: measuring the plan's links and nodes."
        )
        self._pace = Pace(step_s)  # the new reference, whatever comes of it
        self._send("slow", lambda: self._measured(nodes), LINKS_LIMIT_S)

    def _measured(self, nodes: Sequence[Node]) -> tuple[Network | None, Mapping[str, float]]:
        speeds = self._inspection.speeds([node.id for node in nodes])
        return self._inspection.links(nodes) if len(nodes) > 1 else None, speeds

    def _surprise(self, standing: Standing, now_s: float) -> Move | None:
        """Steps that the prediction had not foreseen: decide again with what was measured."""
        step_s = self._step_s
        if self._was_compared or step_s is None or not self._is_settled(now_s):
            return None
        self._was_compared = True
        low_s, high_s = self._predicted_s
        if low_s / SURPRISE <= step_s <= high_s * SURPRISE:
            return None
        return self._weighed(standing, f"steps take {step_s * 1e3:.0f} ms, not as predicted")

    # ------------------------------------------------------------------ errands

    def _may_disturb(self, now_s: float) -> bool:
        began_s = self._first_step_s if self._first_step_s is not None else now_s
        return self._disturbed_s <= DISTURBED_S + DISTURBED_PART * (now_s - began_s)

    def _send(self, kind: str, action: Callable[[], Any], limit_s: float) -> None:
        self._errand_began_s = self._clock()
        self._errand = kind, self._errands(action, limit_s, self._clock)

    def _come_home(self, standing: Standing, now_s: float) -> Move | None:
        """Take what an errand brought."""
        if self._errand is None:
            return None
        kind, errand = self._errand
        outcome = errand.outcome()
        if outcome is None:
            return None
        self._errand = None
        self._disturbed_s += now_s - self._errand_began_s
        if kind == "joined":
            return self._on_joined(outcome, standing, now_s)
        if kind == "slow":
            return self._on_slow(outcome, standing)
        self._speeds = outcome.result or {}
        return None

    def _on_joined(
        self, outcome: Outcome[Newcomers], standing: Standing, now_s: float
    ) -> Move | None:
        used = [n for n in self._around.cluster.nodes if n.id in self._plan.nodes]
        self._stretch.meter.keep_only(used)  # profiling is over
        names, found = _names(self._joining), outcome.result
        self._not_before_s |= {node.id: now_s + AGAIN_S for node in self._joining}
        if found is None:
            are = "is" if len(self._joining) == 1 else "are"
            self._stretch.note(f"{names} joined, but {are} left out: {_sentence(outcome.error)}")
            return None
        self._around.join(found.nodes, found.measured)
        self._stretch.note_cluster(self._around.candidates)
        self._stretch.note_measured(found.measured)
        return self._weighed(standing, f"{_names(found.nodes)} joined")

    def _on_slow(
        self,
        outcome: Outcome[tuple[Network | None, Mapping[str, float]]],
        standing: Standing,
    ) -> Move | None:
        if outcome.result is None:
            why = _sentence(outcome.error)
            self._stretch.note(f"links and nodes could not be measured: {why}")
            return None
        around, (network, speeds) = self._around, outcome.result
        factors = slow_factors(self._speeds, speeds)
        around.slow_down(factors)
        if network is not None:
            around.remap(network)
        self._stretch.note_measured(around.measured)
        causes = [f"{around.names([n])} computes {f:.1f} × slower" for n, f in factors.items()]
        return self._weighed(standing, " and ".join(causes) or "steps have become slow")

    # ------------------------------------------------------------------ decisions

    def _weighed(self, standing: Standing, cause: str) -> Move | None:
        """Decide again; move only when that pays. Either way it is written down and shown."""
        situation = self._situation(standing)
        found = self._outlook(situation, standing)
        if found is None:
            return None
        request, now_s = self._stretch.request, self._clock()
        verdict = found.weighed(self._around.moves, now_s, by_cost=request.objective == "cost")
        if not verdict.moves:
            decision = found.stayed(verdict.why)
            self._decider.note(decision, situation, f"{cause}. {decision.reason}")
            return None
        self._around.moves = self._around.moves.after(found.price_s, now_s)
        return self._moved(found.moved(cause, verdict.why), situation, cause)

    def _forced(self, standing: Standing, cause: str) -> Move:
        """Decide again without nodes that leave; without any left, stop at a checkpoint."""
        text = f"{cause}: stopping at a checkpoint"
        if not self._around.candidates.nodes:
            return Move(text)
        situation = self._situation(standing)
        standing.keep_segment()  # what was measured so far is experience, too
        try:
            decision = self._decider.made(situation, standing.total_steps, self._around.slow)
        except LauncherError as error:
            logger.info("%s: %s", cause, error)
            return Move(text)
        return self._moved(decision, situation, cause)

    def _moved(self, decision: Decision, situation: Situation, cause: str) -> Move:
        n = workers(decision.chosen.n_workers)
        names = self._around.names(decision.chosen.nodes)
        self._decider.note(decision, situation, f"{cause}. Moving to {n} on {names}.")
        return Move(f"moving to {n} from a checkpoint", decision)

    def _situation(self, standing: Standing) -> Situation:
        around = self._around
        up = replace(around.candidates, to_start=(), n_to_start=0)
        return self._decider.situation(up, around.measured, standing.position)

    def _outlook(self, situation: Situation, standing: Standing) -> Outlook | None:
        standing.keep_segment()  # what was measured so far is experience, too
        if self._plan.strategy == "pipeline":
            return None  # its steps are not compared with those of other plans
        try:
            return outlook(
                situation,
                self._decider.experience(self._around.slow),
                self._plan,
                at_step=standing.total_steps,
                step_s=self._step_s,
                stops_s=stops_s(self._stretch.book.record),
                prior=shipped_prior(),
            )
        except NoPlanError as error:
            logger.info("no other plan: %s", error)
            return None


def _sentence(text: str | None) -> str:
    """An error's text with a stop behind it, unless it brings one."""
    said = text or "nothing is known of why"
    return said if said.endswith((".", "?", "!")) else f"{said}."


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.ip for node in nodes)
