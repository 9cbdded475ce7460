"""The commands of `launch policy`: what it believes, and past runs through other policies."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import options as o
from launcher.command import Session, print_json, refuse_args
from launcher.config import make_storage
from launcher.quantities import parse_count

if TYPE_CHECKING:
    from launcher.runs import Runs, RunStore

DEFAULT_LAST = 50

AnyRun = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Whose cluster and script are meant. Default: the newest."),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy", metavar="NAME", help="Which policy to ask. Default: all, side by side."
    ),
]
Last = Annotated[
    str | None,
    typer.Option(metavar="N", help=f"The last so many runs. Default: {DEFAULT_LAST}."),
]

policy_app = typer.Typer(name="policy")


@policy_app.callback(invoke_without_command=True)
def _policy(ctx: typer.Context) -> None:
    """Show what the policy believes, or what other policies would have chosen."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@policy_app.command("show")
def _show(
    ctx: typer.Context, run: AnyRun = None, storage: o.StorageUri = None, json: o.Json = None
) -> None:
    """Print what the policy believes of a run's cluster and script; of the newest run's by default.

    Latency and bandwidth of links, step time and efficiency by n, start-up times: measured or
    predicted, with intervals, and how many runs they rest on.
    """
    from launcher.beliefs_report import print_beliefs, print_no_beliefs
    from launcher.believing import beliefs_of, newest_beliefs
    from launcher.record import CODEC

    session: Session = ctx.obj
    store, found = _store(session, storage, run)
    if run is None:
        newest = newest_beliefs(found.records)
    else:
        record = store.load(run)
        newest = record, beliefs_of(record, found.records)
    if json:
        print_json(None if newest is None else CODEC.encode(newest[1]))
    elif newest is None:
        print_no_beliefs(_console(session), found)
    else:
        print_beliefs(_console(session), *newest, found, datetime.now(UTC))


@policy_app.command("replay")
def _replay(
    ctx: typer.Context,
    policy: Policy = None,
    last: Last = None,
    storage: o.StorageUri = None,
    json: o.Json = None,
) -> None:
    """Tell what another policy would have chosen in past runs, and lost or saved.

    Without --policy, all policies side by side.
    """
    from launcher.record import CODEC
    from launcher.replay_report import print_comparison, print_replay
    from launcher.replaying import all_contenders, contender_named, pasts_of, replay

    session: Session = ctx.obj
    refuse_args(session)
    asked = all_contenders() if policy is None else (contender_named(policy),)
    n_last = DEFAULT_LAST if last is None else parse_count(last, "--last")
    store, found = _store(session, storage, None)
    pasts = pasts_of(found, store.storage.public_uri, n_last)
    replays = [replay(pasts, each) for each in asked]
    if json:
        print_json(CODEC.encode(replays if policy is None else replays[0]))
    elif policy is None:
        print_comparison(_console(session), replays, pasts)
    else:
        print_replay(_console(session), replays[0], pasts)


def _store(session: Session, storage: str | None, run: str | None) -> "tuple[RunStore, Runs]":
    """The storage that has a run, and all runs there."""
    from launcher.runs import open_store

    refuse_args(session)
    store = open_store(make_storage(storage, session.environment), session.index, run)
    return store, store.all()


def _console(session: Session) -> Any:
    from launcher.console import make_console

    is_tty = session.terminal.stdout_is_tty
    return make_console(sys.stdout, is_tty=is_tty, environment=session.environment)
