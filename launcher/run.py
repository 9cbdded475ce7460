"""Launch a script, or go on with a run."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from launcher import stored
from launcher.book import Book, now
from launcher.config import Environment, Request
from launcher.errors import StorageError, UsageError
from launcher.guard import Guard, interrupt_main_thread
from launcher.launch import Launch, Result, Screen
from launcher.ownership import Driver, Watch, this_driver
from launcher.prepare import ship, versions
from launcher.record import RunRecord, new_record
from launcher.runs import RunIndex, RunStore, open_store
from launcher.stored import Shipped

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Around:
    """What a run happens in.

    Attributes:
        log_dir: where noise goes.
        driver: this process, as others shall find it.
        begun: is told of the run as soon as this process drives it.
    """

    environment: Environment
    screen: Screen
    log_dir: Path
    driver: Driver
    begun: Callable[[RunRecord], None]

    @classmethod
    def make(
        cls,
        environment: Environment,
        screen: Screen,
        log_dir: Path,
        driver: Driver | None = None,
        begun: Callable[[RunRecord], None] = lambda _: None,
    ) -> "Around":
        """With this process as the driver, unless one is given."""
        return cls(environment, screen, log_dir, driver or this_driver(), begun)

    @property
    def index(self) -> RunIndex:
        """Which storage each run of this machine went to."""
        return RunIndex(self.environment.state_dir / "runs")


def run(request: Request, around: Around, shipped: Shipped | None = None) -> Result:
    """Launch a script: decide, train, record. Blocks until the run has ended.

    Args:
        shipped: the script's folder if it is packed already.

    Raises:
        LauncherError: the request, the script or the storage is wrong; nothing was started.
    """
    shipped = shipped or ship(request, around.environment, around.screen.warn)
    store = open_store(request.storage, around.index)
    driver = around.driver
    if request.dry_run:
        name = request.name or "dry-run"
        record = new_record(request, name, now=now(), owner=str(driver), versions=versions())
        return _launch(request, around, shipped, store, Book(None, record))
    store.storage.check_writable()
    rng = np.random.default_rng()  # names need not follow the seed
    record = store.create(request, now=now(), driver=driver, versions=versions(), rng=rng)
    book = Book(store, record)
    try:
        around.begun(record)
        shipped.keep(store.folder(record.run))
        return _guarded(request, around, shipped, store, book)
    finally:
        book.close()
        _free_name(store, book.record)


def _free_name(store: RunStore, record: RunRecord) -> None:
    """Leave nothing of a run of which nothing was started: its name is free again."""
    try:
        if not record.segments and store.ownership(record.run).reached() == record.term:
            stored.forget(store.folder(record.run))
            store.index.forget(record.run)
    except (StorageError, OSError) as error:  # how the run ended is what counts
        logger.warning("The name %s stays taken: %s", record.run, error)


def resume(name: str, request: Request, around: Around, watch: Watch | None = None) -> Result:
    """Go on with a run where it stopped.

    Blocks for up to a minute first if it must be seen that nobody drives it any more.

    Args:
        request: the run's own request, with the budget and deadline of this stretch.
        watch: how signs of life are looked for.

    Raises:
        LauncherError: the run is unknown, still running, or done.
    """
    store = open_store(request.storage, around.index, name)
    record = store.load(name)
    if record.status == "done":
        raise UsageError(f"{name} is done: there is nothing to resume. See: launch explain {name}")
    if record.status == "failed" and not stored.has_checkpoint(store.folder(name)):
        raise UsageError(f"{name} failed before its first checkpoint. Launch the script again.")
    shipped = Shipped.read(store.folder(name), name)
    watch = watch or Watch(time.monotonic, time.sleep, now, around.screen.stage)
    record = store.take_over(record, around.driver, watch)
    record = replace(record, status="running", exit_code=None)
    record = record.happened("resume", f"budget {request.budget_usd}", now())
    book = Book(store, record)
    book.write(record)
    around.begun(record)
    return _guarded(request, around, shipped, store, book)


def _guarded(
    request: Request, around: Around, shipped: Shipped, store: RunStore, book: Book
) -> Result:
    """One stretch, with a heartbeat that does not depend on what it is doing."""
    ownership, term = store.ownership(book.record.run), book.record.term
    with Guard(book.beat, lambda: ownership.is_asked_to_stop(term), interrupt_main_thread):
        return _launch(request, around, shipped, store, book)


def _launch(
    request: Request, around: Around, shipped: Shipped, store: RunStore, book: Book
) -> Result:
    return Launch(
        request, around.environment, around.screen, around.log_dir, shipped, store, book
    ).result()
