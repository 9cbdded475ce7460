"""Launch a script, or go on with a run."""

import getpass
import os
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np

from launcher import stored
from launcher.book import Book, now
from launcher.config import Environment, Request
from launcher.errors import UsageError
from launcher.launch import Launch, Result, Screen
from launcher.prepare import ship, versions
from launcher.record import new_record, shown_status
from launcher.runs import RunIndex, open_store
from launcher.stored import Shipped


def run(request: Request, environment: Environment, screen: Screen, log_dir: Path) -> Result:
    """Launch a script: decide, train, record. Blocks until the run has ended.

    Args:
        log_dir: where noise goes.

    Raises:
        LauncherError: the request, the script or the storage is wrong; nothing was started.
    """
    shipped = ship(request, environment, screen.warn)
    store = open_store(request.storage, RunIndex(environment.state_dir / "runs"))
    if request.dry_run:
        name = request.name or "dry-run"
        record = new_record(request, name, now=now(), owner=owner(), versions=versions())
        book = Book(None, record)
        return Launch(request, environment, screen, log_dir, shipped, store, book).result()
    store.storage.check_writable()
    rng = np.random.default_rng()  # names need not follow the seed
    record = store.create(request, now=now(), owner=owner(), versions=versions(), rng=rng)
    book = Book(store, record)
    try:
        shipped.keep(store.folder(record.run))
        return Launch(request, environment, screen, log_dir, shipped, store, book).result()
    finally:
        if not book.record.segments:  # nothing was started: the name is free again
            stored.forget(store.folder(record.run))
            store.index.forget(record.run)


def resume(
    name: str, request: Request, environment: Environment, screen: Screen, log_dir: Path
) -> Result:
    """Go on with a run where it stopped.

    Args:
        request: the run's own request, with the budget and deadline of this stretch.

    Raises:
        LauncherError: the run is unknown, still running, or done.
    """
    store = open_store(request.storage, RunIndex(environment.state_dir / "runs"), name)
    record = store.load(name)
    status = shown_status(record, now())
    if status == "running" and not _is_gone(record.owner):
        raise UsageError(
            f"{name} is still running (owner {record.owner}). Stop it first, or wait for it."
        )
    if status == "done":
        raise UsageError(f"{name} is done: there is nothing to resume. See: launch explain {name}")
    if status == "failed" and not record.checkpoints:
        raise UsageError(f"{name} failed before its first checkpoint. Launch the script again.")
    shipped = Shipped.read(store.folder(name), name)
    record = replace(record, status="running", exit_code=None, owner=owner())
    record = record.happened("resume", f"budget {request.budget_usd}", now())
    book = Book(store, record)
    book.write(record)
    return Launch(request, environment, screen, log_dir, shipped, store, book).result()


def _is_gone(who: str) -> bool:
    """Whether an owner was a process of this machine that has ended."""
    host, _, pid = who.rpartition("@")[2].rpartition(":")
    return host == socket.gethostname() and not Path(f"/proc/{pid}").exists()


def owner() -> str:
    """Who writes a record: user, machine and process."""
    return f"{getpass.getuser()}@{socket.gethostname()}:{os.getpid()}"
