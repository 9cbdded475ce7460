"""Train: segments, one after another, each under its own decision, until the run has ended."""

import logging
import secrets
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from launcher import rescue, stored
from launcher.book import now
from launcher.budget import seconds_left
from launcher.cluster import Cluster, refresh
from launcher.deciding import Decider
from launcher.errors import (
    BudgetTooSmallError,
    LauncherError,
    StorageError,
    TrainingFailedError,
)
from launcher.lookout import SILENT_S, SegmentLookout
from launcher.prepare import Measured
from launcher.record import CheckpointRecord, Outcome, Segment, timestamp
from launcher.rescue import Settled
from launcher.sentries import RayPosts, Sentries
from launcher.setbacks import Setbacks
from launcher.start_point import StartPoint, start_point
from launcher.stretch import Stretch
from launcher.supervise import Ended, Supervisor
from launcher.trainer import SegmentRun, start_keeper
from launcher.worker.job import Direct, Job
from policies.schema import Decision, Node, Plan

logger = logging.getLogger(__name__)

RELEASE_S: Final = 10.0  # the nodes of workers that were ended are free again after at most so long
_POLL_S: Final = 0.2


class Segments:
    """The training part of one stretch of a run.

    Args:
        cluster: with the nodes that are fit to train.
        job: as all segments share it.
    """

    def __init__(self, stretch: Stretch, cluster: Cluster, measured: Measured, job: Job) -> None:
        self._stretch, self._cluster, self._measured = stretch, cluster, measured
        self._job, self._decider = job, Decider(stretch)
        self._setbacks = Setbacks()
        self._sentries = Sentries(RayPosts())
        self._lost: set[str] = set()  # nodes that were silent, while Ray still counts them
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
            self._sentries.dismiss()
        if (text := self._settled()) is not None:
            raise StorageError(text)
        return end

    def _run(self) -> str:
        while True:
            self._find_checkpoint()
            try:
                decision = self._decided()
            except BudgetTooSmallError as error:
                if self._keeper is None:
                    raise
                return self._out_of_means(error)
            if self._stretch.request.dry_run:
                return "done"
            if self._keeper is None:
                self._decider.confirm(decision)
                self._keeper = start_keeper(
                    self._stretch.store.storage.uri, self._stretch.book.record
                )
            ended = self._segment(decision)
            self._keep(ended)
            if not self._goes_on(ended):
                return ended.end

    # ------------------------------------------------------------------ between segments

    def _find_checkpoint(self) -> None:
        stretch = self._stretch
        self._start = start_point(self._keeper, stretch.folder, stretch.warn)

    def _decided(self) -> Decision:
        situation = self._decider.situation(self._cluster, self._measured, self._start.position)
        return self._decider.decided(situation, self._steps_done)

    @property
    def _steps_done(self) -> int:
        return self._start.steps_done

    def _out_of_means(self, error: BudgetTooSmallError) -> str:
        """What is left of budget or deadline is too little to start again."""
        self._stretch.warn(str(error))
        request = self._stretch.request
        return "budget" if request.budget_usd is not None else "deadline"

    def _goes_on(self, ended: Ended) -> bool:
        """Whether another segment follows, with what is left of the cluster.

        Raises:
            LauncherError: the run has failed.
        """
        if ended.error is None:
            return ended.end == "moved"
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
        """Find out who is left, and when they are free; nodes that are lost cost no more."""
        plan = self._stretch.book.record.segments[-1].plan
        lost = set(ended.lost.nodes) if ended.lost is not None else set()
        if ended.peer is not None and ended.peer < plan.n_workers:
            lost |= self._silent([plan.nodes[ended.peer]])
        self._lost |= lost
        self._sentries.drop(lost)
        left = [node for node in self._cluster.nodes if node.id not in self._lost]
        self._stretch.meter.keep_only([node for node in left if node.id in plan.nodes])
        self._cluster = self._measured.checkup.fit_part(self._refreshed(self._lost))
        self._stretch.note_cluster(self._cluster)

    def _silent(self, nodes: Collection[str]) -> set[str]:
        """Which of these nodes, one of whose workers was lost, have not been heard since."""
        asked_s = time.monotonic()
        while time.monotonic() - asked_s < SILENT_S:
            self._sentries.poll()
            if not self._sentries.silent(nodes, time.monotonic() - asked_s):
                return set()
            time.sleep(_POLL_S)
        return set(nodes)

    def _refreshed(self, without: Collection[str]) -> Cluster:
        """The cluster once no node of it is held by what has just ended, without some nodes."""
        until_s = time.monotonic() + RELEASE_S
        known = {each.node.id for each in self._cluster.busy}
        while True:
            found = refresh(self._cluster, 0.0)
            held = {each.node.id for each in found.busy} - known - set(without)
            if not held or time.monotonic() > until_s:
                kept = tuple(node for node in found.nodes if node.id not in without)
                return replace(found, nodes=kept)
            time.sleep(_POLL_S)

    # ------------------------------------------------------------------ a segment

    def _segment(self, decision: Decision) -> Ended:
        stretch, plan = self._stretch, decision.chosen
        nodes = {node.id: node for node in self._cluster.nodes}
        held = [nodes[node] for node in dict.fromkeys(plan.nodes)]
        stretch.meter.hold(held)
        stretch.meter.keep_only(held)
        fit = self._measured.workload.fits[0]
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
            self._measured.network,
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
            lookout=SegmentLookout(stretch.run, plan, nodes, self._sentries),
        ).run()

    def _placed(self, plan: Plan, held: Collection[Node]) -> Job:
        """The job with each rank's node and threads, and the checkpoint to go on from."""
        cpus = {node.id: node.cpus for node in held}
        threads = [max(1, int(cpus[node] / plan.nodes.count(node))) for node in plan.nodes]
        return replace(
            self._job,
            node_ids=plan.nodes,
            threads=tuple(threads),
            direct=_direct(plan),
            sync_batchnorm=plan.options.sync_batchnorm,
            checkpoint=self._start.checkpoint,
            artifacts=self._start.files,
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


def _direct(plan: Plan) -> Direct | None:
    """What the workers need to exchange gradients by themselves."""
    options = plan.options
    if plan.strategy != "direct" or options.algorithm is None:
        return None
    return Direct(options.algorithm, options.sites, secrets.token_bytes(32), options.overlap)
