"""What is up of a cluster and what it has cost, from what the provider and the head tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from launcher.cluster_file import ClusterFile
from launcher.head import KnownNode, Look
from launcher.planned_types import PlannedType
from launcher.pricing import Price
from launcher.rented import RentedNode

State = Literal["joined", "not joined", "gone"]


@dataclass(frozen=True, slots=True)
class BilledNode:
    """A machine of a cluster.

    Attributes:
        state: whether it is part of the cluster, is billed without being part, or has ended.
        paid_s: how long it has been paid for.
        price: None where neither the cluster file nor the node tells what it is.
    """

    name: str
    node_type: str | None
    cpus: float
    gpus: float
    price: Price | None
    state: State
    paid_s: float

    @property
    def cost_usd(self) -> float:
        """What it has cost so far."""
        return 0.0 if self.price is None else self.price.usd_per_h * self.paid_s / 3600.0


@dataclass(frozen=True, slots=True)
class Bill:
    """All machines of a cluster, those that are up first."""

    nodes: tuple[BilledNode, ...]

    @property
    def up(self) -> tuple[BilledNode, ...]:
        """What is up now."""
        return tuple(node for node in self.nodes if node.state != "gone")

    @property
    def usd_per_h(self) -> float:
        """What an hour of what is up costs."""
        return sum(node.price.usd_per_h for node in self.up if node.price is not None)

    @property
    def cost_usd(self) -> float:
        """What all of them have cost."""
        return sum(node.cost_usd for node in self.nodes)


def make_bill(
    file: ClusterFile,
    rented: Sequence[RentedNode],
    look: Look | None,
    *,
    begun_at: float | None,
    now: float,
) -> Bill:
    """Join what the provider bills with what Ray remembers.

    A machine is paid for from when it was rented. Where the provider does not tell that, it is
    taken to be as long before its Ray started as it was for the head, which `launch up` had begun
    to rent at `begun_at`: all machines of a cluster are set up alike. Own machines are paid for
    while they are part of the cluster.

    Args:
        look: what the head tells; None where it does not answer.
        begun_at: when the cluster began to come up, if known. Times are seconds since the epoch.
    """
    known = () if look is None else look.nodes
    skew_s = 0.0 if look is None else look.now - now
    lead_s = 0.0 if file.is_local else _lead_s(known, begun_at, skew_s)
    by_address = {each.node.address: each for each in known if each.ended_at is None}
    up = [_rented(file, each, by_address, lead_s + skew_s, begun_at, now) for each in rented]
    rest = [
        _remembered(each, lead_s, now + skew_s)
        for each in known
        if not _is_counted(each, rented, skew_s) and (each.ended_at is not None or not rented)
    ]
    order = {"joined": 0, "not joined": 1, "gone": 2}
    return Bill(tuple(sorted([*up, *rest], key=lambda node: order[node.state])))


def _is_counted(known: KnownNode, rented: Sequence[RentedNode], skew_s: float) -> bool:
    """Whether a node that Ray remembers is one of the machines that are rented now."""
    return any(
        each.address == known.node.address
        and (each.since is None or known.begun_at - skew_s >= each.since)
        for each in rented
    )


def _lead_s(known: Sequence[KnownNode], begun_at: float | None, skew_s: float) -> float:
    """How long before its Ray a machine was rented, as the head was."""
    first = min((each.begun_at for each in known), default=None)
    if first is None or begun_at is None:
        return 0.0
    return max(0.0, first - skew_s - begun_at)


def _rented(
    file: ClusterFile,
    rented: RentedNode,
    by_address: dict[str, KnownNode],
    lead_s: float,
    begun_at: float | None,
    now: float,
) -> BilledNode:
    joined = by_address.get(rented.address or "")
    planned = next((each for each in file.types if each.name == rented.node_type), None)
    since = rented.since
    if since is None and joined is not None:
        since = joined.begun_at - lead_s
    if since is None:
        since = begun_at
    paid_s = 0.0 if since is None else max(0.0, now - since)
    if joined is not None:
        node = joined.node
        return BilledNode(
            node.address, rented.node_type, node.cpus, node.gpus, node.price, "joined", paid_s
        )
    return BilledNode(
        rented.address or rented.name,
        rented.node_type,
        *_planned(planned),
        state="not joined",
        paid_s=paid_s,
    )


def _planned(planned: PlannedType | None) -> tuple[float, float, Price | None]:
    if planned is None:
        return 0.0, 0.0, None
    return planned.cpus, planned.gpus, planned.price


def _remembered(known: KnownNode, lead_s: float, now: float) -> BilledNode:
    """A node that only Ray tells of."""
    node, ended_at = known.node, known.ended_at
    until = now if ended_at is None else ended_at
    return BilledNode(
        node.address,
        known.node_type,
        node.cpus,
        node.gpus,
        node.price,
        "joined" if ended_at is None else "gone",
        max(0.0, until - known.begun_at + lead_s),
    )
