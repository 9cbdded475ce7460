"""Train: segments, one after another, each under its own decision, until the run has ended."""

import logging
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from launcher import rescue, stored
from launcher.awaiting import await_node
from launcher.book import now
from launcher.budget import seconds_left
from launcher.cluster import Cluster
from launcher.deciding import Decider
from launcher.errors import (
    BudgetTooSmallError,
    LauncherError,
    StorageError,
    TrainingFailedError,
)
from launcher.growing import Growing
from launcher.inspection import RayInspection
from launcher.lookout import SILENT_S, SegmentLookout
from launcher.plan_exchange import decentralized_of, direct_of, stages_of
from launcher.prepare import Measured
from launcher.record import CheckpointRecord, Outcome, Segment, timestamp
from launcher.rescue import Settled
from launcher.reviewer import Reviewer
from launcher.roster import RayRoster
from launcher.scaling import candidates, wanted_nodes
from launcher.sentries import LocalPosts, RayPosts, Sentries
from launcher.setbacks import Setbacks
from launcher.site_data import AnyData
from launcher.start_point import StartPoint, start_point
from launcher.stretch import Stretch
from launcher.supervise import Ended, Move, Supervisor
from launcher.surroundings import Surroundings
from launcher.trainer import SegmentRun, start_keeper
from launcher.worker.job import Job
from policies.first_slices import first_slices
from policies.schema import Decision, Node, Plan
from policies.wording import workers

logger = logging.getLogger(__name__)

NEARLY_SILENT_S: Final = SILENT_S - 1.5  # of a node that another one has found silent
RELEASE_S: Final = 10.0  # the nodes of workers that were ended are free again after at most so long
FREED_S: Final = 1.0  # after the last segment, nodes are watched until free for at most so long
_POLL_S: Final = 0.2


class Segments:
    """The training part of one stretch of a run.

    Args:
        cluster: with the nodes that are fit to train.
        job: as all segments share it.
        growing: starts nodes that a plan needs.
        data: that the nodes of a plan must have.
    """

    def __init__(
        self,
        stretch: Stretch,
        cluster: Cluster,
        measured: Measured,
        job: Job,
        growing: Growing,
        data: AnyData,
    ) -> None:
        self._stretch, self._job, self._decider = stretch, job, Decider(stretch, data)
        self._data = data
        self._growing, self._around = growing, Surroundings(cluster, measured)
        self._setbacks = Setbacks()
        self._sentries = Sentries(LocalPosts() if cluster.embedded else RayPosts())
        self._roster = RayRoster(cluster)
        self._inspection = RayInspection(stretch, cluster, job, self._sentries, data)
        self._keeper: Any = None
        self._start = StartPoint()
        self._files: dict[str, str] = {}  # "model", "artifacts" → path in storage

    def run(self) -> str:
        """Blocks until the run has ended; how it ended (a `Status` of the record).

        Raises:
            LauncherError: it failed.
        """
        try:
            end = self._run()
        except LauncherError:
            if (text := self._settled()) is not None:
                self._stretch.warn(text)
            raise
        finally:
            self._let_go()
            self._sentries.dismiss()
        if (text := self._settled()) is not None:
            raise StorageError(text)
        return end

    def _run(self) -> str:
        move: Move | None = None
        while True:
            self._find_checkpoint()
            try:
                decision = self._decided(move)
            except BudgetTooSmallError as error:
                if self._keeper is None:
                    raise
                return self._out_of_means(error)
            if self._stretch.request.dry_run:
                return "done"
            if self._keeper is None:
                self._decider.confirm(decision)
            if self._grows(decision):
                continue
            try:
                if not self._has_data(decision):
                    continue
            except BudgetTooSmallError as error:
                if self._keeper is None:
                    raise
                return self._out_of_means(error)
            if self._keeper is None:
                stretch = self._stretch
                self._keeper = start_keeper(stretch.store.storage.uri, stretch.book.record)
            ended = self._segment(decision)
            self._keep(ended)
            move = ended.move
            if not self._goes_on(ended):
                return ended.end

    # ------------------------------------------------------------------ between segments

    def _find_checkpoint(self) -> None:
        stretch = self._stretch
        self._start = start_point(self._keeper, stretch.folder, stretch.warn)

    def _decided(self, move: Move | None) -> Decision:
        """The plan of the next segment; what a move has decided holds if its nodes are there."""
        around = self._around
        if self._keeper is not None and not candidates(around.candidates):
            around.renew(*await_node(self._stretch, self._growing, self._roster, around))
        planned = move.decision if move is not None else None
        if planned is not None and around.has(planned.chosen.nodes):
            return planned
        situation = self._decider.situation(
            around.candidates, around.measured, self._start.position
        )
        if self._keeper is None:
            return self._decider.decided(situation, self._steps_done)
        decision = self._decider.made(situation, self._steps_done, around.slow)
        plan = decision.chosen
        text = f"Going on with {workers(plan.n_workers)} on {around.names(plan.nodes)}."
        self._decider.note(decision, situation, f"{text} {decision.reason}")
        return decision

    def _grows(self, decision: Decision) -> bool:
        """Whether nodes of the plan had to be started first; then it is decided again."""
        wanted = wanted_nodes(decision.chosen, self._around.cluster)
        if not wanted:
            self._growing.settle()
            return False
        self._around.renew(*self._growing.grown(self._around.candidates, wanted))
        self._decider.has_asked_for_nodes = True
        return True

    def _has_data(self, decision: Decision) -> bool:
        """Bring the data to the plan's nodes; False: some cannot have them, decide without those.

        Raises:
            LauncherError: none can have them.
            BudgetTooSmallError: money or time have run out meanwhile.
        """
        nodes = self._around.nodes(decision.chosen.nodes)
        failed = self._data.bring(nodes)
        if len(failed) == len(nodes):
            raise next(iter(failed.values()))
        for node, error in failed.items():
            self._stretch.warn(f"{self._around.names([node])} is left out: {error}")
        self._lose(failed)
        if not failed:
            self._data.rest()
        return not failed

    @property
    def _steps_done(self) -> int:
        return self._start.steps_done

    def _out_of_means(self, error: BudgetTooSmallError) -> str:
        """What is left of budget or deadline is too little to start again."""
        stretch, allowance = self._stretch, self._stretch.allowance
        stretch.warn(str(error))
        money_s = seconds_left(stretch.meter, allowance.budget_usd, None)
        time_s = seconds_left(stretch.meter, None, allowance.deadline_at_s)
        is_money = allowance.deadline_at_s is None or money_s <= time_s
        return "budget" if is_money else "deadline"

    def _goes_on(self, ended: Ended) -> bool:
        """Whether another segment follows, with what is left of the cluster.

        Raises:
            LauncherError: the run has failed.
        """
        if ended.end == "moved":
            self._await_release()
            return True
        if ended.error is None:
            return False
        if not isinstance(ended.error, TrainingFailedError):
            raise ended.error
        self._find_checkpoint()
        self._setbacks.count(self._steps_done)
        if self._setbacks.is_enough:
            raise TrainingFailedError(
                f"{ended.error} That is the third time in a row after step {self._steps_done:,}: "
                "trying again is of no use. Once the cause is gone, go on from the last "
                f"checkpoint with: launch resume {self._stretch.run}"
            )
        self._stretch.screen.warn(f"{ended.error} Starting again from the last checkpoint.")
        kind = "stuck" if ended.lost and ended.lost.is_stuck else "restart"
        self._stretch.happened(kind, str(ended.error))
        self._without_lost(ended)
        return True

    def _without_lost(self, ended: Ended) -> None:
        """Find out who is left, and when they are free."""
        plan = self._stretch.book.record.segments[-1].plan
        lost = set(ended.lost.nodes) if ended.lost is not None else set()
        if ended.peer is not None and ended.peer < plan.n_workers:
            lost |= self._silent([plan.nodes[ended.peer]])
        self._lose(lost)
        self._await_release()
        if not lost and (ended.is_cut or self._setbacks.n > 1):
            self._measure_links()

    def _measure_links(self) -> None:
        """All nodes live, but not all reach each other: see which."""
        nodes = self._around.candidates.nodes
        if len(nodes) < 2:
            return
        self._stretch.stage("measuring the network again")
        self._around.remap(self._inspection.links(nodes))
        self._stretch.note_measured(self._around.measured)

    def _lose(self, nodes: Collection[str]) -> None:
        """These nodes are no candidates any more, until they have come back."""
        self._around.lost |= set(nodes)
        self._sentries.drop(nodes)

    def _silent(self, nodes: Collection[str]) -> set[str]:
        """Which of these nodes, one of whose workers was lost, have not been heard since."""
        asked_s = time.monotonic()
        while not (silent := self._sentries.silent(nodes, NEARLY_SILENT_S)):
            self._sentries.poll()
            if not self._sentries.silent(nodes, time.monotonic() - asked_s):
                break
            time.sleep(_POLL_S)
        return set(silent)

    def _await_release(self) -> None:
        """Wait until the last segment's nodes are free again; without those that are not."""
        around, plan = self._around, self._stretch.book.record.segments[-1].plan
        used = set(plan.nodes) - around.gone
        self._stretch.meter.keep_only(around.nodes(used))
        until_s = time.monotonic() + RELEASE_S
        while missing := used - {node.id for node in self._roster.free()} - around.lost:
            self._sentries.poll()
            is_over = time.monotonic() > until_s
            self._lose(missing if is_over else self._sentries.silent(missing, SILENT_S))
            time.sleep(_POLL_S)
        self._stretch.meter.keep_only(around.nodes(used - around.lost))

    def _let_go(self) -> None:
        """Stop counting once the nodes are free: what follows is this machine's own work."""
        segments = self._stretch.book.record.segments
        used = set(segments[-1].plan.nodes) - self._around.lost if segments else set()
        until_s = time.monotonic() + FREED_S
        while used - {node.id for node in self._roster.free()} and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        self._stretch.meter.keep_only(())

    # ------------------------------------------------------------------ a segment

    def _segment(self, decision: Decision) -> Ended:
        stretch, plan = self._stretch, decision.chosen
        around = self._around
        nodes = {node.id: node for node in around.cluster.nodes}
        held = [nodes[node] for node in dict.fromkeys(plan.nodes)]
        stretch.meter.hold(held)
        stretch.meter.keep_only(held)
        fit = around.measured.workload.fits[0]
        segment = Segment(plan, timestamp(now()), global_batch=fit.global_batch)
        record = stretch.book.record
        stretch.book.write(replace(record, segments=(*record.segments, segment)))
        watch = f"{stretch.run}-{secrets.token_hex(4)}"
        self._sentries.watch(held, watch)
        training = SegmentRun(
            stretch.run,
            plan,
            replace(self._placed(plan, held), watch=watch),
            self._keeper,
            stretch.log_dir / "ray-train",
            around.measured.network,
            self._sentries.end_workers,
        )
        training.start()
        return Supervisor(
            training,
            stretch.book,
            stretch.meter,
            stretch.allowance,
            stretch.screen,
            stretch.interrupts,
            steps_per_epoch=fit.steps,
            expected_step_s=decision.candidate.prediction.step_s.mean,
            steps_before=self._steps_done,
            lookout=SegmentLookout(
                stretch.run, plan, nodes, self._sentries, self._reviewer(decision).review
            ),
        ).run()

    def _reviewer(self, decision: Decision) -> Reviewer:
        step_s = decision.candidate.prediction.step_s
        return Reviewer(
            self._stretch,
            self._decider,
            self._around,
            self._roster,
            self._inspection,
            decision.chosen,
            (step_s.low, step_s.high),
            time.monotonic,
        )

    def _placed(self, plan: Plan, held: Sequence[Node]) -> Job:
        """The job with each rank's node and threads, and the checkpoint to go on from."""
        cpus = {node.id: node.cpus for node in held}
        direct, workload = direct_of(plan), self._around.measured.workload
        batch = workload.fits[0].global_batch
        threads = [max(1, int(cpus[node] / plan.nodes.count(node))) for node in plan.nodes]
        return replace(
            self._job,
            node_ids=plan.nodes,
            threads=tuple(threads),
            direct=direct,
            decentralized=decentralized_of(plan, self._data.sites(plan.nodes)),
            stages=stages_of(plan, workload),
            shares=first_slices(plan, held, workload, batch) if direct is not None else (),
            sync_batchnorm=plan.options.sync_batchnorm,
            checkpoint=self._start.checkpoint,
            artifacts=self._start.files,
            data=self._data.places(plan.nodes),
        )

    # ------------------------------------------------------------------ the end

    def _keep(self, ended: Ended) -> None:
        """Note the metrics of the last epoch, and where model and artifacts are."""
        self._files |= ended.files
        record = self._stretch.book.record
        outcome = record.outcome or Outcome(0.0, 0.0)
        outcome = replace(outcome, metrics=ended.metrics or outcome.metrics)
        self._stretch.book.write(replace(record, outcome=outcome))

    def _settled(self) -> str | None:
        """See that storage has all files; what is to be said if it has not."""
        if self._keeper is None:
            return None
        stretch, allowance = self._stretch, self._stretch.allowance
        left_s = seconds_left(stretch.meter, allowance.budget_usd, allowance.deadline_at_s)
        wait_s = max(0.0, min(rescue.WAIT_S, left_s - 1.0))
        settled = stretch.rescue.files(self._keeper, wait_s, stretch.stage)
        self._files |= {e.kind: e.detail["path"] for e in settled.events if "path" in e.detail}
        self._name_files(settled)
        return settled.text

    def _name_files(self, settled: Settled) -> None:
        """Name model and artifacts in the outcome; lay the artifacts out for people."""
        folder, record = self._stretch.folder, self._stretch.book.record
        outcome = record.outcome or Outcome(0.0, 0.0)
        if (model := self._files.get("model")) is not None:
            outcome = replace(outcome, model=folder.path(model))
        files = self._files.get("artifacts")
        if files is not None and settled.text is None:
            outcome = replace(outcome, artifacts=stored.laid_out(folder, files, self._stretch.warn))
        for path, place in settled.places.items():
            if path.startswith("model."):
                outcome = replace(outcome, model=str(place))
            if path.endswith(".zip"):
                outcome = replace(outcome, artifacts=str(place))
        late = [event.detail for event in settled.events if event.kind == "checkpoint"]
        kept = [
            CheckpointRecord(timestamp(now()), each["position"], each["path"], each["bytes"])
            for each in late
        ]
        record = replace(record, outcome=outcome, checkpoints=(*record.checkpoints, *kept))
        self._stretch.book.write(record)
