"""Send a run to a cluster afar, watch it as if it were driven here, and bring its results home."""

import pickle
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.attach import (
    STOP_KINDS,
    View,
    make_orders,
    open_view,
    until_begun,
    until_training,
)
from launcher.command import INTERRUPTED_EXIT_CODE, Session, say
from launcher.config import Request
from launcher.data_words import shared_uris
from launcher.errors import ClusterError, LauncherError, RecordError, StorageError, UsageError
from launcher.fetch import Fetching
from launcher.follow import Follower
from launcher.follow_job import JobFollowed, begun_run
from launcher.homecoming import Home, brought_home
from launcher.job_book import JobBook, JobPlace
from launcher.job_origin import JobOrigin
from launcher.jobs import DRIVER, ORDERS, Jobs, UnreachableError, own_version, python_on_head
from launcher.journal import Entry
from launcher.runs import RunStore
from launcher.sites import AnySite, Reach
from launcher.spawned import Orders
from launcher.stored import Shipped
from launcher.worker.staging.uris import scheme_of

PURPOSE = "run"
HINT = "Ctrl-C stops the run at a checkpoint; without this terminal it goes on: launch attach {run}"


@dataclass(frozen=True, slots=True)
class Sent:
    """What is sent: a folder to launch, or the name of a run to go on with.

    Attributes:
        home: storage of this machine that the results are brought to.
    """

    request: Request
    home: str
    shipped: Shipped | None = None
    run: str | None = None


def launch_afar(session: Session, site: AnySite, sent: Sent) -> int:
    """Launch or resume a run there, and watch it until it ends; its exit code.

    With `--detach` it is watched until training has begun.
    """
    request = sent.request
    with (
        open_view(session, is_json=request.json) as view,
        site.ready(view.logs, request) as reach,
    ):
        watch = Watch(view, site, reach, sent)
        try:
            code = watch.code()
        except BaseException:
            try:
                watch.finish()
            except LauncherError as error:  # what went wrong first is what ends the command
                view.say(str(error))
            raise
        watch.finish()
        return code


@dataclass(slots=True)
class Watch:
    """One run there, from handing it over until its results are here.

    Attributes:
        is_left: whether it goes on there without this command.
        is_safe: whether nothing of it lies there alone.
    """

    view: View
    site: AnySite
    reach: Reach
    sent: Sent
    is_left: bool = False
    is_safe: bool = True

    def code(self) -> int:
        """Carry it out; the exit code."""
        view = self.view
        for uri in filter(lambda each: not scheme_of(each), shared_uris(self.sent.request.data)):
            view.say(f"--data {uri} is looked for on the cluster's head")
        view.stage("handing the run over to the cluster's head")
        job = _submitted(self.reach, self._orders())
        with followed(self.reach.jobs, job) as driver:
            follower = Follower(driver, view.viewer)
            begun = self._begun(follower, job)
            if begun.kind == "result":
                return view.result(begun)
            self.is_safe = False
            place = self.site.place(job, str(begun.detail["record"]["storage"]))
            self._note(follower.run, place)
            if self.sent.request.detach:
                self.is_left = True
                return until_training(view, follower, begun)
            view.say(HINT.format(run=follower.run))
            ended = _until_result(view, follower)
        if ended is None:
            self.is_left = view.session.has_ended = True
            return INTERRUPTED_EXIT_CODE
        code, record = view.result(ended), ended.detail.get("record")
        if self.sent.run is None and not (record or {}).get("segments"):
            book_of(view.session).forget(follower.run)
            view.session.index.forget(follower.run)
        home = Home.of(follower.run, self.sent.home)
        self.is_safe = brought_home(view, self.reach.jobs, place, home, record)
        return code

    def finish(self) -> None:
        """See to the cluster, unless the run goes on there without this command."""
        if not self.is_left:
            self.view.viewer.lines.pause()
            self.reach.finish(self.is_safe)

    def _begun(self, follower: Follower, job: str) -> Entry:
        """The run's name, or how it ended without one.

        Raises:
            ClusterError: the head does not answer any more; the run may begin there.
        """
        try:
            return _until_begun(self.view, follower)
        except UnreachableError as error:
            self.is_safe = False
            run = self.sent.run or self.sent.request.name or "RUN"
            option = self.site.place(job, "").option
            raise ClusterError(
                f"{error} The run may go on there: launch attach {run} {option}"
            ) from error

    def _note(self, run: str, place: JobPlace) -> None:
        """Remember where a run is; it goes on where that cannot be."""
        try:
            book_of(self.view.session).write(run, place)
        except StorageError as error:
            self.view.say(f"{error} Until then: launch attach {run} {place.option}")

    def _orders(self) -> Orders:
        """What the driver there is to do; a folder as storage is one of this machine, not there."""
        request = replace(self.sent.request, upkeep=self.reach.upkeep)
        if self.sent.run is None and "://" not in request.storage:
            request = replace(request, storage="")
        orders = make_orders(self.view.session, request, self.sent.shipped, self.sent.run)
        return replace(orders, home=None)


def _submitted(reach: Reach, orders: Orders) -> str:
    with tempfile.TemporaryDirectory(prefix="launch-orders-") as folder:
        path = Path(folder, ORDERS)
        path.write_bytes(pickle.dumps(orders))
        command = python_on_head(DRIVER, shlex.quote(own_version()))
        return reach.jobs.submit(command, path.parent, PURPOSE)


def _until_begun(view: View, follower: Follower) -> Entry:
    """Until the run has its name; Ctrl-C until then ends it before anything is trained."""
    try:
        return until_begun(view, follower)
    except KeyboardInterrupt:
        view.stage("stopping before training begins")
        follower.followed.stop()
        return follower.until("result")


def _until_result(view: View, follower: Follower) -> Entry | None:
    """How the run ended; None where the person leaves before.

    Raises:
        ClusterError: the head does not answer any more.
    """
    run, n_pressed, is_asked = follower.run, 0, False
    while True:
        try:
            if n_pressed and not is_asked:
                view.stage(f"stopping {run} at a checkpoint; Ctrl-C again leaves it to itself")
                follower.followed.stop()
                is_asked = True
            return follower.until("result")
        except KeyboardInterrupt:
            n_pressed += 1
            if n_pressed > 1:
                view.say(f"{run} is left to itself. See how it ends: launch attach {run}")
                return None
        except ClusterError as error:
            raise ClusterError(
                f"{error} The run goes on there as long as its cluster is up: launch attach {run}"
            ) from error


@contextmanager
def followed(jobs: Jobs, job: str) -> Iterator[JobFollowed]:
    """A job's run, listened to while the block lasts."""
    found = JobFollowed(jobs, job)
    try:
        yield found
    finally:
        found.close()


# ---------------------------------------------------------------------- attach, stop, fetch


def attach_afar(session: Session, run: str, site: AnySite, home: str, *, is_json: bool) -> int:
    """Watch a run there until it ends, and bring its results home; Ctrl-C leaves it alone."""
    with open_view(session, is_json=is_json) as view, site.reached(view.logs) as jobs:
        place = located(session, run, site, jobs)
        with followed(jobs, place.job) as driver:
            follower = Follower(driver, view.viewer, run)
            try:
                ended = follower.catch_up() or follower.until("result")
            except KeyboardInterrupt:
                view.say(f"{run} goes on. Follow it again: launch attach {run}")
                session.has_ended = True
                return INTERRUPTED_EXIT_CODE
        code = view.result(ended)
        brought_home(view, jobs, place, Home.of(run, home), ended.detail.get("record"))
        if place.cluster is not None:
            view.say(f"its cluster stays up until: launch down {place.cluster}")
        return code


def stop_afar(session: Session, run: str, site: AnySite) -> int:
    """Stop a run there at a checkpoint, and wait until it has ended; 0."""
    with open_view(session, kinds=STOP_KINDS) as view, site.reached(view.logs) as jobs:
        place = located(session, run, site, jobs)
        if jobs.state(place.job).is_over:
            raise UsageError(f"{run} is not running any more. Its results: launch fetch {run}")
        with followed(jobs, place.job) as driver:
            driver.entries()
            driver.stop()
            view.stage(f"asked {run} to stop at a checkpoint")
            Follower(driver, view.viewer, run).until("result")
    return 0


@contextmanager
def origin_afar(session: Session, run: str, site: AnySite, logs: Path) -> Iterator[JobOrigin]:
    """The files of a run there."""
    with site.reached(logs) as jobs:
        yield JobOrigin(jobs, located(session, run, site, jobs).storage, run)


def record_afar(session: Session, run: str, site: AnySite, store: RunStore) -> None:
    """Bring the record of a run there into a store of this machine, so that it can go on there."""
    if not store.storage.is_local:
        return
    with site.reached(session.start_logging(say)) as jobs:
        origin = JobOrigin(jobs, located(session, run, site, jobs).storage, run)
        folder = Path(store.folder(run).root)
        Fetching(origin, folder, announce=origin.announce).fetched(("record",))


def book_of(session: Session) -> JobBook:
    """The runs that were sent from here."""
    return JobBook(session.environment.state_dir / "jobs")


def located(session: Session, run: str, site: AnySite, jobs: Jobs) -> JobPlace:
    """The place of a run there: as noted here, else as the jobs there tell.

    Raises:
        RecordError: none of the jobs there has it.
    """
    known = book_of(session).find(run)
    if known is not None and known == site.place(known.job, known.storage):
        return known
    for job in jobs.having(PURPOSE):
        begun = begun_run(jobs, job)
        if begun is not None and begun.run == run:
            place = site.place(job, begun.storage)
            book_of(session).write(run, place)
            return place
    raise RecordError(
        f"No run named {run!r} was sent to that cluster. `launch runs` there lists its runs."
    )
