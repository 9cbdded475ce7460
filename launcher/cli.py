"""The command line: parse, call, print."""

# ruff: noqa: ARG001 - Typer wants each option as a parameter; `_flags` reads them all at once

import secrets
import sys
import time
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import cli_clusters, cli_follow
from launcher import options as o
from launcher.cli_compare import compare
from launcher.cli_far import far_site
from launcher.cli_fetch import fetch
from launcher.cli_policy import policy_app
from launcher.cli_tune import tune
from launcher.command import (
    DEFAULT_COMMAND,
    DefaultToRun,
    Session,
    carry_out,
    execute,
    print_json,
    refuse_args,
    refuse_extra,
    say,
)
from launcher.config import Flags, cluster_options, has_storage, make_storage
from launcher.request import make_request, resume_request

if TYPE_CHECKING:
    from launcher.sites import AnySite

EPILOG = (
    "Every option of `launch run` has an environment variable: --budget has LAUNCH_BUDGET, and so "
    "on. Exit codes: 0 done, 1 the script failed, 2 usage, 3 budget or deadline too small, "
    "4 cluster or storage, 5 stopped at the limit with a checkpoint, 130 interrupted with one."
)

app = typer.Typer(
    name="launch",
    cls=DefaultToRun,
    add_completion=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train an unmodified Keras script on a Ray cluster: fastest within a budget.\n\n"
    "launch train.py --budget 5 is short for launch run train.py --budget 5; "
    "launch run --help lists its options.",
)
app.add_typer(policy_app)


def _print_version(*, asked: bool) -> None:
    if asked:
        import importlib.metadata

        print(f"launch {importlib.metadata.version('train-launcher')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            metavar="",
            help="Show the version and exit.",
            callback=lambda v: _print_version(asked=v),
        ),
    ] = False,
) -> None:
    pass


@app.command(DEFAULT_COMMAND, epilog=EPILOG)
def _run(
    ctx: typer.Context,
    script: o.Script,
    extra: o.Extra = None,
    budget: o.Budget = None,
    deadline: o.Deadline = None,
    objective: o.Objective = None,
    price: o.Price = None,
    explore: o.Explore = None,
    workers: o.Workers = None,
    max_workers: o.MaxWorkers = None,
    strategy: o.Strategy = None,
    parallelism: o.Parallelism = None,
    allow_approximate: o.AllowApproximate = None,
    max_staleness: o.MaxStaleness = None,
    transfer_every: o.TransferEvery = None,
    transfer_part: o.TransferPart = None,
    cpus_per_worker: o.CpusPerWorker = None,
    gpus_per_worker: o.GpusPerWorker = None,
    address: o.Address = None,
    cluster: o.Cluster = None,
    down_when_done: o.DownWhenDone = None,
    wait: o.Wait = None,
    checkpoint_every: o.CheckpointEvery = None,
    sync_batchnorm: o.SyncBatchnorm = None,
    seed: o.Seed = None,
    max_folder: o.MaxFolder = None,
    data: o.Data = None,
    data_price: o.DataPrice = None,
    cache: o.Cache = None,
    cache_size: o.CacheSize = None,
    storage: o.StorageUri = None,
    name: o.Name = None,
    dry_run: o.DryRun = None,
    detach: o.Detach = None,
    yes: o.Yes = None,
    json: o.Json = None,
) -> int:
    """Decide how many workers, train within the budget, explain and record (the default)."""
    session: Session = ctx.obj
    refuse_extra(script, extra, _group(ctx))
    request = make_request(
        script,
        session.args,
        _flags(ctx),
        session.environment,
        draw_seed=lambda: 1 + secrets.randbelow(2**31 - 1),
        terminal=session.terminal,
    )
    _check_script(session, request.script)
    site = far_site(session, address, cluster, down_when_done=down_when_done)
    if site is not None:
        return _afar(session, site, request, ship=True)
    if request.detach:
        return _detach(session, request, ship=True, has_storage=_has_storage(ctx))
    from launcher.run import run

    return carry_out(session, lambda around: run(request, around), is_json=request.json)


def _check_script(session: Session, script: Path) -> None:
    """Before the heavy imports: a wrong script is told at once."""
    from launcher.preflight import check_script

    check_script(
        script,
        session.environment.cwd,
        home=session.environment.home,
        legacy_keras=session.environment.tf_use_legacy_keras,
    )


@app.command("resume")
def _resume(
    ctx: typer.Context,
    run: o.RunName,
    budget: o.Budget = None,
    deadline: o.Deadline = None,
    price: o.Price = None,
    workers: o.Workers = None,
    max_workers: o.MaxWorkers = None,
    address: o.Address = None,
    cluster: o.Cluster = None,
    down_when_done: o.DownWhenDone = None,
    wait: o.Wait = None,
    data: o.Data = None,
    cache: o.Cache = None,
    storage: o.StorageUri = None,
    detach: o.Detach = None,
    yes: o.Yes = None,
    json: o.Json = None,
) -> int:
    """Go on with a run where it stopped, or was lost."""
    from launcher.runs import open_store

    session: Session = ctx.obj
    refuse_args(session)
    store = open_store(make_storage(storage, session.environment), session.index, run)
    site = far_site(session, address, cluster, down_when_done=down_when_done)
    if site is not None and not store.has(run):
        from launcher.afar import record_afar

        record_afar(session, run, site, store)
    record = store.load(run)
    flags = _flags(ctx)
    request = resume_request(
        replace(record.request, storage=store.storage.uri),
        flags,
        session.environment,
        run=run,
        spent_usd=record.cost_usd,
        stopped_at_budget=record.status == "budget",
        terminal=session.terminal,
    )
    if site is not None:
        request = replace(request, storage=record.request.storage)
        return _afar(session, site, request, run=run, home=store.storage.uri)
    if request.detach:
        return _detach(session, request, run=run, has_storage=True)
    from launcher.run import resume

    return carry_out(session, lambda around: resume(run, request, around), is_json=request.json)


app.command("compare")(compare)
app.command("attach")(cli_follow.attach)
app.command("fetch")(fetch)
app.command("tune")(tune)
app.command("stop")(cli_follow.stop)


@app.command("runs")
def _runs(ctx: typer.Context, storage: o.StorageUri = None, json: o.Json = None) -> None:
    """List every run: chosen n, predicted and actual time and cost."""
    from launcher.record import CODEC
    from launcher.report import print_runs
    from launcher.runs import open_store

    session: Session = ctx.obj
    refuse_args(session)
    store = open_store(make_storage(storage, session.environment), session.index)
    found = store.all()
    if json:
        print_json([CODEC.encode(record) for record in found.records])
        return
    now = datetime.now(UTC)
    status_by_run = {record.run: store.status(record, now) for record in found.records}
    print_runs(_console(session), found, now, status_by_run)


@app.command("explain")
def _explain(
    ctx: typer.Context, run: o.RunName, storage: o.StorageUri = None, json: o.Json = None
) -> None:
    """Explain a run: candidates, why n and not n ± 1, the network, what each number rests on."""
    from launcher.explain import print_explanation
    from launcher.record import CODEC
    from launcher.runs import open_store

    session: Session = ctx.obj
    refuse_args(session)
    store = open_store(make_storage(storage, session.environment), session.index, run)
    record = store.load(run)
    if json:
        print_json(CODEC.encode(record))
        return
    now = datetime.now(UTC)
    print_explanation(_console(session), record, now, store.status(record, now))


@app.command("probe")
def _probe(
    ctx: typer.Context,
    address: o.Address = None,
    price: o.Price = None,
    json: o.Json = None,
) -> None:
    """Measure the network between all nodes of the cluster."""
    session: Session = ctx.obj
    refuse_args(session)
    address_, price_usd_per_h = cluster_options(_flags(ctx), session.environment)
    import ray  # noqa: F401 - its import sets its own logging up, which ours then replaces

    from launcher.cluster import connect, disconnect
    from launcher.explain import print_probe
    from launcher.probe import probe
    from launcher.record import CODEC

    logs = session.start_logging(say)
    cluster = connect(
        address_,
        session.environment.ray_address,
        price_usd_per_h=price_usd_per_h,
        temp_dir=None,
        log_dir=logs,
    )
    try:
        network = probe(cluster)
    finally:
        disconnect(cluster)
    if json:
        print_json(CODEC.encode(network))
        return
    print_probe(_console(session), cluster.how, cluster.nodes, network)


@app.command("doctor")
def _doctor(
    ctx: typer.Context,
    script: o.AnyScript = None,
    address: o.Address = None,
    storage: o.StorageUri = None,
    json: o.Json = None,
) -> int:
    """Check whether every node is fit to train: versions, ports, clocks, disks, paths, imports."""
    session: Session = ctx.obj
    if script is None:
        refuse_args(session)
    address_, _ = cluster_options(_flags(ctx), session.environment)
    storage_uri = make_storage(storage, session.environment)
    from launcher.doctor import examine_script, see_cluster
    from launcher.doctor_report import print_report, report_json
    from launcher.progress_streams import make_progress

    needs = examine_script(script, session.args, session.environment)
    progress = make_progress(
        session.environment, session.terminal, time.monotonic, is_json=bool(json)
    )
    try:
        report = see_cluster(
            address_,
            session.environment.ray_address,
            needs,
            storage_uri,
            log_dir=session.start_logging(progress.line),
            progress=progress.stage,
        )
    finally:
        progress.close()
    if json:
        sys.stdout.write(report_json(report) + "\n")
    else:
        print_report(_console(session), report)
    return report.exit_code


app.command("up")(cli_clusters.up)
app.command("down")(cli_clusters.down)
app.command("status")(cli_clusters.status)
app.add_typer(cli_clusters.prices_app)


def main() -> None:
    """Entry point of the `launch` command."""
    sys.exit(execute(typer.main.get_command(app), sys.argv[1:]))


def _flags(ctx: typer.Context) -> Flags:
    """The words of the options that the command has."""
    given = {f.name: ctx.params[f.name] for f in fields(Flags) if f.name in ctx.params}
    return Flags(**{name: None if value == [] else value for name, value in given.items()})


def _has_storage(ctx: typer.Context) -> bool:
    return has_storage(_flags(ctx), ctx.obj.environment)


def _detach(
    session: Session,
    request: Any,
    *,
    ship: bool = False,
    run: str | None = None,
    has_storage: bool,
) -> int:
    """Hand a run over to a driver without a terminal."""
    from launcher.attach import detach
    from launcher.prepare import ship as pack

    shipped = pack(request, session.environment, say) if ship else None
    return detach(session, request, shipped=shipped, run=run, has_storage=has_storage)


def _afar(
    session: Session,
    site: "AnySite",
    request: Any,
    *,
    ship: bool = False,
    run: str | None = None,
    home: str | None = None,
) -> int:
    """Hand a run over to a cluster afar."""
    from launcher.afar import Sent, launch_afar
    from launcher.prepare import ship as pack

    shipped = pack(request, session.environment, say) if ship else None
    return launch_afar(session, site, Sent(request, home or request.storage, shipped, run))


def _group(ctx: typer.Context) -> Any:
    parent = ctx.parent
    return parent.command if parent is not None else None


def _console(session: Session) -> Any:
    """The console for results on stdout."""
    from launcher.console import make_console

    is_tty = session.terminal.stdout_is_tty
    return make_console(sys.stdout, is_tty=is_tty, environment=session.environment)
