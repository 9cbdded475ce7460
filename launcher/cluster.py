"""Joins a Ray cluster, or starts an embedded one, and says what its nodes are and cost."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher import ray_session
from launcher.autoscaler import read_autoscaling
from launcher.cluster_join import Target, check, find_target
from launcher.cluster_nodes import BusyNode, Listing, busy_text, list_nodes
from launcher.errors import ClusterError
from launcher.node_types import Autoscaling, n_may_start, nodes_to_start, with_node_group
from policies.schema import Node

log = logging.getLogger(__name__)

SETTLE_S = 3.0  # Ray's books lag by up to a second after a job has ended
RELEASE_S = 10.0  # … and a segment whose workers have died takes longer
_POLL_S = 0.2
_POLL_WAITING_S = 1.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connected Ray cluster; `how` tells a user which one and why.

    `nodes` are the candidates; `busy` are nodes of which another job holds a part.
    `price_usd_per_h` is the explicit `--price` for every node, if there was one.
    `to_start` are candidates that do not exist yet; `autoscaling` could start so many of each
    type, and at most `n_to_start` of all. `only` are the addresses or ids of the nodes that count;
    empty for all.
    """

    address: str
    embedded: bool
    nodes: tuple[Node, ...]
    how: str
    price_usd_per_h: float | None = None
    busy: tuple[BusyNode, ...] = ()
    autoscaling: Autoscaling | None = None
    to_start: tuple[Node, ...] = ()
    n_to_start: int = 0
    only: tuple[str, ...] = ()


def connect(
    address: str | None,
    ray_address: str | None,
    *,
    price_usd_per_h: float | None,
    temp_dir: Path | None,
    log_dir: Path,
    wait_s: float = 0.0,
    progress: Callable[[str], None] = lambda _: None,
    need_nodes: bool = True,
    may_start: bool = False,
    only: Sequence[str] = (),
) -> Cluster:
    """Join `address`, else `ray_address`, else the cluster running here, else start one.

    Blocks for 2 to 4 s (embedded) or about 1 s (joined); an unreachable address at most 20 s.
    Signal handlers, the working folder and the terminal are left as they were.

    Args:
        address: `--address`: `host:port`, `auto` (the cluster running here) or `local`
            (start an embedded Ray whatever runs here).
        ray_address: `RAY_ADDRESS` of the environment, read by the caller.
        price_usd_per_h: `--price`, for every node.
        temp_dir: where Ray keeps its sessions; None means Ray's own default for a running
            cluster, and a folder of the launcher's for an embedded one.
        log_dir: an existing or new folder for what Ray says, `ray.log`.
        wait_s: for how long to wait for nodes that other jobs hold.
        progress: is told what is waited for.
        need_nodes: whether a cluster without a free node is an error.
        may_start: whether nodes count that the cluster's autoscaler could start.
        only: addresses or ids of the nodes that count; empty for all.

    Raises:
        ClusterError: unreachable, of other versions, or without a node to train on.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    target = find_target(address, ray_address, temp_dir)
    cluster = _joined(target, log_dir) if target is not None else _started(temp_dir, log_dir)
    cluster = replace(cluster, price_usd_per_h=price_usd_per_h, only=tuple(only))
    try:
        if may_start and not cluster.embedded:
            cluster = replace(cluster, autoscaling=read_autoscaling(cluster.address))
        cluster = await_free(refresh(cluster, SETTLE_S), wait_s, progress)
        if need_nodes:
            require_nodes(cluster)
    except BaseException:
        disconnect(cluster)
        raise
    return cluster


def _joined(target: Target, log_dir: Path) -> Cluster:
    token = check(target, log_dir / ray_session.RAY_LOG)
    address = ray_session.join(target.address, token=token, log_dir=log_dir)
    return Cluster(address, embedded=False, nodes=(), how=target.how)


def _started(temp_dir: Path | None, log_dir: Path) -> Cluster:
    address = ray_session.start(temp_dir, log_dir)
    return Cluster(address, embedded=True, nodes=(), how="started an embedded Ray")


def refresh(cluster: Cluster, settle_s: float = RELEASE_S) -> Cluster:
    """The same cluster with its nodes as they are now.

    A node of which anything is held is busy, by Ray's own books. They lag by up to a second,
    so a node that was not busy before is looked at again for up to `settle_s` seconds: what a
    segment or job that has just ended still holds does not count. While this machine stalls, as
    its books may, no time passes.

    Raises:
        ClusterError: a node carries a price label that is no price.
    """
    known = {each.node.id for each in cluster.busy}
    found = _read(cluster)
    for _ in range(round(settle_s / _POLL_S)):
        if not {each.node.id for each in found.busy} - known:
            break
        time.sleep(_POLL_S)
        found = _read(cluster)
    return found


def all_nodes(cluster: Cluster) -> tuple[Node, ...]:
    """Every living node with all that it has: free, busy, and those without CPUs."""
    return _listing(cluster).living


def disconnect(cluster: Cluster) -> None:
    """End an embedded Ray (about 1 s); leave a joined cluster running."""
    import ray

    log.info("leaving the cluster: %s", cluster.how)
    ray.shutdown()


def await_free(cluster: Cluster, wait_s: float, progress: Callable[[str], None]) -> Cluster:
    """The cluster once nothing is busy any more, or when the wait (in seconds) is over."""
    until_s = time.monotonic() + wait_s
    said: tuple[BusyNode, ...] = ()
    while cluster.busy and time.monotonic() < until_s:
        if cluster.busy != said:
            said = cluster.busy
            progress(f"waiting: {busy_text(said)}")
        time.sleep(_POLL_WAITING_S)
        cluster = _read(cluster)
    return cluster


def require_nodes(cluster: Cluster) -> None:
    """Raise ClusterError unless there is a node to train on, or one that can be started."""
    if cluster.nodes or cluster.to_start:
        return
    if cluster.busy:
        raise ClusterError(
            f"Every node of the Ray cluster at {cluster.address} is in use: "
            f"{busy_text(cluster.busy)}. Wait for them with --wait 10m, or end those jobs "
            "(ray status shows what is held)."
        )
    raise ClusterError(
        f"The Ray cluster at {cluster.address} has no node with a CPU. Add nodes: "
        f"ray start --address={cluster.address}"
    )


def _read(cluster: Cluster) -> Cluster:
    listing = _listing(cluster).among(cluster.only)
    found = replace(cluster, nodes=listing.nodes, busy=listing.busy)
    if cluster.autoscaling is None:
        return found
    n_most = n_may_start(cluster.autoscaling, len(listing.living))
    to_start = nodes_to_start(cluster.autoscaling, listing.living, cluster.price_usd_per_h)
    return replace(found, to_start=to_start, n_to_start=n_most)


def _listing(cluster: Cluster) -> Listing:
    import ray
    from ray._private.state import available_resources_per_node

    free_by_id: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    raw_nodes: Sequence[Mapping[str, Any]] = ray.nodes()
    if (autoscaling := cluster.autoscaling) is not None:
        raw_nodes = [with_node_group(raw, autoscaling) for raw in raw_nodes]
    return list_nodes(
        raw_nodes, free_by_id, price_usd_per_h=cluster.price_usd_per_h, own=cluster.embedded
    )
