"""Carries a search out: measure the first trial, make a fleet of the nodes, search, record."""

import time
from dataclasses import replace

from launcher.command import Session
from launcher.errors import (
    BudgetTooSmallError,
    ClusterError,
    LauncherError,
    ScriptFailedError,
    UsageError,
)
from launcher.fleet import Fleet
from launcher.follow import Follower, Viewer
from launcher.interrupts import Interrupts
from launcher.journal import Entry
from launcher.progress_streams import make_progress
from launcher.record import CODEC, RunRecord
from launcher.runs import open_store
from launcher.search_space import Space
from launcher.searching import Ended, Search, SearcherName
from launcher.space_file import read_space
from launcher.stored import Shipped
from launcher.trials import SpawnedTrials, Trials
from launcher.tune_record import OPEN, Trial, TuneBook, TuneRecord, TuneStore
from launcher.tune_report import TuneScreen
from launcher.tuning import Around, Tuning, trial_request

SHOWN = frozenset({"stage", "line"})


def search(
    session: Session, store: TuneStore, record: TuneRecord, source: str, screen: TuneScreen
) -> tuple[TuneRecord, LauncherError | None]:
    """Blocks until the search has ended; its record, and the error to show if it failed."""
    book = TuneBook(record, store.save)
    interrupts = Interrupts()
    began_s = time.monotonic()
    try:
        with interrupts.handled():
            _searched(session, store, book, source, screen, interrupts)
    except KeyboardInterrupt:
        spent_s = max(book.record.spent_s, record.spent_s + time.monotonic() - began_s)
        book.write(status="interrupted", spent_s=spent_s)
    except LauncherError as error:
        book.write(status="failed", reason=str(error))
        return book.record, error
    return book.record, None


def _searched(
    session: Session,
    store: TuneStore,
    book: TuneBook,
    source: str,
    screen: TuneScreen,
    interrupts: Interrupts,
) -> None:
    record, environment = book.record, session.environment
    space = read_space(record.space, record.space_file)
    trials = SpawnedTrials(environment, Shipped.read(store.folder(record.name), record.name))
    clock, began_s = time.monotonic, time.monotonic() - record.spent_s
    lines = make_progress(environment, session.terminal, clock, is_json=True)
    try:
        measured = _measured(trials, record, space, source, lines)
    finally:
        lines.close()
    book.write(spent_s=clock() - began_s)
    fleet = Fleet.of(measured)
    screen.note(fleet_text(fleet, book.record))
    index = session.index
    around = Around(source, open_store(record.request.storage, index), trials, screen, interrupts)
    found = make_search(book.record, space, fleet.epochs)
    found.replay(ended(trial) for trial in record.trials)
    screen.begin()
    try:
        Tuning(book, found, fleet, space.fixed, around).run()
    finally:
        screen.close()


def make_search(record: TuneRecord, space: Space, epochs: int | None) -> Search:
    """The search as the record asks for it."""
    name: SearcherName = record.searcher  # type: ignore[assignment] # the command line saw to it
    return Search(space, name, record.request.seed, record.mode or "min", epochs)


def ended(trial: Trial) -> Ended:
    """A trial of an earlier stretch, for the searcher."""
    values = tuple((at.epoch, at.value) for at in trial.values)
    is_whole, is_open = trial.status == "done", trial.status in OPEN
    return Ended(trial.number, dict(trial.params), values, trial.value, is_whole, is_open)


def fleet_text(fleet: Fleet, record: TuneRecord) -> str:
    """How the trials are going to be run, in a line."""
    from launcher.fleet import left_of

    best = fleet.split(record, left_of(record, record.spent_s))
    if best is None or not fleet.nodes:
        return f"{record.n_trials} trials, one after the other"
    n = best.width.n_nodes
    return (
        f"{len(fleet.nodes)} nodes: {best.at_once} trials at once on {n} "
        f"node{'s' if n > 1 else ''} each, for now"
    )


def _measured(
    trials: Trials, record: TuneRecord, space: Space, source: str, lines: object
) -> RunRecord:
    """What a dry run of the first configuration finds: nodes, network, step times, plans.

    Raises:
        LauncherError: that the dry run ended with.
    """
    first = next((dict(trial.params) for trial in record.trials), None)
    params = first or make_search(record, space, None).ask(0)
    request = trial_request(record, {**space.fixed, **params}, source)
    left_usd = record.request.budget_usd
    request = replace(
        request,
        dry_run=True,
        name=None,
        ray_address=record.request.ray_address,
        budget_usd=None if left_usd is None else max(0.01, left_usd - record.cost_usd),
    )
    followed = trials.start(request)
    viewer = Viewer(lines, lambda _: None, colour=False, kinds=SHOWN)  # type: ignore[arg-type]
    try:
        entry = Follower(followed, viewer, "the first trial").until("result")
    except BaseException:
        followed.stop()
        raise
    return _record_in(entry)


def _record_in(entry: Entry) -> RunRecord:
    code, text = int(entry.detail["exit_code"]), entry.text
    said = text.strip().removeprefix("launch: ")
    document = entry.detail.get("record")
    if code == 0 and document is not None:
        return CODEC.decode(RunRecord, document)
    kinds = {2: UsageError, 3: BudgetTooSmallError, 4: ClusterError}
    if code in kinds:
        raise kinds[code](said)
    if code == 130:
        raise KeyboardInterrupt
    raise ScriptFailedError(0, text)
