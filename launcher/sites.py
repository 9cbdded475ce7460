"""Clusters afar that runs are sent to: by their dashboard's address, or by a cluster file."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from launcher import clusters
from launcher.auto_down import Rule
from launcher.budget import Upkeep
from launcher.cluster_book import Entry
from launcher.cluster_file import ClusterFile, read_cluster_file
from launcher.clusters import Desk
from launcher.config import Request
from launcher.errors import BudgetTooSmallError, ClusterError, UsageError
from launcher.head import UpNode, look
from launcher.job_book import JobPlace
from launcher.jobs import Jobs, RayJobs
from launcher.machines import Machines, make_machines
from launcher.planned_types import usd_per_h
from launcher.tunnel import Tunnel
from launcher.worker.staging.uris import public_uri
from policies.wording import dollars, duration

# How long a rented cluster takes to come up, before it has been seen: docs/clusters.md.
ASSUMED_UP_S: Final = 480.0


@dataclass(frozen=True, slots=True)
class Reach:
    """A cluster that can be reached.

    Attributes:
        upkeep: what it has cost to bring it up for this run, if it was.
        finish: takes it down, or says that it stays up; told whether the results are safe.
    """

    jobs: Jobs
    upkeep: Upkeep | None = None
    finish: Callable[[bool], None] = lambda _: None


class Site(Protocol):
    """A cluster afar."""

    def place(self, job: str, storage: str) -> JobPlace:
        """A run's place there, for the book."""
        ...

    def ready(self, logs: Path, request: Request) -> AbstractContextManager[Reach]:
        """Make it ready for a run, and reach it while the block lasts."""
        ...

    def reached(self, logs: Path) -> AbstractContextManager[Jobs]:
        """Reach it as it is, while the block lasts."""
        ...


@dataclass(frozen=True, slots=True)
class AddressSite:
    """Any cluster with Ray's dashboard."""

    address: str

    def place(self, job: str, storage: str) -> JobPlace:
        """See `Site`."""
        return JobPlace(job, storage, address=self.address)

    @contextmanager
    def ready(self, logs: Path, request: Request) -> Iterator[Reach]:  # noqa: ARG002
        """See `Site`."""
        with self.reached(logs) as jobs:
            yield Reach(jobs)

    @contextmanager
    def reached(self, logs: Path) -> Iterator[Jobs]:  # noqa: ARG002
        """See `Site`.

        Raises:
            ClusterError: no dashboard of Ray's answers there.
        """
        jobs = RayJobs(self.address.rstrip("/"), public_uri(self.address))
        jobs.connect()
        yield jobs


@dataclass(frozen=True, slots=True)
class FileSite:
    """A cluster from a file, which is brought up if needed; its dashboard is reached over ssh.

    Attributes:
        folder: where paths in the file may begin.
        down_when_done: whether it is to go down after the run.
    """

    file: ClusterFile
    folder: Path
    desk: Desk
    down_when_done: bool = False

    @classmethod
    def of(
        cls, path: Path, folder: Path, desk: Desk, *, down_when_done: bool = False
    ) -> "FileSite":
        """The cluster of a file.

        Raises:
            UsageError: there is no such file, or it is no cluster file.
        """
        return cls(read_cluster_file(path), folder, desk, down_when_done)

    def place(self, job: str, storage: str) -> JobPlace:
        """See `Site`."""
        path = self.file.path
        whole = path if path.is_absolute() else self.folder / path
        return JobPlace(job, storage, cluster=str(whole), folder=str(self.folder))

    @contextmanager
    def ready(self, logs: Path, request: Request) -> Iterator[Reach]:
        """See `Site`.

        Raises:
            UsageError: nothing may be rented.
            BudgetTooSmallError: to bring it up alone would cost the budget, or the time.
            ClusterError: it does not come up, or cannot be reached.
        """
        with _in_folder(self.folder):
            machines = make_machines(self.file, logs)
            with self.desk.book.alone_with(self.file.path, self.desk.say):
                upkeep = self._brought_up(machines, request)
            with self.reached(logs) as jobs:
                yield Reach(jobs, upkeep, lambda is_safe: self._finish(machines, is_safe=is_safe))

    @contextmanager
    def reached(self, logs: Path) -> Iterator[Jobs]:
        """See `Site`."""
        machines = make_machines(self.file, logs)
        tunnel = Tunnel(self.file, machines.variables, logs / "ray-dashboard.log")
        with _in_folder(self.folder):
            try:
                self.desk.say(f"opening the way to the head of {self.file.path}")
                tunnel.open()
                jobs = RayJobs(tunnel.address, str(self.file.path), tunnel.open)
                jobs.connect()
                yield jobs
            finally:
                tunnel.close()

    def _brought_up(self, machines: Machines, request: Request) -> Upkeep | None:
        """Bring it up unless all of it is; what that has cost."""
        rule = Rule(float("inf"), when_done=True) if self.down_when_done else None
        self.desk.say(f"looking for the cluster of {self.file.path}")
        if clusters.stands(self.file, machines):
            if rule is not None:
                clusters.set_rule(self.file, machines, self.desk, rule)
            return None
        if request.dry_run and not self.file.is_local:
            raise UsageError(
                f"--dry-run rents nothing, and the cluster of {self.file.path} is not up. Bring it "
                f"up first (launch up {self.file.path}), or have it predicted from here: launch "
                f"compare {request.script.name} --on {self.file.path}"
            )
        require_room(self.file, request, self.desk.book.find(self.file.path))
        began_at = self.desk.clock()
        try:
            nodes = clusters.up(self.file, machines, self.desk, rule)
        except KeyboardInterrupt:
            self.desk.say(
                f"interrupted: what is up stays up. launch down {self.file.path} gives it back"
            )
            raise
        return upkeep_of(self.file, nodes, self.desk.clock() - began_at)

    def _finish(self, machines: Machines, *, is_safe: bool) -> None:
        path, say = self.file.path, self.desk.say
        if not self.down_when_done:
            price = usd_per_h(self.file.types)
            cost = f" at {dollars(price)}/h" if price else ""
            say(f"the cluster of {path} stays up{cost}. Take it down: launch down {path}")
        elif not is_safe:
            say(f"the cluster of {path} stays up for the results. Then: launch down {path}")
        elif self._is_used(machines):
            say(
                f"the cluster of {path} stays up, for others use it. Its head takes it down a "
                f"minute after they have ended: launch status {path}"
            )
        else:
            with self.desk.book.alone_with(path, say):
                entry = clusters.down(self.file, machines, self.desk)
            spent = None if entry is None else entry.cost_usd
            cost = "" if spent is None else f". It has cost {dollars(spent)}"
            say(f"the cluster of {path} is down{cost}")

    def _is_used(self, machines: Machines) -> bool:
        """Whether anyone uses it, now that this run has ended; nobody can where Ray is silent."""
        self.desk.say(f"looking whether others use the cluster of {self.file.path}")
        try:
            return look(self.file, machines).is_used
        except ClusterError:
            return False


AnySite = AddressSite | FileSite


def upkeep_of(file: ClusterFile, nodes: tuple[UpNode, ...], took_s: float) -> Upkeep:
    """What the cluster has cost while it came up, and what its head goes on to cost.

    A head that trains as well counts as a node, once the run holds it.
    """
    rate = usd_per_h(file.types) or sum(node.price.usd_per_h for node in nodes)
    serving = [each for each in file.types if each.is_head and not each.cpus and not each.gpus]
    return Upkeep(took_s, rate * took_s / 3600.0, sum(each.price.usd_per_h for each in serving))


def expected_up_s(entry: Entry | None) -> tuple[float, Literal["measured", "assumed"]]:
    """How long a cluster takes to come up, and what that rests on: the last time, if there was."""
    if entry is None or entry.up_s is None:
        return ASSUMED_UP_S, "assumed"
    return entry.up_s, "measured"


def require_room(file: ClusterFile, request: Request, entry: Entry | None = None) -> None:
    """See that budget and deadline allow to bring the cluster up, before anything is rented.

    Args:
        entry: what was noted of the cluster.

    Raises:
        BudgetTooSmallError: they do not.
    """
    up_s, basis = expected_up_s(entry)
    cost_usd = usd_per_h(file.types) * up_s / 3600.0
    budget_usd, deadline_s = request.budget_usd, request.deadline_s
    if budget_usd is not None and cost_usd >= budget_usd:
        raise BudgetTooSmallError(
            f"To bring up the cluster of {file.path} alone costs about {dollars(cost_usd)} "
            f"({duration(up_s)}, {basis}), and the budget is {dollars(budget_usd)}. Raise "
            "--budget, or rent less: min_workers in the file."
        )
    if deadline_s is not None and up_s >= deadline_s and not file.is_local:
        raise BudgetTooSmallError(
            f"To bring up the cluster of {file.path} alone takes about {duration(up_s)} ({basis}), "
            f"and the deadline is in {duration(deadline_s)}. Raise --deadline, or bring it up "
            f"first: launch up {file.path}"
        )


@contextmanager
def _in_folder(path: Path) -> Iterator[None]:
    """Be in the folder that a cluster's file is used from, as paths in it may begin there."""
    here = Path.cwd()
    try:
        os.chdir(path if path.is_dir() else here)
        yield
    finally:
        os.chdir(here)


def site_of(place: JobPlace, desk: Desk) -> AnySite:
    """The cluster of a run's place.

    Raises:
        UsageError: its file is not there any more.
    """
    if place.address is not None:
        return AddressSite(place.address)
    path = Path(str(place.cluster))
    if not path.is_file():
        raise UsageError(
            f"The run was sent to the cluster of {path}, and that file is gone. Put it back, or "
            "name the file where it is now: --cluster FILE"
        )
    return FileSite.of(path, Path(place.folder), desk)
