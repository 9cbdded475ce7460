"""`launch fetch`: bring home what a run has left."""

import json as json_module
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import options as o
from launcher.cli_far import far_site
from launcher.command import Session, refuse_args
from launcher.config import make_storage
from launcher.errors import UsageError
from policies.wording import size

if TYPE_CHECKING:
    from launcher.fetch import Fetched
    from launcher.runs import RunStore
    from launcher.sites import AnySite
    from launcher.worker.staging.manifest import DataFile
    from launcher.worker.staging.origin import Origin

To = Annotated[str | None, typer.Option("--to", metavar="DIR", help="Where to. Default: ./RUN.")]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="PART",
        help="model, artifacts, record, checkpoints or code. May be given several times.",
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", metavar="", help="Replace files there that are not the run's."),
]


def fetch(
    ctx: typer.Context,
    run: o.RunName,
    to: To = None,
    only: Only = None,
    overwrite: Overwrite = False,
    address: o.Address = None,
    cluster: o.Cluster = None,
    storage: o.StorageUri = None,
    json: o.Json = None,
) -> None:
    """Bring a run's model, artifacts, logs, record and checkpoints home; again to go on."""
    from launcher.fetch import Fetching
    from launcher.fetch_progress import Shown
    from launcher.progress_streams import make_progress
    from launcher.runs import open_store

    session: Session = ctx.obj
    refuse_args(session)
    kinds = _kinds(only)
    environment = session.environment
    folder = (environment.cwd / Path(to or run).expanduser()).resolve()
    progress = make_progress(environment, session.terminal, time.monotonic, is_json=bool(json))
    try:
        store = open_store(make_storage(storage, environment), session.index, run)
        logs = session.start_logging(progress.line)
        site = far_site(session, address, cluster, run=None if store.has(run) else run)
        with _origin(session, run, store, address, site, logs) as (origin, announce):
            progress.stage(f"fetching {run}")
            is_tty = session.terminal.stderr_is_tty
            shown = Shown(f"fetching {run}", progress.stage, is_tty=is_tty)
            fetching = Fetching(origin, folder, overwrite, shown.tell, announce)
            found = fetching.fetched(kinds)
    finally:
        progress.close()
    if json:
        sys.stdout.write(json_module.dumps(_document(run, found), indent=1) + "\n")
    else:
        _print(session, run, found)


@contextmanager
def _origin(
    session: Session,
    run: str,
    store: "RunStore",
    address: str | None,
    site: "AnySite | None",
    logs: Path,
) -> "Iterator[tuple[Origin, Callable[[Sequence[DataFile]], object]]]":
    """Where the run's files are read from, and what is told which of them are about to be."""
    if site is not None:
        from launcher.afar import origin_afar

        with origin_afar(session, run, site, logs) as afar:
            yield afar, afar.announce
        return
    from launcher.fetch_sources import run_origin

    with run_origin(session, run, store, address, logs) as origin:
        yield origin, lambda _files: None


def _kinds(only: list[str] | None) -> tuple[str, ...]:
    """What was asked for; all if nothing was."""
    from launcher.fetch import KINDS

    for word in only or ():
        if word not in KINDS:
            raise UsageError(f"--only {word} is not known. Choose {', '.join(KINDS)}.")
    return tuple(only) if only else KINDS


def _document(run: str, found: "Fetched") -> dict[str, Any]:
    """What has been fetched, for machines."""
    from launcher.fetch import KINDS

    return {
        "run": run,
        "folder": str(found.folder),
        "bytes": found.n_bytes,
        "new": list(found.new),
        "files": {kind: list(found.of(kind)) for kind in KINDS},
        "log_folders": [str(folder) for folder in found.log_folders],
    }


def _print(session: Session, run: str, found: "Fetched") -> None:
    """Say what is where."""
    from launcher.console import make_console
    from launcher.fetch import ARTIFACTS, CHECKPOINTS, RECORD
    from launcher.layout import labelled

    console = make_console(
        sys.stdout, is_tty=session.terminal.stdout_is_tty, environment=session.environment
    )

    def line(label: str, *pieces: str) -> None:
        text = labelled(label, pieces, "", console.width)
        console.print(text, soft_wrap=True)

    at, n_files = found.folder, len(found.paths)
    n_new = len(found.new)
    new = "all new" if n_new == n_files else f"{n_new:,} of them new" if n_new else "nothing new"
    line("run", run, f"{n_files:,} file{'' if n_files == 1 else 's'}", size(found.n_bytes), new)
    for path in found.of("model"):
        line("model", str(at / path))
    if artifacts := found.of(ARTIFACTS):
        line("artifacts", str(at / ARTIFACTS), f"{len(artifacts):,}")
    for folder in found.log_folders[:1]:
        line("logs", f"tensorboard --logdir {shlex.quote(str(folder.parent))}")
    if checkpoints := found.of(CHECKPOINTS):
        line("states", str(at / CHECKPOINTS), f"{len(checkpoints):,}")
    if found.of("record"):
        line("record", str(at / RECORD))
