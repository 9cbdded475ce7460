"""Train: segments, one after another, each under its own decision, until the run has ended."""

import logging
import secrets
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from launcher import stored
from launcher.book import now
from launcher.cluster import Cluster, refresh
from launcher.deciding import Decider
from launcher.errors import BudgetTooSmallError, TrainingFailedError
from launcher.lookout import SILENT_S, SegmentLookout
from launcher.prepare import Measured
from launcher.record import Outcome, Segment, timestamp
from launcher.sentries import RayPosts, Sentries
from launcher.setbacks import Setbacks
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
        self._checkpoint: bytes | None = None
        self._position: dict[str, Any] = {}

    def run(self) -> str:
        """Blocks until the run has ended; how it ended (a `Status` of the record).

        Raises:
            LauncherError: it failed.
        """
        try:
            return self._run()
        finally:
            self._sentries.dismiss()

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
                self._keeper = start_keeper(self._stretch.store.storage.uri, self._stretch.run)
            ended = self._segment(decision)
            self._keep(ended)
            if not self._goes_on(ended):
                return ended.end

    # ------------------------------------------------------------------ between segments

    def _find_checkpoint(self) -> None:
        stretch = self._stretch
        found = stored.last_checkpoint(stretch.folder, stretch.book.record, stretch.screen.warn)
        self._checkpoint, self._position = found or (None, {})

    def _decided(self) -> Decision:
        situation = self._decider.situation(self._cluster, self._measured, self._position)
        return self._decider.decided(situation, self._steps_done)

    @property
    def _steps_done(self) -> int:
        return int(self._position.get("total_steps", 0))

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
        import ray

        cpus = {node.id: node.cpus for node in held}
        threads = [max(1, int(cpus[node] / plan.nodes.count(node))) for node in plan.nodes]
        data = self._checkpoint
        files = stored.read_artifacts(self._stretch.folder) if data is not None else None
        return replace(
            self._job,
            node_ids=plan.nodes,
            threads=tuple(threads),
            direct=_direct(plan),
            sync_batchnorm=plan.options.sync_batchnorm,
            checkpoint=None if data is None else ray.put(data),
            artifacts=None if files is None else ray.put(files),
        )

    def _keep(self, ended: Ended) -> None:
        """Name metrics, model and artifacts in the outcome; lay the artifacts out for people."""
        record = self._stretch.book.record
        outcome = record.outcome or Outcome(0.0, 0.0)
        outcome = replace(outcome, metrics=ended.metrics or outcome.metrics)
        if "model" in ended.files:
            outcome = replace(outcome, model=self._stretch.folder.path(ended.files["model"]))
        if "artifacts" in ended.files:
            outcome = replace(outcome, artifacts=stored.unpack_artifacts(self._stretch.folder))
        self._stretch.book.write(replace(record, outcome=outcome))


def _direct(plan: Plan) -> Direct | None:
    """What the workers need to exchange gradients by themselves."""
    options = plan.options
    if plan.strategy != "direct" or options.algorithm is None:
        return None
    return Direct(options.algorithm, options.sites, secrets.token_bytes(32))
