"""Brings up nodes that a plan needs: asks, waits with a deadline, says what did not come."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from launcher import figures as f
from launcher.autoscaler import Autoscaler, Bundle, RayAutoscaler, StandingRequest
from launcher.budget import SECONDS_PER_HOUR, Meter
from launcher.cluster import Cluster, refresh
from launcher.errors import ClusterError
from policies.schema import Node, NodeStart, Plan

PATIENCE_S: Final = 300.0  # clouds take one to three minutes
FAILED_S: Final = 30.0  # the autoscaler itself tries again meanwhile
RESERVE_S: Final = 10.0  # of budget and deadline, to go on with what is there
_POLL_S: Final = 1.0


class Teller(Protocol):
    """Where a person is told what is going on."""

    def stage(self, text: str) -> None:
        """Say what is going on."""

    def warn(self, text: str) -> None:
        """Say that something is not as it should be."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A cluster after nodes were asked for, and how long those took that joined."""

    cluster: Cluster
    starts: tuple[NodeStart, ...] = ()


class Scaling:
    """Starts nodes for a run, and counts them from when they are asked for.

    Args:
        run: its name.
        meter: of the run.
        teller: is told what is waited for.
        left_s: seconds until budget or deadline are reached.
        reach: who starts nodes in a cluster.
        look: the cluster as it is now.
        clock: monotonic seconds.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        run: str,
        meter: Meter,
        teller: Teller,
        left_s: Callable[[], float],
        *,
        reach: Callable[[Cluster], Autoscaler] | None = None,
        look: Callable[[Cluster], Cluster] = lambda cluster: refresh(cluster, 0.0),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._meter, self._teller, self._left_s = meter, teller, left_s
        self._reach = reach or (lambda cluster: RayAutoscaler(run, cluster.address))
        self._look, self._clock, self._sleep = look, clock, sleep
        self._request: StandingRequest | None = None

    def first(self, cluster: Cluster, *, is_dry_run: bool) -> Grown:
        """The cluster with at least one node, to measure the script on.

        Raises:
            ClusterError: no node is up, and none may be or could be started.
        """
        if cluster.nodes:
            return Grown(cluster)
        cheapest = min(cluster.to_start, key=lambda n: (n.price_usd_per_h / n.cpus, n.cpus, n.id))
        if is_dry_run:
            raise ClusterError(
                "No node of the cluster is up to measure the script on, and --dry-run starts none. "
                "Leave --dry-run out, or start one: raise min_workers of a node type."
            )
        grown = self.grown(cluster, [cheapest])
        if not grown.cluster.nodes:
            raise ClusterError(
                f"No node of the cluster is up, and none of the type {cheapest.node_type} came. "
                "ray status and monitor.log on the head say why."
            )
        return grown

    def grown(self, cluster: Cluster, wanted: Sequence[Node]) -> Grown:
        """The cluster once these nodes have joined, or as many as do in time.

        They stay asked for until `settle`: a node that nobody asks for or uses may be ended.
        """
        self.settle()
        autoscaler = self._reach(cluster)
        known = frozenset(node.id for node in _living(self._look(cluster)))
        self._meter.keep_only(())  # what was measured on is free again while we wait
        self._meter.hold(wanted)
        self._request = StandingRequest(autoscaler, bundles(cluster, wanted))
        try:
            self._request.__enter__()
            joined = self._awaited(cluster, wanted, known, autoscaler)
        except BaseException:
            self.settle()
            raise
        self._count(wanted, joined)
        return Grown(joined.cluster, joined.starts)

    def settle(self) -> None:
        """Ask for nothing any more: what the run uses is kept by its use."""
        if self._request is not None:
            self._request.end()
            self._request = None

    def _awaited(
        self,
        cluster: Cluster,
        wanted: Sequence[Node],
        known: frozenset[str],
        autoscaler: Autoscaler,
    ) -> "_Joined":
        wait = _Wait(tuple(wanted), known, self._clock())
        said: _Joined | None = None
        while True:
            joined = wait.joined(self._look(cluster), self._clock(), said)
            if said is None or joined.n_joined != said.n_joined:
                self._teller.stage(_progress(joined, wanted))
            said = joined
            reason = wait.over(joined, autoscaler.failures(), self._clock(), self._left_s())
            if reason is not None:
                break
            self._sleep(_POLL_S)
        for name, n_missing in joined.missing.items():
            self._teller.warn(_unmet(name, n_missing, wanted, reason))
        return joined

    def _count(self, wanted: Sequence[Node], joined: "_Joined") -> None:
        """What came counts from when it was asked for, and for as long as it lives on unused."""
        left = Counter(joined.missing)
        missing = [node for node in wanted if _taken(left, node.node_type or "")]
        self._meter.forget(missing)
        self._meter.keep_only(())
        self._meter.hold(joined.nodes)
        came = [node for node in wanted if node not in missing]
        self._meter.add(sum(n.price_usd_per_h * n.lingers_s / SECONDS_PER_HOUR for n in came))


@dataclass(frozen=True, slots=True)
class _Joined:
    """Where a wait stands: what is missing by node type, and when types were complete."""

    cluster: Cluster
    nodes: tuple[Node, ...]
    missing: Mapping[str, int]
    starts: tuple[NodeStart, ...]

    @property
    def n_joined(self) -> int:
        return len(self.nodes)


@dataclass(slots=True)
class _Wait:
    """What is waited for: pure but for what it remembers of failures."""

    wanted: tuple[Node, ...]
    known: frozenset[str]
    since_s: float
    failed_since_s: float | None = None

    def joined(self, cluster: Cluster, now_s: float, before: _Joined | None) -> _Joined:
        """Which of the wanted nodes are there; a new one without a type counts by its size."""
        fresh = [node for node in cluster.nodes if node.id not in self.known]
        left = Counter(node.node_type or "" for node in self.wanted)
        came = [node for node in fresh if _taken(left, self._type_of(node))]
        missing = {name: n for name, n in left.items() if n}
        starts = before.starts if before is not None else ()
        done = {start.node_type for start in starts}
        complete = {node.node_type or "" for node in self.wanted} - missing.keys() - done
        starts += tuple(NodeStart(name, now_s - self.since_s) for name in sorted(complete))
        return _Joined(cluster, tuple(came), missing, starts)

    def over(
        self, joined: _Joined, failures: Mapping[str, str], now_s: float, left_s: float
    ) -> str | None:
        """Why to wait no longer, "" where all have joined; None: wait on."""
        if not joined.missing:
            return ""
        failed = {name: why for name, why in failures.items() if name in joined.missing}
        if failed.keys() != joined.missing.keys():
            self.failed_since_s = None
        elif self.failed_since_s is None:
            self.failed_since_s = now_s
        if self.failed_since_s is not None and now_s - self.failed_since_s >= FAILED_S:
            said = "; ".join(dict.fromkeys(why for why in failed.values() if why))
            return "they could not be started" + (f" ({said})" if said else "")
        if left_s < RESERVE_S:
            return "budget or deadline leave no more time to wait"
        if now_s - self.since_s >= PATIENCE_S:
            return f"they did not join within {f.clock_text(PATIENCE_S)}"
        return None

    def _type_of(self, node: Node) -> str:
        if node.node_type is not None:
            return node.node_type
        like = (w for w in self.wanted if (w.cpus, w.gpus) == (node.cpus, node.gpus))
        return next((each.node_type or "" for each in like), "")


def candidates(cluster: Cluster) -> tuple[Node, ...]:
    """All nodes that a plan may use: those that are up, and those that can be started.

    The latter are like a node of their type that is up and was checked.
    """
    by_type = {node.node_type: node for node in reversed(cluster.nodes)}

    def as_known(node: Node) -> Node:
        like = by_type.get(node.node_type)
        if like is None:
            return node
        return replace(node, kind=like.kind, allowed_cpus=like.allowed_cpus)

    return (*cluster.nodes, *(as_known(node) for node in cluster.to_start))


def wanted_nodes(plan: Plan, cluster: Cluster) -> tuple[Node, ...]:
    """The nodes of a plan that have to be started first."""
    held = set(plan.nodes)
    return tuple(node for node in cluster.to_start if node.id in held)


def bundles(cluster: Cluster, wanted: Sequence[Node]) -> tuple[Bundle, ...]:
    """What to ask the autoscaler for: all that is there, which fills it up, and what is wanted.

    Types of the same size are told apart by the labels that their configuration gives them.
    """
    autoscaling = cluster.autoscaling
    return tuple(
        Bundle(node.cpus, node.gpus, autoscaling.labels_of(node.node_type) if autoscaling else {})
        for node in (*_living(cluster), *wanted)
    )


def _living(cluster: Cluster) -> tuple[Node, ...]:
    busy = tuple(each.node for each in cluster.busy)
    return tuple(node for node in (*cluster.nodes, *busy) if node.cpus > 0)


def _taken(left: "Counter[str]", name: str) -> bool:
    """Whether one of that name was left; then it is taken."""
    if left[name] <= 0:
        return False
    left[name] -= 1
    return True


def _progress(joined: _Joined, wanted: Sequence[Node]) -> str:
    types = Counter(node.node_type or "" for node in wanted)
    what = ", ".join(f"{n} × {name}" for name, n in types.items())
    if not joined.nodes:
        return f"starting nodes: asked for {what}"
    return f"starting nodes: {joined.n_joined} of {len(wanted)} have joined ({what})"


def _unmet(name: str, n_missing: int, wanted: Sequence[Node], reason: str) -> str:
    of_type = [node for node in wanted if (node.node_type or "") == name]
    gpus = f", GPU: {of_type[0].gpus:g}" if of_type[0].gpus else ""
    bundle = f"{{CPU: {of_type[0].cpus:g}{gpus}}}"
    noun = "node" if len(of_type) == 1 else "nodes"
    return (
        f"{n_missing} of {len(of_type)} {noun} of the type {name} ({bundle}) did not come: "
        f"{reason}. Going on with what is there."
    )
