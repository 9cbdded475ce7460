"""Detach a run from the terminal, follow one that runs elsewhere, and stop one."""

import json
import pickle
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGTERM
from typing import Any

from launcher.cluster_join import Target, find_target
from launcher.command import INTERRUPTED_EXIT_CODE, Session, say
from launcher.config import Request
from launcher.errors import ClusterError, UsageError
from launcher.follow import FileFollowed, Followed, Follower, HostFollowed, Viewer
from launcher.follow_record import RecordFollowed
from launcher.host import find_host, is_head_here, join, start_on_head
from launcher.journal import Entry
from launcher.layout import PLAIN_WIDTH
from launcher.ownership import suspended
from launcher.progress_streams import make_progress
from launcher.runs import RunStore
from launcher.spawned import Orders, spawn
from launcher.stored import Shipped
from launcher.worker.environment import environment

STOP_KINDS = frozenset({"stage", "line", "print"})


@dataclass(frozen=True, slots=True)
class View:
    """Where a run that is followed is shown, and what the command logs."""

    session: Session
    viewer: Viewer
    logs: Path
    is_json: bool

    def stage(self, text: str) -> None:
        """Say what is going on."""
        self.viewer.lines.stage(text)

    def say(self, text: str) -> None:
        """Say something that stays."""
        self.viewer.lines.pause()
        say(text)

    def result(self, entry: Entry) -> int:
        """Show how a run ended; its exit code."""
        self.session.has_ended = True
        self.viewer.lines.pause()
        sys.stderr.write(entry.text)
        self.print_record(entry)
        self.session.has_ended = True
        return int(entry.detail["exit_code"])

    def print_record(self, entry: Entry) -> None:
        """Print the record in an entry, if JSON was asked for."""
        if self.is_json and entry.detail.get("record") is not None:
            sys.stdout.write(json.dumps(entry.detail["record"], indent=1, ensure_ascii=False))
            sys.stdout.write("\n")


# ---------------------------------------------------------------------- detach


def detach(
    session: Session,
    request: Request,
    *,
    shipped: Shipped | None = None,
    run: str | None = None,
    has_storage: bool,
) -> int:
    """Start a driver without a terminal, and show it until training has begun.

    Args:
        shipped: what is to be launched.
        run: the run to go on with, if nothing is to be launched.
        has_storage: whether the user named the storage.

    Returns:
        0 once training has begun; the run's exit code if it ended before.
    """
    orders = make_orders(session, request, shipped, run)
    with open_view(session, is_json=request.json) as view:
        target = find_target(request.address, request.ray_address, None)
        if target is None:
            followed = _start_here(orders)
        else:
            followed = _start_there(target, orders, view, has_storage=has_storage)
        follower = Follower(followed, view.viewer)
        try:
            begun = until_begun(view, follower)
            if begun.kind == "result":
                return view.result(begun)
            return until_training(view, follower, begun)
        except KeyboardInterrupt:
            view.stage("stopping before training begins")
            followed.stop()
            return view.result(follower.until("result"))


def make_orders(
    session: Session, request: Request, shipped: Shipped | None, run: str | None
) -> Orders:
    """What a driver elsewhere is to do: launch what is shipped, or go on with a run."""
    is_tty = session.terminal.stdout_is_tty
    return Orders(
        request,
        shipped,
        run,
        home=session.environment.home,
        legacy_keras=session.environment.tf_use_legacy_keras,
        no_color=session.environment.no_color,
        columns=shutil.get_terminal_size().columns if is_tty else PLAIN_WIDTH,
        colour=is_tty and not session.environment.no_color,
    )


def _start_here(orders: Orders) -> Followed:
    """A driver on this machine, with an embedded Ray."""
    request = replace(orders.request, address="local")
    spawned, _ = spawn(pickle.dumps(replace(orders, request=request)), environment())
    process = spawned.process
    return FileFollowed(spawned.journal, process, lambda: process.signal(SIGTERM))


def _start_there(target: Target, orders: Orders, view: View, *, has_storage: bool) -> Followed:
    """A driver on the cluster's head. Its home is the default storage, unless the head is here."""
    view.stage("starting the driver on the cluster's head")
    address = join(target, view.logs)
    request = replace(orders.request, address=address)
    if not is_head_here():
        storage = request.storage if has_storage else ""
        orders = replace(orders, request=replace(request, storage=storage), home=None)
    else:
        orders = replace(orders, request=request)
    return HostFollowed(start_on_head(orders))


def until_begun(view: View, follower: Follower) -> Entry:
    """Follow until the run has its name, which is remembered, or has ended without one."""
    begun = follower.until("begun", "result")
    if begun.kind == "begun":
        follower.run = str(begun.detail["run"])
        storage = str(begun.detail["record"]["storage"])
        view.session.index.remember(follower.run, storage, _host_of(begun))
    return begun


def until_training(view: View, follower: Follower, begun: Entry) -> int:
    """Follow until training has begun, and leave it; 0, or the exit code if it ended before."""
    entry = follower.until("training", "result")
    if entry.kind == "result":
        return view.result(entry)
    run, record, host = follower.run, begun.detail["record"], _host_of(begun)
    view.print_record(begun)
    is_elsewhere = host != socket.gethostname() and "://" not in record["storage"]
    where = f" It is kept in {record['storage']} on {host}." if is_elsewhere else ""
    view.say(
        f"{run} goes on without this terminal.{where} Follow it: launch attach {run} · "
        f"stop it: launch stop {run}"
    )
    return 0


def _host_of(begun: Entry) -> str:
    return str(begun.detail["record"]["owner"]).rpartition("@")[2].rpartition(":")[0]


# ---------------------------------------------------------------------- attach and stop


def attach(
    session: Session, run: str, store: RunStore, address: str | None, *, is_json: bool
) -> int:
    """Follow a run until it ends; its exit code. Ctrl-C leaves it alone."""
    with open_view(session, is_json=is_json) as view:
        follower = Follower(find(view, run, store, address), view.viewer, run)
        try:
            return view.result(follower.catch_up() or follower.until("result"))
        except KeyboardInterrupt:
            view.say(
                f"{run} goes on. Follow it again: launch attach {run} · stop it: launch stop {run}"
            )
            session.has_ended = True
            return INTERRUPTED_EXIT_CODE


def stop(session: Session, run: str, store: RunStore, address: str | None) -> int:
    """Stop a run at a checkpoint and wait until it has ended; 0."""
    if store.has(run):
        record = store.load(run)
        status = store.status(record, datetime.now(UTC))
        if status not in {"running", "detached"}:
            remedy = f" Go on with it: launch resume {run}" if status != "done" else ""
            raise UsageError(f"{run} is not running: {status}.{remedy}")
    with open_view(session, kinds=STOP_KINDS) as view:
        followed = find(view, run, store, address)
        ended = next((e for e in followed.entries() if e.kind == "result"), None)
        if ended is None:
            followed.stop()
            view.stage(f"asked {run} to stop at a checkpoint")
            Follower(followed, view.viewer, run).until("result")
    return 0


def find(view: View, run: str, store: RunStore, address: str | None) -> Followed:
    """The nearest way to follow a run: its journal here, its host in the cluster, its record.

    Raises:
        RecordError: there is no such run.
        UsageError: its driver is suspended.
    """
    is_known = store.has(run)
    claim = store.holder(run) if is_known else None
    driver = None if claim is None else claim.driver
    if driver is not None and driver.process.is_here:
        process = driver.process
        if process.is_alive and process.is_stopped:
            raise suspended(run, process)
        if driver.journal and Path(driver.journal).is_file():
            return FileFollowed(Path(driver.journal), process, lambda: process.signal(SIGTERM))
    elif not is_known or store.load(run).status == "running":
        host = _host(view, run, address, must_answer=not is_known)
        if host is not None:
            return HostFollowed(host)
    store.load(run)
    return RecordFollowed(store, run, view.session.environment)


def _host(view: View, run: str, address: str | None, *, must_answer: bool) -> Any | None:
    environment = view.session.environment
    try:
        target = find_target(address, environment.ray_address, None)
        if target is None:
            return None
        view.stage("asking the cluster for it")
        join(target, view.logs)
    except ClusterError:
        if must_answer:
            raise
        return None
    return find_host(run)


@contextmanager
def open_view(
    session: Session, *, is_json: bool = False, kinds: frozenset[str] | None = None
) -> Iterator[View]:
    """The standard streams as a view; leaves the terminal clean and Ray, if it was joined."""
    terminal = session.terminal
    progress = make_progress(session.environment, terminal, time.monotonic, is_json=is_json)
    out, is_tty = (
        (sys.stderr, terminal.stderr_is_tty) if is_json else (sys.stdout, terminal.stdout_is_tty)
    )
    viewer = Viewer(
        progress,
        lambda text: print(text, end="", file=out, flush=True),
        colour=is_tty and not session.environment.no_color,
        ask=sys.stdin.readline if terminal.stdin_is_tty else None,
        kinds=kinds,
    )
    try:
        yield View(session, viewer, session.start_logging(progress.line), is_json)
    finally:
        progress.close()
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
