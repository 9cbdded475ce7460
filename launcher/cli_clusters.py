"""The commands for clusters from a file: `launch up`, `down`, `status` and `prices`."""

import json as json_module
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import options as o
from launcher.command import Session, refuse_args, say
from launcher.errors import LauncherError, UsageError
from launcher.quantities import parse_duration_s

if TYPE_CHECKING:
    from launcher.auto_down import Rule
    from launcher.cluster_file import ClusterFile
    from launcher.clusters import Desk, Status
    from launcher.machines import RealMachines

IdleDown = Annotated[
    str | None,
    typer.Option(
        "--idle-down",
        metavar="TIME",
        help="The cluster takes itself down once nobody has used it for so long: 10m.",
    ),
]
DownWhenDone = Annotated[
    bool,
    typer.Option(
        "--down-when-done",
        metavar="",
        help="The cluster takes itself down after its first run.",
    ),
]
AnyClusterFile = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE", help="A file for `ray up`. Default: every cluster brought up from here."
    ),
]
# Where the clouds' list prices are lowest, and the shipped table's are from.
REGIONS = {"aws": "us-east-1", "gcp": "us-central1"}
Cloud = Annotated[str, typer.Option("--cloud", metavar="NAME", help="Whose prices: aws or gcp.")]
Region = Annotated[
    str | None,
    typer.Option("--region", metavar="NAME", help="Default: us-east-1, or us-central1 of gcp."),
]

prices_app = typer.Typer(name="prices")


def up(
    ctx: typer.Context,
    file: o.ClusterFile,
    idle_down: IdleDown = None,
    down_when_done: DownWhenDone = False,
) -> None:
    """Bring a cluster up with `ray up`, and see that every node has joined."""
    from launcher import clusters
    from launcher.nodes_report import print_nodes

    rule = _rule(idle_down, when_done=down_when_done)
    cluster_file, machines, desk = _opened(ctx.obj, file)
    try:
        with desk.book.alone_with(cluster_file.path, say):
            nodes = clusters.up(cluster_file, machines, desk, rule)
    except KeyboardInterrupt:
        say(f"interrupted: what is up stays up. launch down {file} gives it back")
        ctx.obj.has_ended = True
        raise
    print_nodes(_console(ctx.obj), nodes)


def down(ctx: typer.Context, file: o.ClusterFile) -> None:
    """Take a cluster down with `ray down`, and see that nothing of it is left."""
    from launcher import clusters
    from policies.wording import dollars

    cluster_file, machines, desk = _opened(ctx.obj, file)
    try:
        with desk.book.alone_with(cluster_file.path, say):
            entry = clusters.down(cluster_file, machines, desk)
    except KeyboardInterrupt:
        ctx.obj.has_ended = True
        raise
    cost = ""
    if entry is not None and entry.cost_usd is not None:
        cost = f". It has cost {dollars(entry.cost_usd)}"
    say(f"the cluster of {file} is down{cost}")


def status(ctx: typer.Context, file: AnyClusterFile = None, json: o.Json = None) -> None:
    """Show what is up and what it has cost; of all clusters brought up from here by default."""
    from launcher import clusters
    from launcher.nodes_report import print_open, print_status, status_json

    session: Session = ctx.obj
    if file is not None:
        found = [clusters.status(*_opened(session, file))]
    else:
        refuse_args(session)
        session.start_logging(say)
        found = list(_open_statuses(session))
    if json:
        documents = [status_json(each) for each in found]
        _print_json(documents if file is None else documents[0])
    elif file is None:
        print_open(_console(session), found)
    else:
        print_status(_console(session), found[0])


@prices_app.callback(invoke_without_command=True)
def _prices(ctx: typer.Context) -> None:
    """Show where prices by instance type come from."""
    from launcher.pricing import price_table

    if ctx.invoked_subcommand is not None:
        return
    refuse_args(ctx.obj)
    for line in price_table().sources:
        print(line)
    print("A price label in the cluster file overrides them; spot prices stand only there.")


@prices_app.command("refresh")
def _refresh(ctx: typer.Context, cloud: Cloud = "aws", region: Region = None) -> None:
    """Fetch the list prices of a region's machines, which needs credentials, but costs nothing."""
    from launcher.google_prices import GoogleCatalogue, fetch_google_prices
    from launcher.price_refresh import aws_price_list, fetch_prices
    from launcher.pricing import refreshed_path, write_prices

    session: Session = ctx.obj
    refuse_args(session)
    if cloud not in REGIONS:
        raise UsageError(f"--cloud {cloud} is not known. Choose {' or '.join(REGIONS)}.")
    where = region or REGIONS[cloud]
    session.start_logging(say)
    if cloud == "aws":
        prices = fetch_prices(aws_price_list(), where)
    else:
        prices = fetch_google_prices(GoogleCatalogue(), where)
    path = refreshed_path(session.environment)
    write_prices(path, cloud, prices, datetime.now(UTC).date(), where)
    say(f"{len(prices):,} prices of {where} are in {path}, and are used from now on")


def _rule(idle_down: str | None, *, when_done: bool) -> "Rule | None":
    from launcher.auto_down import SHORTEST_S, Rule

    if idle_down is None:
        return Rule(math.inf, when_done=True) if when_done else None
    idle_s = parse_duration_s(idle_down, "--idle-down")
    if idle_s < SHORTEST_S:
        raise UsageError(
            f"--idle-down {idle_down} is too short: give at least {SHORTEST_S:g}s, or the cluster "
            "would be gone before anyone could use it."
        )
    return Rule(idle_s, when_done)


def _opened(session: Session, file: str) -> "tuple[ClusterFile, RealMachines, Desk]":
    """What a cluster's file says, the machines that it names, and what is known of it."""
    from launcher.cluster_file import read_cluster_file
    from launcher.machines import make_machines

    refuse_args(session)
    cluster_file = read_cluster_file(Path(file))
    return cluster_file, make_machines(cluster_file, session.start_logging(say)), desk_of(session)


def desk_of(session: Session) -> "Desk":
    """What commands for clusters share."""
    from launcher.clusters import Desk
    from launcher.images import aws_parameters

    return Desk(session.environment.state_dir / "clusters", say, time.time, aws_parameters)


def _open_statuses(session: Session) -> "Iterator[Status]":
    """All clusters that may be up; those that cannot be asked are told, with what is noted."""
    from launcher import clusters
    from policies.wording import dollars

    desk = desk_of(session)
    for entry in list(desk.book.open_entries()):
        try:
            with _folder(Path(entry.folder)):
                yield clusters.status(*_opened(session, entry.file))
        except LauncherError as error:
            price = dollars(entry.usd_per_h)
            say(f"{entry.name}, up since {_day(entry.begun_at)} at {price}/h or more: {error}")


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Be in the folder that a cluster was brought up from, as its file's paths may begin there."""
    here = Path.cwd()
    try:
        os.chdir(path if path.is_dir() else here)
        yield
    finally:
        os.chdir(here)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def _console(session: Session) -> Any:
    from launcher.console import make_console

    is_tty = session.terminal.stdout_is_tty
    return make_console(sys.stdout, is_tty=is_tty, environment=session.environment)


def _print_json(value: Any) -> None:
    sys.stdout.write(json_module.dumps(value, indent=1, ensure_ascii=False) + "\n")
