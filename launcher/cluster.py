"""Joins a Ray cluster, or starts an embedded one, and says what its nodes are and cost."""

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher import ray_session
from launcher.cluster_join import check, find_target
from launcher.errors import ClusterError
from launcher.pricing import Machine, price_of, table_usd_per_h
from policies.schema import Node

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connected Ray cluster; `how` tells a user which one and why.

    `price_usd_per_h` is the explicit `--price` for every node, if there was one.
    """

    address: str
    embedded: bool
    nodes: tuple[Node, ...]
    how: str
    price_usd_per_h: float | None = None


def connect(
    address: str | None,
    ray_address: str | None,
    *,
    price_usd_per_h: float | None,
    temp_dir: Path | None,
    log_dir: Path,
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

    Raises:
        ClusterError: unreachable, of other versions, or without a node to train on.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    target = find_target(address, ray_address, temp_dir)
    if target is not None:
        token = check(target, log_dir / ray_session.RAY_LOG)
        gcs_address = ray_session.join(target.address, token=token, log_dir=log_dir)
        how = target.how
    else:
        gcs_address = ray_session.start(temp_dir, log_dir)
        how = "started an embedded Ray"
    cluster = Cluster(gcs_address, target is None, (), how, price_usd_per_h)
    try:
        return _require_nodes(refresh(cluster))
    except ClusterError:
        disconnect(cluster)
        raise


def refresh(cluster: Cluster) -> Cluster:
    """The same cluster with its nodes as they are now.

    `cpus` and `gpus` are what no task, actor or placement group holds, by Ray's own books,
    which lag by up to a second; so what this run itself still holds is not free.

    Raises:
        ClusterError: a node carries a price label that is no price.
    """
    import ray
    from ray._private.state import available_resources_per_node

    free_by_id: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    nodes = [
        _node(raw, free_by_id.get(raw["NodeID"]), cluster) for raw in ray.nodes() if raw["Alive"]
    ]
    usable = sorted((n for n in nodes if n.cpus > 0), key=lambda n: (_ip_key(n.ip), n.id))
    return replace(cluster, nodes=tuple(usable))


def disconnect(cluster: Cluster) -> None:
    """End an embedded Ray (about 1 s); leave a joined cluster running."""
    import ray

    log.info("leaving the cluster: %s", cluster.how)
    ray.shutdown()


def _require_nodes(cluster: Cluster) -> Cluster:
    if not cluster.nodes:
        raise ClusterError(
            f"The Ray cluster at {cluster.address} has no node with a free CPU. "
            "Wait until its other jobs end (ray status shows them), or add nodes."
        )
    return cluster


def _node(raw: Mapping[str, Any], free: Mapping[str, float] | None, cluster: Cluster) -> Node:
    total: Mapping[str, float] = raw["Resources"]
    labels: Mapping[str, str] = raw.get("Labels") or {}
    free = total if free is None else free
    instance_type = instance_type_of(labels)
    ip = str(raw["NodeManagerAddress"])
    cpus, gpus = float(total.get("CPU", 0.0)), float(total.get("GPU", 0.0))
    machine = Machine(ip, cpus, gpus, labels, instance_type, own=cluster.embedded)
    price = price_of(machine, cluster.price_usd_per_h)
    return Node(
        id=str(raw["NodeID"]),
        ip=ip,
        cpus=float(free.get("CPU", 0.0)),
        gpus=float(free.get("GPU", 0.0)),
        instance_type=instance_type,
        price_usd_per_h=price.usd_per_h,
        price_source=price.source,
        kind=instance_type or kind_of(cpus, gpus, labels.get("ray.io/accelerator-type")),
    )


def instance_type_of(labels: Mapping[str, str]) -> str | None:
    """The provider's name of the machine type, if a label tells it.

    Any label `…/instance-type` counts (`launch/instance-type`, Kubernetes' own), then
    `node_type`; the autoscaler's node group only where it's named like a known type.
    """
    named = {key.rsplit("/", 1)[-1].replace("_", "-"): value for key, value in labels.items()}
    for key in ("instance-type", "node-type"):
        if named.get(key):
            return named[key]
    group = labels.get("ray.io/node-group", "")
    return group if group.lower() in table_usd_per_h() else None


def kind_of(cpus: float, gpus: float, accelerator: str | None = None) -> str:
    """The name for machines that compute alike, such as `8 cpu + 1 gpu (T4)`."""
    if gpus <= 0:
        return f"{cpus:g} cpu"
    return f"{cpus:g} cpu + {gpus:g} gpu" + (f" ({accelerator})" if accelerator else "")


def _ip_key(ip: str) -> tuple[int, bytes | str]:
    try:
        return (0, socket.inet_aton(ip))
    except OSError:
        return (1, ip)
