"""`launch attach` and `launch stop`: follow or stop a run that is driven elsewhere."""

from typing import TYPE_CHECKING

import typer

from launcher import options as o
from launcher.cli_far import far_site
from launcher.command import Session, refuse_args
from launcher.config import Flags, cluster_options, make_storage

if TYPE_CHECKING:
    from launcher.runs import RunStore
    from launcher.sites import AnySite


def attach(
    ctx: typer.Context,
    run: o.RunName,
    address: o.Address = None,
    cluster: o.Cluster = None,
    storage: o.StorageUri = None,
    json: o.Json = None,
) -> int:
    """Follow a run that goes on elsewhere, until it ends; Ctrl-C leaves it alone."""
    session: Session = ctx.obj
    store, site = _elsewhere(session, run, address, cluster, storage)
    if site is not None:
        from launcher.afar import attach_afar

        home = make_storage(storage, session.environment)
        return attach_afar(session, run, site, home, is_json=bool(json))
    from launcher.attach import attach as follow

    return follow(session, run, store, _address(session, address), is_json=bool(json))


def stop(
    ctx: typer.Context,
    run: o.RunName,
    address: o.Address = None,
    cluster: o.Cluster = None,
    storage: o.StorageUri = None,
) -> int:
    """Stop a run at a checkpoint, wherever it is driven."""
    session: Session = ctx.obj
    store, site = _elsewhere(session, run, address, cluster, storage)
    if site is not None:
        from launcher.afar import stop_afar

        return stop_afar(session, run, site)
    from launcher.attach import stop as end

    return end(session, run, store, _address(session, address))


def _elsewhere(
    session: Session, run: str, address: str | None, cluster: str | None, storage: str | None
) -> "tuple[RunStore, AnySite | None]":
    """The store that has a run, or the cluster afar that it was sent to."""
    from launcher.runs import open_store

    refuse_args(session)
    store = open_store(make_storage(storage, session.environment), session.index, run)
    return store, far_site(session, address, cluster, run=None if store.has(run) else run)


def _address(session: Session, address: str | None) -> str | None:
    """The cluster's address, by the option or its variable."""
    return cluster_options(Flags(address=address), session.environment)[0]
