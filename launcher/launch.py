"""One stretch of a run, from connecting to a cluster until its nodes are released.

It joins the stages: measure → decide → act → record. Whatever happens, the nodes are released
and the record says how the run ended.
"""

import contextlib
import importlib
import logging
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from launcher import rescue
from launcher.book import Book
from launcher.budget import Meter, Upkeep
from launcher.cluster import Cluster, connect, disconnect
from launcher.config import Environment, Request
from launcher.data import Data, listed
from launcher.data_words import site_uris
from launcher.errors import ClusterError, LauncherError, StorageError
from launcher.growing import Growing
from launcher.interrupts import Interrupts
from launcher.prepare import make_job
from launcher.record import Outcome, RunRecord
from launcher.runs import RunStore
from launcher.segments import Segments
from launcher.site_data import AnyData, SiteData
from launcher.stored import Shipped
from launcher.stretch import Screen, Stretch
from launcher.supervise import Allowance
from policies.wording import dollars, duration

__all__ = ["Launch", "Result", "Screen"]

logger = logging.getLogger(__name__)

EXIT_CODES = {"done": 0, "failed": 1, "budget": 5, "deadline": 5, "interrupted": 130}


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
        upkeep = request.upkeep or Upkeep(0.0, 0.0)
        began_s = time.monotonic() - upkeep.spent_s
        book.warn = screen.warn
        before = book.record.outcome
        self._before_s = before.time_s if before else 0.0
        deadline_s = request.deadline_s
        at_s = None if deadline_s is None else began_s + deadline_s
        self._stretch = Stretch(
            request,
            environment,
            screen,
            log_dir,
            shipped,
            store,
            book,
            _meter(upkeep, before.cost_usd if before else 0.0),
            Interrupts(),
            Allowance(request.budget_usd, at_s),
            began_s,
        )

    def result(self) -> Result:
        """Carry the stretch out; the record is closed whatever happens."""
        threading.Thread(target=_import_ahead, name="launch-imports", daemon=True).start()
        stretch = self._stretch
        end: str = "failed"
        error: LauncherError | None = None
        try:
            with stretch.interrupts.handled():
                end = self._connected()
        except KeyboardInterrupt:
            end = "interrupted"
        except LauncherError as raised:
            error = stretch.shipped.with_hint(raised)
        except BaseException as raised:
            error = _given_up(raised, stretch.run)
            if error is None:
                self._close("failed", None)
                raise
        finally:
            stretch.meter.release_all()
        self._close(end, error)
        error = self._record_kept(end, error)
        stretch.screen.ended(stretch.book.record)
        return Result(stretch.book.record, error)

    def _close(self, end: str, error: LauncherError | None) -> None:
        book = self._stretch.book
        outcome = book.record.outcome or Outcome(0.0, 0.0)
        code = error.exit_code if error is not None else EXIT_CODES[end]
        book.write(
            replace(
                book.record,
                status=end,  # type: ignore[arg-type]
                exit_code=code,
                outcome=replace(
                    outcome,
                    time_s=self._before_s + self._stretch.spent_s,
                    cost_usd=self._stretch.meter.spent_usd,
                    steps=sum(segment.steps for segment in book.record.segments),
                    error=str(error) if error else None,
                ),
            )
        )

    def _record_kept(self, end: str, error: LauncherError | None) -> LauncherError | None:
        """See that storage has the record; the error to show if it has not."""
        stretch = self._stretch
        text = stretch.rescue.record(stretch.book, rescue.WAIT_S)
        if text is None:
            return error
        if error is not None:
            stretch.screen.warn(text)
            return error
        error = StorageError(text)
        self._close(end, error)
        return error

    # ------------------------------------------------------------------ stages

    def _connected(self) -> str:
        stretch, request = self._stretch, self._stretch.request
        if request.upkeep is not None:
            took, cost = duration(request.upkeep.spent_s), dollars(request.upkeep.spent_usd)
            stretch.note(f"the cluster took {took} to come up: {cost}")
        manifest = listed(stretch)
        stretch.stage("connecting to Ray")
        cluster = connect(
            request.address,
            request.ray_address,
            price_usd_per_h=request.price_usd_per_h,
            temp_dir=None,
            log_dir=stretch.log_dir,
            wait_s=request.wait_s,
            progress=stretch.stage,
            may_start=not request.nodes,
            only=request.nodes,
        )
        try:
            _link_ray_logs(stretch.log_dir)
            stretch.screen.cluster(cluster)
            stretch.note_cluster(cluster)
            if site_uris(request.data):
                return self._trained(cluster, SiteData.of(stretch, cluster))
            return self._trained(cluster, Data.of(stretch, manifest, cluster))
        finally:
            disconnect(cluster)
            stretch.meter.release_all()

    def _trained(self, cluster: Cluster, data: AnyData) -> str:
        import ray

        stretch = self._stretch
        job = make_job(
            stretch.request, stretch.shipped, stretch.run, ray.put(stretch.shipped.content)
        )
        job = replace(job, data_version=data.version)
        growing = Growing(stretch, job, data)
        try:
            cluster, measured = growing.measured(growing.first(cluster))
            return Segments(stretch, cluster, measured, job, growing, data).run()
        finally:
            data.dismiss()
            growing.settle()


def _meter(upkeep: Upkeep, earlier_usd: float) -> Meter:
    """A meter that has counted what the cluster took before, and counts what it takes besides."""
    meter = Meter(time.monotonic, earlier_usd)
    meter.add(upkeep.spent_usd)
    meter.keep_up(upkeep.usd_per_h)
    return meter


def _given_up(raised: BaseException, run: str) -> ClusterError | None:
    """What to say where Ray has ended this driver's processes; None if that is not the matter."""
    from ray import exceptions

    ends = (exceptions.RayActorError, exceptions.RaySystemError, exceptions.LocalRayletDiedError)
    if not isinstance(raised, ends):
        return None
    return ClusterError(
        f"The cluster has given this driver up ({type(raised).__name__}): its machine slept, or "
        "was cut off from the head for too long. Go on from the last checkpoint: "
        f"launch resume {run}"
    )


def _link_ray_logs(log_dir: Path) -> None:
    """Put what Ray and TensorFlow say in their own processes beside our log."""
    import ray

    node = getattr(ray._private.worker, "_global_node", None)
    if node is not None:
        with contextlib.suppress(OSError):  # a name that is taken, or no links here
            (log_dir / "ray-session").symlink_to(node.get_logs_dir_path())


def _import_ahead() -> None:
    """Import what is slow to import (scikit-learn, Ray Train) while Ray starts.

    An import that fails here is tried again where its names are used, and told of there: some walk
    through the environment's variables, which another thread may change meanwhile.
    """
    for name in ("policies.recommend", "ray.train.v2.tensorflow.tensorflow_trainer"):
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a package may raise
            logger.info("%s cannot be imported ahead: %s", name, error)
