"""`launch compare`: what a run takes here, and what on clusters from files."""

import json as json_module
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import options as o
from launcher.cli_clusters import desk_of
from launcher.command import Session, refuse_extra
from launcher.config import Flags, Request
from launcher.data_words import refuse_site_data
from launcher.errors import LauncherError
from launcher.request import make_request

if TYPE_CHECKING:
    from pathlib import Path as Folder

    from launcher.comparing import Offer, Question
    from policies.schema import Situation

On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="PLACE,…",
        help="Places, with commas between: local (this machine, or its cluster), cluster files.",
    ),
]


def compare(
    ctx: typer.Context,
    script: o.Script,
    on: On,
    extra: o.Extra = None,
    budget: o.Budget = None,
    deadline: o.Deadline = None,
    objective: o.Objective = None,
    price: o.Price = None,
    workers: o.Workers = None,
    max_workers: o.MaxWorkers = None,
    strategy: o.Strategy = None,
    cpus_per_worker: o.CpusPerWorker = None,
    gpus_per_worker: o.GpusPerWorker = None,
    address: o.Address = None,
    seed: o.Seed = None,
    data: o.Data = None,
    data_price: o.DataPrice = None,
    storage: o.StorageUri = None,
    json: o.Json = None,
) -> None:
    """Time and cost of a run here against other places; nothing is rented or trained."""
    from launcher.cluster_file import read_cluster_file
    from launcher.comparing import HERE, places

    session: Session = ctx.obj
    refuse_extra(script, extra, ctx.parent.command if ctx.parent is not None else None)  # type: ignore[arg-type]
    names = places(on)
    files = {name: read_cluster_file(Path(name)) for name in names if name != HERE}
    flags = Flags(
        budget=budget,
        deadline=deadline,
        objective=objective,
        price=price,
        workers=workers,
        max_workers=max_workers,
        strategy=strategy,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        address=address,
        seed=seed,
        data=data or None,
        data_price=data_price,
        storage=storage,
        json=json,
    )
    request = make_request(script, session.args, flags, session.environment, draw_seed=lambda: 0)
    offers = _offers(session, request, names, files)
    _show(session, offers, is_json=bool(json))


def _offers(
    session: Session, request: Request, names: tuple[str, ...], files: dict[str, Any]
) -> "list[Offer]":
    from launcher.comparing import HERE, offer_here, offer_of

    situation, question = _measured(session, request)
    book = desk_of(session).book
    return [
        offer_here(situation, question)
        if name == HERE
        else offer_of(files[name], question, book.find(files[name].path))
        for name in names
    ]


def _measured(session: Session, request: Request) -> "tuple[Situation, Question]":
    """Measure the script here, without limits, and without training."""
    from launcher.measuring import MeasuringScreen
    from launcher.ownership import this_driver
    from launcher.progress_streams import make_progress
    from launcher.run import Around, run

    refuse_site_data(request.data, "compare")
    progress = make_progress(session.environment, session.terminal, time.monotonic, is_json=True)
    screen = MeasuringScreen(progress)
    logs: Folder = session.start_logging(progress.line)
    asked = replace(request, budget_usd=None, deadline_s=None, dry_run=True, yes=True, detach=False)
    try:
        result = run(asked, Around.make(session.environment, screen, logs, this_driver()))
    finally:
        progress.close()
    if result.error is not None:
        raise result.error
    if screen.situation is None:
        raise KeyboardInterrupt  # before the script was measured
    session.has_ended = True
    return screen.situation, _question(session, request, screen.situation)


def _question(session: Session, request: Request, situation: "Situation") -> "Question":
    from launcher.comparing import Question
    from launcher.data_rates import DataRates
    from launcher.runs import open_store
    from launcher.worker.staging.origins import list_sources

    manifest = list_sources(request.data) if request.data else None
    rates = DataRates(session.environment.state_dir / "data-rates.json")
    try:
        found = open_store(request.storage, session.index).all().records
    except LauncherError:
        found = ()
    experience = tuple(e for each in reversed(found) for e in each.experiences())
    return Question(
        workload=_with_other_kinds(situation, found),
        work=situation.work,
        limits=request.limits,
        seed=request.seed,
        experience=experience,
        manifest=manifest,
        data_rate=rates.of(manifest) if manifest is not None else None,
        data_price_usd_per_gb=request.data_price_usd_per_gb,
    )


def _with_other_kinds(situation: "Situation", records: Any) -> Any:
    """The workload with its speeds on kinds of nodes that earlier runs of the script were on."""
    workload = situation.workload
    known = {speed.kind: speed for speed in workload.node_kinds}
    for record in records:
        earlier = record.workload
        if earlier is not None and earlier.fingerprint == workload.fingerprint:
            known = {**{speed.kind: speed for speed in earlier.node_kinds}, **known}
    return replace(workload, node_kinds=tuple(known.values()))


def _show(session: Session, offers: "list[Offer]", *, is_json: bool) -> None:
    from launcher.compare_report import offers_json, print_offers
    from launcher.console import make_console

    if is_json:
        document = offers_json(offers)
        sys.stdout.write(json_module.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return
    is_tty = session.terminal.stdout_is_tty
    print_offers(make_console(sys.stdout, is_tty=is_tty, environment=session.environment), offers)
