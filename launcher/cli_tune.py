"""`launch tune`: a hyper-parameter search under one budget."""

# ruff: noqa: ARG001 - Typer wants each option as a parameter; `_flags` reads them all at once

import secrets
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import options as o
from launcher.command import INTERRUPTED_EXIT_CODE, Session, print_json, refuse_args
from launcher.config import Environment, Flags, absolute, make_storage
from launcher.data_words import refuse_site_data
from launcher.errors import UsageError
from launcher.preflight import check_script
from launcher.quantities import one_of, parse_count, parse_run_name
from launcher.request import make_request

if TYPE_CHECKING:
    from launcher.config import Request
    from launcher.tune_record import TuneRecord, TuneStore

SEARCH = "Search"
DEFAULT_TRIALS = 20
RESUMES_WITH = frozenset(
    {"resume", "trials", "budget", "deadline", "address", "wait", "storage", "json"}
)
LIMIT_EXIT_CODE = 5

TunedScript = Annotated[
    str | None,
    typer.Argument(metavar="SCRIPT", help="A Keras script. Arguments for all trials go after --."),
]
SpaceFile = Annotated[
    str | None,
    typer.Option(
        "--space", metavar="FILE", help="The search space, a YAML file.", rich_help_panel=SEARCH
    ),
]
TrialCount = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help=f"At most so many trials. Default: {DEFAULT_TRIALS}.",
        rich_help_panel=SEARCH,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What is to be best. Default: val_loss, else loss.",
        rich_help_panel=SEARCH,
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="min|max",
        help="Whether small or large is good. Default: by the metric's name.",
        rich_help_panel=SEARCH,
    ),
]
Searcher = Annotated[
    str | None,
    typer.Option(
        metavar="tpe|random|lstm",
        help="What proposes trials. Default: tpe.",
        rich_help_panel=SEARCH,
    ),
]
AtOnce = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="At most so many trials at the same time.", rich_help_panel=SEARCH
    ),
]
Full = Annotated[
    bool,
    typer.Option(
        "--full", metavar="", help="Train every trial to its end.", rich_help_panel=SEARCH
    ),
]
ResumeSearch = Annotated[
    str | None,
    typer.Option("--resume", metavar="NAME", help="Go on with a search.", rich_help_panel=SEARCH),
]


def tune(
    ctx: typer.Context,
    script: TunedScript = None,
    space: SpaceFile = None,
    trials: TrialCount = None,
    metric: Metric = None,
    mode: ModeOption = None,
    searcher: Searcher = None,
    at_once: AtOnce = None,
    full: Full = False,
    resume: ResumeSearch = None,
    budget: o.Budget = None,
    deadline: o.Deadline = None,
    objective: o.Objective = None,
    price: o.Price = None,
    workers: o.Workers = None,
    max_workers: o.MaxWorkers = None,
    parallelism: o.Parallelism = None,
    strategy: o.Strategy = None,
    cpus_per_worker: o.CpusPerWorker = None,
    gpus_per_worker: o.GpusPerWorker = None,
    address: o.Address = None,
    wait: o.Wait = None,
    sync_batchnorm: o.SyncBatchnorm = None,
    seed: o.Seed = None,
    data: o.Data = None,
    storage: o.StorageUri = None,
    name: o.Name = None,
    json: o.Json = None,
) -> int:
    """Search hyper-parameters within one budget: each trial is a run of its own width."""
    session: Session = ctx.obj
    flags = _flags(ctx)
    if resume is not None:
        if script is not None or space is not None:
            raise UsageError("--resume goes on as the search began: leave SCRIPT and --space out.")
        _refuse_unused(session, ctx)
        n_trials = None if trials is None else parse_count(trials, "--trials")
        return _resumed(session, resume, flags, n_trials)
    if script is None or space is None:
        raise UsageError("Give a script and its search space: launch tune train.py --space FILE")
    request = _request(session, script, flags)
    asked = {
        "metric": metric,
        "mode": None if mode is None else one_of("min", "max")(mode, "--mode"),
        "searcher": one_of("tpe", "random", "lstm")(searcher or "tpe", "--searcher"),
        "n_trials": DEFAULT_TRIALS if trials is None else parse_count(trials, "--trials"),
        "max_at_once": None if at_once is None else parse_count(at_once, "--at-once"),
        "stops_early": not full,
        "script": script,
        "space_file": space,
    }
    return _begun(session, request, asked)


def _flags(ctx: typer.Context) -> Flags:
    from dataclasses import fields

    given = {each.name: ctx.params[each.name] for each in fields(Flags) if each.name in ctx.params}
    return Flags(**{name: None if value == [] else value for name, value in given.items()})


def _refuse_unused(session: Session, ctx: typer.Context) -> None:
    """Refuse what a search that goes on would not heed."""
    refuse_args(session)
    given = {name for name, value in ctx.params.items() if value}
    if unused := sorted(given - RESUMES_WITH):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise UsageError(f"--resume goes on as the search began: leave {options} out.")


def _request(session: Session, script: str, flags: Flags) -> "Request":
    request = make_request(
        script,
        session.args,
        flags,
        session.environment,
        draw_seed=lambda: 1 + secrets.randbelow(2**31 - 1),
        terminal=session.terminal,
    )
    for word, is_given in (("--detach", request.detach), ("--dry-run", request.dry_run)):
        if is_given:
            raise UsageError(f"launch tune has no {word}. Leave it, and its variable, out.")
    refuse_site_data(request.data, "tune")
    if request.address is not None and request.address.startswith("http"):
        raise UsageError(
            f"launch tune cannot send trials to {request.address}. Call it in the cluster, with "
            "the address of its head: --address HOST:6379"
        )
    return request


def _begun(session: Session, request: "Request", asked: dict[str, Any]) -> int:
    """A new search: check what can be checked before anything starts, claim a name, search."""
    environment = session.environment
    text = _space_text(asked["space_file"], environment)
    check_script(  # before the heavy imports: a wrong script is told at once
        request.script,
        environment.cwd,
        home=environment.home,
        legacy_keras=environment.tf_use_legacy_keras,
    )
    import numpy as np

    from launcher.ownership import this_driver
    from launcher.prepare import ship
    from launcher.storage import Storage
    from launcher.tune_metric import mode_of
    from launcher.tune_record import TuneStore, new_tune_record

    shipped = ship(request, environment, _say)
    store = TuneStore(Storage.open(request.storage))
    store.storage.check_writable()
    name = request.name
    if name is not None:
        parse_run_name(f"{name}-000", "--name")
    claimed = store.claim(name, this_driver(), np.random.default_rng())
    source = _source(request.script)
    record = new_tune_record(
        datetime.now(UTC),
        name=claimed,
        request=replace(request, name=None),
        passes_variable="LAUNCH_PARAMS" in source,
        space=text,
        **{**asked, "mode": asked["mode"] or mode_of(asked["metric"])},
    )
    shipped.keep(store.folder(claimed))
    store.save(record)
    return _searched(session, store, record, source, is_json=request.json)


def _source(script: Path) -> str:
    try:
        return script.read_text("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"The script {script} cannot be read: {error.strerror}. Put it back, or begin another "
            "search."
        ) from error


def _space_text(file: str, environment: Environment) -> str:
    """The file that describes the search space, which is read once to see that it does."""
    from launcher.space_file import read_space

    path = absolute(file, environment)
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(
            f"The search space {path} cannot be read: {error.strerror}. Check its path and its "
            "rights."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The search space {path} is no text. Save it as UTF-8.") from error
    read_space(text, file)
    return text


def _resumed(session: Session, name: str, flags: Flags, n_trials: int | None) -> int:
    """Go on with a search; a budget or deadline that is given now comes on top of what was used.

    Args:
        n_trials: that there may be in all, where that is to change.
    """
    from launcher.ownership import this_driver
    from launcher.storage import Storage
    from launcher.tune_record import TuneStore

    store = TuneStore(Storage.open(make_storage(flags.storage, session.environment)))
    record = store.load(name)
    if record.status == "done" and (n_trials or 0) <= len(record.trials):
        raise UsageError(
            f"{name} is done: there is nothing to resume. For more trials than its "
            f"{len(record.trials)}, give --trials."
        )
    source = _source(Path(record.request.script))
    now = _request(session, str(record.request.script), flags)
    request = replace(
        record.request,
        address=now.address or record.request.address,
        ray_address=now.ray_address,
        json=now.json,
        stderr_is_tty=now.stderr_is_tty,
    )
    if now.budget_usd is not None:
        request = replace(request, budget_usd=record.cost_usd + now.budget_usd)
    if now.deadline_s is not None:
        request = replace(request, deadline_s=record.spent_s + now.deadline_s)
    record = store.take_over(record, this_driver())
    n_trials = record.n_trials if n_trials is None else n_trials
    record = replace(record, status="running", request=request, n_trials=n_trials)
    store.save(record)
    return _searched(session, store, record, source, is_json=now.json)


def _searched(
    session: Session, store: "TuneStore", record: "TuneRecord", source: str, *, is_json: bool
) -> int:
    """Search, with what is said on stderr and the outcome on stdout; the exit code."""
    from launcher.console import make_console
    from launcher.tune_report import TuneScreen, print_tune, tune_json
    from launcher.tune_session import search

    environment, terminal = session.environment, session.terminal
    errors = make_console(sys.stderr, is_tty=terminal.stderr_is_tty, environment=environment)
    screen = TuneScreen(errors, is_live=terminal.stderr_is_tty)
    session.start_logging(lambda text: screen.note(text.removeprefix("launch: ")))
    record, error = search(session, store, record, source, screen)
    session.has_ended = True
    if is_json:
        print_json(tune_json(record, source))
    else:
        out = make_console(sys.stdout, is_tty=terminal.stdout_is_tty, environment=environment)
        print_tune(out, record, source)
    if error is not None:
        raise error
    if record.status == "interrupted":
        return INTERRUPTED_EXIT_CODE
    is_without = all(trial.status != "done" for trial in record.trials)
    return LIMIT_EXIT_CODE if record.status != "done" and is_without else 0


def _say(text: str) -> None:
    from launcher.command import say

    say(f"warning: {text}")
