"""Which cluster afar a command line names: `--cluster FILE`, or `--address http://HEAD:8265`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli_clusters import desk_of
from launcher.command import Session
from launcher.config import Flags, cluster_options, far_options
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.sites import AnySite


def far_site(
    session: Session,
    address: str | None,
    cluster: str | None,
    *,
    down_when_done: bool | None = None,
    run: str | None = None,
) -> "AnySite | None":
    """The cluster that the options, their variables or an earlier call name; None: none afar.

    Args:
        run: is looked for among those that were sent from here, where no cluster is named.

    Raises:
        UsageError: the options contradict each other.
    """
    environment = session.environment
    if address is not None and cluster is not None:
        raise UsageError("--address and --cluster name two clusters. Leave one of them out.")
    flags = Flags(address=address, cluster=cluster, down_when_done=down_when_done)
    if address is not None or cluster is not None:  # flags win over variables
        hidden = "LAUNCH_CLUSTER" if address is not None else "LAUNCH_ADDRESS"
        kept = {name: value for name, value in environment.launch.items() if name != hidden}
        environment = replace(environment, launch=kept)
    file, goes_down = far_options(flags, environment)
    where, _ = cluster_options(flags, environment)
    if file is None and goes_down:
        raise UsageError("--down-when-done takes a cluster down that --cluster FILE names.")
    return _site(session, file, where, run, down_when_done=goes_down)


def _site(
    session: Session, file: str | None, where: str | None, run: str | None, *, down_when_done: bool
) -> "AnySite | None":
    from launcher.jobs import is_dashboard

    if file is None and not is_dashboard(where) and run is None:
        return None
    from launcher.job_book import JobBook
    from launcher.sites import AddressSite, FileSite, site_of

    if file is not None:
        folder = session.environment.cwd
        return FileSite.of(Path(file), folder, desk_of(session), down_when_done=down_when_done)
    if where is not None and is_dashboard(where):
        return AddressSite(where.rstrip("/"))
    known = JobBook(session.environment.state_dir / "jobs").find(str(run)) if run else None
    return None if known is None or where is not None else site_of(known, desk_of(session))
