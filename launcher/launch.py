"""One stretch of a run, from connecting to a cluster until its nodes are released.

It joins the stages: measure → decide → act → record. Whatever happens, the nodes are released
and the record says how the run ended.
"""

import contextlib
import importlib
import logging
import secrets
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from launcher import stored
from launcher.book import Book, now
from launcher.budget import Meter
from launcher.cluster import Cluster, connect, disconnect, refresh
from launcher.config import Environment, Request
from launcher.errors import (
    BudgetTooSmallError,
    LauncherError,
    TrainingFailedError,
    UsageError,
)
from launcher.interrupts import Interrupts
from launcher.prepare import Measured, make_job, measure
from launcher.record import (
    ClusterRecord,
    Outcome,
    RunRecord,
    Segment,
    timestamp,
)
from launcher.runs import RunStore
from launcher.standing import View
from launcher.stored import Shipped
from launcher.supervise import Allowance, Ended, Supervisor
from launcher.trainer import SegmentRun, start_keeper
from launcher.worker.job import Direct, Job
from policies.candidates import pools
from policies.schema import Decision, Experience, Limits, Plan, Situation

logger = logging.getLogger(__name__)

EXIT_CODES = {"done": 0, "failed": 1, "budget": 5, "deadline": 5, "interrupted": 130}
SURE = 0.9  # a plan that fits with at least this probability needs no question
MAX_ATTEMPTS = 3  # segments that end because workers died


class Screen(View, Protocol):
    """What a run shows and asks."""

    def cluster(self, cluster: Cluster) -> None:
        """Show which cluster it is, and its nodes."""

    def measured(self, measured: Measured, cluster: Cluster) -> None:
        """Show network and script."""

    def decided(self, decision: Decision, situation: Situation) -> None:
        """Show the candidates and the reason."""

    def confirm(self, question: str) -> bool:
        """Ask the person at the terminal."""

    def ended(self, record: RunRecord) -> None:
        """Show the outcome."""


@dataclass(frozen=True, slots=True)
class Result:
    """The record, and the error to show if the run failed. `record.exit_code` is the command's."""

    record: RunRecord
    error: LauncherError | None = None


class Launch:
    """One stretch of a run: from connecting to a cluster until its nodes are released."""

    def __init__(
        self,
        request: Request,
        environment: Environment,
        screen: Screen,
        log_dir: Path,
        shipped: Shipped,
        store: RunStore,
        book: Book,
    ) -> None:
        self._request, self._environment, self._screen = request, environment, screen
        self._log_dir, self._shipped = log_dir, shipped
        self._store, self._book = store, book
        self._folder = store.folder(book.record.run)
        self._checkpoint: bytes | None = None
        self._position: dict[str, Any] = {}
        self._began_s = time.monotonic()
        before = book.record.outcome
        self._before_s = before.time_s if before else 0.0
        self._meter = Meter(time.monotonic, before.cost_usd if before else 0.0)
        self._interrupts = Interrupts()
        self._metrics: dict[str, float] = dict(before.metrics) if before else {}
        deadline_s = request.deadline_s
        at_s = None if deadline_s is None else self._began_s + deadline_s
        self._allowance = Allowance(request.budget_usd, at_s)

    def result(self) -> Result:
        """Carry the stretch out; the record is closed whatever happens."""
        threading.Thread(target=_import_ahead, name="launch-imports", daemon=True).start()
        end: str = "failed"
        error: LauncherError | None = None
        try:
            with self._interrupts.handled():
                end = self._connected()
        except KeyboardInterrupt:
            end = "interrupted"
        except LauncherError as raised:
            error = raised
        except BaseException:
            self._close("failed", None)
            raise
        finally:
            self._meter.release_all()
        self._close(end, error)
        self._screen.ended(self._book.record)
        return Result(self._book.record, error)

    def _close(self, end: str, error: LauncherError | None) -> None:
        record = self._book.record
        outcome = record.outcome or Outcome(0.0, 0.0)
        code = error.exit_code if error is not None else EXIT_CODES[end]
        self._book.write(
            replace(
                record,
                status=end,  # type: ignore[arg-type]
                exit_code=code,
                outcome=replace(
                    outcome,
                    time_s=self._before_s + time.monotonic() - self._began_s,
                    cost_usd=self._meter.spent_usd,
                    steps=sum(segment.steps for segment in record.segments),
                    metrics=self._metrics,
                    error=str(error) if error else None,
                ),
            )
        )

    # ------------------------------------------------------------------ stages

    def _stage(self, text: str) -> None:
        """Say what is going on, and note when it began."""
        self._screen.stage(text)
        self._book.write(self._book.record.happened("stage", text, now()))

    def _connected(self) -> str:
        request = self._request
        self._stage("connecting to Ray")
        cluster = connect(
            request.address,
            request.ray_address,
            price_usd_per_h=request.price_usd_per_h,
            temp_dir=None,
            log_dir=self._log_dir,
            wait_s=request.wait_s,
            progress=self._stage,
        )
        try:
            _link_ray_logs(self._log_dir)
            self._screen.cluster(cluster)
            self._note_cluster(cluster)
            return self._measured(cluster)
        finally:
            disconnect(cluster)
            self._meter.release_all()

    def _note_cluster(self, cluster: Cluster) -> None:
        noted = ClusterRecord(cluster.address, cluster.nodes, cluster.embedded, cluster.how)
        self._book.write(replace(self._book.record, cluster=noted))

    def _measured(self, cluster: Cluster) -> str:
        import ray

        job = make_job(
            self._request,
            self._shipped,
            self._book.record.run,
            ray.put(self._shipped.content),
        )
        measured = measure(
            cluster,
            self._request,
            job,
            self._shipped,
            self._environment,
            self._meter,
            self._stage,
        )
        record = replace(self._book.record, network=measured.network, workload=measured.workload)
        self._book.write(record)
        for line in measured.checkup.lines(cluster.nodes):
            self._screen.warn(line)
            self._book.write(self._book.record.happened("warning", line, now()))
        cluster = measured.checkup.fit_part(cluster)
        self._note_cluster(cluster)
        self._screen.measured(measured, cluster)
        return self._trained(cluster, measured, job)

    def _trained(self, cluster: Cluster, measured: Measured, job: Job) -> str:
        """Segments, one after another, until the run has ended."""
        keeper = None
        for attempt in range(MAX_ATTEMPTS):
            decision = self._decided(cluster, measured)
            if self._request.dry_run:
                return "done"
            if keeper is None:
                self._confirm(decision)
                keeper = start_keeper(self._store.storage.uri, self._book.record.run)
            ended = self._segment(cluster, decision.chosen, job, keeper, measured)
            lost = isinstance(ended.error, TrainingFailedError)
            if not lost or attempt == MAX_ATTEMPTS - 1:
                break
            self._screen.warn(f"{ended.error} Starting again from the last checkpoint.")
            self._book.write(self._book.record.happened("restart", str(ended.error), now()))
            cluster = measured.checkup.fit_part(refresh(cluster))
        self._metrics = ended.metrics or self._metrics
        self._keep_files(ended)
        if isinstance(ended.error, TrainingFailedError):
            name = self._book.record.run
            raise TrainingFailedError(
                f"{ended.error} It was tried {MAX_ATTEMPTS} times. Go on from the last checkpoint "
                f"with: launch resume {name}"
            )
        if ended.error is not None:
            raise ended.error
        return ended.end

    def _decided(self, cluster: Cluster, measured: Measured) -> Decision:
        checkpoint = stored.last_checkpoint(self._folder, self._book.record, self._screen.warn)
        self._checkpoint, self._position = checkpoint or (None, {})
        situation = Situation(
            nodes=cluster.nodes,
            network=measured.network,
            workload=measured.workload,
            work=stored.work_left(measured.workload, self._position),
            limits=self._limits(cluster),
            spent_usd=self._meter.session_usd,
            spent_s=time.monotonic() - self._began_s,
        )
        done = self._position.get("total_steps", 0)
        from policies.recommend import NoPlanError, recommend

        try:
            decision = recommend(
                situation, self._experience(), self._request.seed, at_step=int(done)
            )
        except NoPlanError as error:
            if error.cheapest is None:
                raise UsageError(str(error)) from error
            raise BudgetTooSmallError(str(error)) from error
        self._book.write(self._book.record.decided(decision, situation))
        self._screen.decided(decision, situation)
        return decision

    def _limits(self, cluster: Cluster) -> Limits:
        """What was asked for; after a loss at most so many workers as there are nodes left for."""
        limits, segments = self._request.limits, self._book.record.segments
        asked = limits.workers
        if asked is None or not segments or segments[-1].end != "failed":
            return limits
        if asked <= sum(pool.n_max for pool in pools(cluster.nodes, replace(limits, workers=None))):
            return limits
        self._screen.warn(f"{asked} workers cannot be had any more: going on with fewer.")
        return replace(limits, workers=None, max_workers=asked)

    def _experience(self) -> list[Experience]:
        """What past runs measured, this one's earlier segments included."""
        try:
            return list(self._store.experiences())
        except LauncherError as error:
            logger.warning("Past runs cannot be read: %s", error)
            return list(self._book.record.experiences())

    def _confirm(self, decision: Decision) -> None:
        """Ask where the run will probably be cut short."""
        if decision.p_fits >= SURE or self._request.yes:
            return
        limit = "budget" if self._request.budget_usd is not None else "deadline"
        warning = (
            f"The run will probably stop at the {limit}, with a checkpoint "
            f"(it fits with a probability of {decision.p_fits:.0%})."
        )
        if self._request.stdin_is_tty and not self._request.json:
            if self._screen.confirm(f"{warning} Start?"):
                return
            raise BudgetTooSmallError(f"Not started: raise --{limit}, or train less.")
        raise BudgetTooSmallError(
            f"{warning} Say --yes to start it all the same, or raise --{limit}."
        )

    # ------------------------------------------------------------------ a segment

    def _segment(
        self, cluster: Cluster, plan: Plan, job: Job, keeper: Any, measured: Measured
    ) -> Ended:
        held = [node for node in cluster.nodes if node.id in plan.nodes]
        self._meter.hold(held)
        self._meter.keep_only(held)
        fit = measured.workload.fits[0]
        segment = Segment(plan, timestamp(now()), global_batch=fit.global_batch)
        record = self._book.record
        self._book.write(replace(record, segments=(*record.segments, segment)))
        training = SegmentRun(
            record.run,
            plan,
            self._placed(job, plan, cluster),
            keeper,
            self._log_dir / "ray-train",
            measured.network,
        )
        chosen = record.decisions[-1].decision.candidate.prediction
        training.start()
        return Supervisor(
            training,
            self._book,
            self._meter,
            self._allowance,
            self._screen,
            self._interrupts,
            steps_per_epoch=fit.steps,
            expected_step_s=chosen.step_s.mean,
            steps_before=int(self._position.get("total_steps", 0)),
        ).run()

    def _placed(self, job: Job, plan: Plan, cluster: Cluster) -> Job:
        """The job with each rank's node and threads, and the checkpoint to go on from."""
        import ray

        cpus = {node.id: node.cpus for node in cluster.nodes}
        threads = [max(1, int(cpus[node] / plan.nodes.count(node))) for node in plan.nodes]
        data = self._checkpoint
        files = stored.read_artifacts(self._folder) if data is not None else None
        return replace(
            job,
            node_ids=plan.nodes,
            threads=tuple(threads),
            direct=_direct(plan),
            sync_batchnorm=plan.options.sync_batchnorm,
            checkpoint=None if data is None else ray.put(data),
            artifacts=None if files is None else ray.put(files),
        )

    def _keep_files(self, ended: Ended) -> None:
        """Name model and artifacts in the outcome; lay the artifacts out for people."""
        record = self._book.record
        outcome = record.outcome or Outcome(0.0, 0.0)
        if "model" in ended.files:
            outcome = replace(outcome, model=self._folder.path(ended.files["model"]))
        if "artifacts" in ended.files:
            outcome = replace(outcome, artifacts=stored.unpack_artifacts(self._folder))
        self._book.write(replace(record, outcome=outcome))


def _direct(plan: Plan) -> Direct | None:
    """What the workers need to exchange gradients by themselves."""
    options = plan.options
    if plan.strategy != "direct" or options.algorithm is None:
        return None
    return Direct(options.algorithm, options.sites, secrets.token_bytes(32))


def _link_ray_logs(log_dir: Path) -> None:
    """Put what Ray and TensorFlow say in their own processes beside our log."""
    import ray

    node = getattr(ray._private.worker, "_global_node", None)
    if node is not None:
        with contextlib.suppress(OSError):  # a name that is taken, or no links here
            (log_dir / "ray-session").symlink_to(node.get_logs_dir_path())


def _import_ahead() -> None:
    """Import what is slow to import (scikit-learn, Ray Train) while Ray starts."""
    for name in ("policies.recommend", "ray.train.v2.tensorflow.tensorflow_trainer"):
        importlib.import_module(name)
