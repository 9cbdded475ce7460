"""Looks at every node before training: is it fit? All nodes at the same time, quietly."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.cluster import Cluster
from launcher.connectivity import OPEN_PORTS, peers
from launcher.diagnosis import Findings, allowed_cpus, diagnose
from launcher.errors import ClusterError
from launcher.node_agents import NodeAgents
from launcher.problem import Problem
from launcher.script_needs import ScriptNeeds
from launcher.small_file import read_object, replace_file
from launcher.worker.checkup import (
    NodeFacts,
    Peer,
    connection_error,
    launcher_version,
    meet,
    node_facts,
)
from policies.schema import Node

log = logging.getLogger(__name__)

DEADLINE_S = 30.0
CONNECT_S = 2.0  # a packet that a firewall drops is sent again after 1 s
REMEMBERED_S = 24 * 3600.0
_MAX_REMEMBERED = 50
_START_GRACE_S = 10.0  # an agent's process starts in 1 to 3 s, on a busy or slow node later


@dataclass(frozen=True, slots=True)
class Checkup:
    """Which nodes cannot train.

    Attributes:
        reasons_by_node: of the nodes that are not fit, why, by node id.
        warnings: what else should be known, one line each.
        driver: id of the driver's own node.
        allowed_cpus_by_node: where the operating system allows less than Ray counts.
    """

    reasons_by_node: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    driver: str = ""
    allowed_cpus_by_node: Mapping[str, float] = field(default_factory=dict)

    def fit_part(self, cluster: Cluster) -> Cluster:
        """The cluster without the nodes that cannot train; the others as slow as they are.

        Raises:
            ClusterError: the driver's own node or all nodes are not fit.
        """
        unfit = [node for node in cluster.nodes if node.id in self.reasons_by_node]
        if unfit and len(unfit) == len(cluster.nodes):
            first = unfit[0]
            count = "The only node" if len(unfit) == 1 else f"None of the {len(unfit)} nodes"
            fit = "is not fit" if len(unfit) == 1 else "is fit"
            raise ClusterError(
                f"{count} {fit} to train. {first.ip} {'; '.join(self.reasons_by_node[first.id])}. "
                "See: launch doctor SCRIPT"
            )
        if self.driver in self.reasons_by_node:
            raise ClusterError(
                "This machine is not fit to train: it "
                f"{'; '.join(self.reasons_by_node[self.driver])}. See: launch doctor SCRIPT"
            )
        kept = tuple(node for node in cluster.nodes if node.id not in self.reasons_by_node)
        return replace(cluster, nodes=tuple(self._as_allowed(node) for node in kept))

    def _as_allowed(self, node: Node) -> Node:
        """Nodes with another quota compute at another speed: they are a kind of their own."""
        allowed = self.allowed_cpus_by_node.get(node.id)
        if allowed is None or node.allowed_cpus is not None:
            return node
        return replace(node, allowed_cpus=allowed, kind=f"{node.kind}, {allowed:.3g} allowed")

    def lines(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """One line per node that is left out, and the warnings."""
        left_out = (
            f"{node.ip} is left out: it {'; '.join(self.reasons_by_node[node.id])}."
            for node in nodes
            if node.id in self.reasons_by_node
        )
        return (*left_out, *self.warnings)


@dataclass(frozen=True, slots=True)
class Fit:
    """A set of nodes that was found fit, `at_s` seconds since the epoch."""

    at_s: float
    allowed_cpus_by_node: dict[str, float]


def checkup(
    cluster: Cluster,
    needs: ScriptNeeds,
    *,
    cache: Path | None = None,
    deadline_s: float = DEADLINE_S,
    now_s: float | None = None,
    agents: NodeAgents | None = None,
) -> Checkup:
    """Check the cluster's candidates, unless these very nodes were found fit a while ago.

    An embedded Ray is this machine with this very environment: there is nothing to check.
    Blocks for 2 to 4 s; at most for the deadline.

    Args:
        cluster: a connected cluster.
        needs: what the script needs on every node.
        cache: a file that remembers sets of nodes without a problem; None: always check.
        deadline_s: for all nodes together.
        now_s: seconds since the epoch.
        agents: on these very nodes, which their owner ends; None: own ones.
    """
    if cluster.embedded or not cluster.nodes:
        return Checkup()
    now_s = time.time() if now_s is None else now_s
    key = _key(cluster.nodes, needs)
    known = _remembered(cache).get(key) if cache is not None else None
    if known is not None and now_s - known.at_s < REMEMBERED_S:
        log.info("these %d nodes were found fit a while ago", len(cluster.nodes))
        return Checkup(allowed_cpus_by_node=known.allowed_cpus_by_node)
    found = examine(cluster.nodes, needs, deadline_s=deadline_s, agents=agents)
    problems = diagnose(found, needs)
    concluded = conclude(found, problems)
    if cache is not None and not any(each.level in ("warn", "fail") for each in problems):
        _remember(cache, key, Fit(now_s, dict(concluded.allowed_cpus_by_node)))
    return concluded


def conclude(found: Findings, problems: Sequence[Problem]) -> Checkup:
    """Which nodes are not fit.

    What is missing everywhere is left for the script to say, and silent nodes to the probe.
    """
    reasons: dict[str, tuple[str, ...]] = {}
    for problem in problems:
        log.info("checkup: %s: %s %s: %s", problem.level, problem.node, problem.check, problem.text)
        if problem.level == "fail" and not problem.everywhere and problem.check != "answers":
            reasons[problem.node] = (*reasons.get(problem.node, ()), problem.text)
    warned = [each for each in problems if each.level == "warn" and each.node not in reasons]
    warnings = grouped(warned, {node.id: node.ip for node in found.nodes})
    return Checkup(reasons, warnings, found.driver, allowed_cpus(found))


def grouped(problems: Sequence[Problem], ip_by_node: Mapping[str, str]) -> tuple[str, ...]:
    """One line per problem, with all nodes that share it."""
    nodes_by_text: dict[str, list[str]] = {}
    for problem in problems:
        nodes_by_text.setdefault(problem.text, []).append(
            ip_by_node.get(problem.node, "this machine")
        )
    return tuple(f"{_named(ips)}: {text}." for text, ips in nodes_by_text.items())


def examine(
    nodes: Sequence[Node],
    needs: ScriptNeeds,
    *,
    deadline_s: float = DEADLINE_S,
    progress: Callable[[str], None] = lambda _: None,
    agents: NodeAgents | None = None,
) -> Findings:
    """Ask all nodes at the same time what is there, and let them meet each other.

    A node that does not answer costs its waiting time once.

    Args:
        nodes: whom to ask.
        needs: what the script needs on them.
        deadline_s: for all of it.
        progress: is told in a few words what is going on.
        agents: on these very nodes, which their owner ends; None: own ones.
    """
    import ray

    driver = ray.get_runtime_context().get_node_id()
    until_s = time.monotonic() + deadline_s
    with NodeAgents(nodes) if agents is None else nullcontext(agents) as own:
        progress(f"asking {_count(nodes)}")
        there = own.started()
        mine = node_facts(needs.on_node, None)
        facts, silence = _facts(there, needs, until_s)
        met = [Peer(n.id, n.ip, facts[n.id].port) for n in nodes if n.id in facts]
        progress(f"trying connections to {_count(met)}")
        meetings = {
            peer.node: there[peer.node].meet.remote([met[j] for j in peers(i, len(met))], CONNECT_S)
            for i, peer in enumerate(met)
        }
        from_driver = meet(met, own.token, CONNECT_S)
        contacts, unheard = _answers(meetings, max(until_s - time.monotonic(), 2 * CONNECT_S))
    for node in unheard:
        silence[node] = "its checkup agent stopped answering"
        del facts[node]
    silence |= unreachable([node for node in nodes if node.id in silence])
    return Findings(tuple(nodes), driver, mine, facts, silence, contacts, from_driver)


def unreachable(nodes: Sequence[Node]) -> dict[str, str]:
    """Of silent nodes, those whose Ray the driver's machine cannot even connect to, and why.

    Blocks for `CONNECT_S`, whatever the number of nodes.
    """
    import ray

    if not nodes:
        return {}
    port_by_node = {raw["NodeID"]: int(raw["NodeManagerPort"]) for raw in ray.nodes()}
    there = [(n, port_by_node[n.id]) for n in nodes if n.id in port_by_node]
    with ThreadPoolExecutor(min(32, len(there) or 1)) as pool:
        errors = pool.map(lambda each: connection_error(each[0].ip, each[1], CONNECT_S), there)
    return {
        node.id: f"{error} from this machine to its Ray ({node.ip}:{port}): {OPEN_PORTS}"
        for (node, port), error in zip(there, errors, strict=True)
        if error is not None
    }


def _facts(
    agents: Mapping[str, Any], needs: ScriptNeeds, until_s: float
) -> tuple[dict[str, NodeFacts], dict[str, str]]:
    """What the nodes say, and why others say nothing."""
    import ray

    refs = {node: agent.facts.remote(needs.on_node) for node, agent in agents.items()}
    asked_s = time.monotonic()
    half = (len(refs) + 1) // 2
    ray.wait(list(refs.values()), num_returns=half, timeout=until_s - asked_s)
    half_s = time.monotonic() - asked_s
    patience_s = min(until_s - time.monotonic(), _START_GRACE_S + 3 * half_s)
    return _answers(refs, patience_s)


def _answers(refs: Mapping[str, Any], timeout_s: float) -> tuple[dict[str, Any], dict[str, str]]:
    """The results that came in time, and why others did not, by key."""
    import ray
    from ray.exceptions import RayError

    if not refs:
        return {}, {}
    timeout_s = max(0.0, timeout_s)
    ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=timeout_s)
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for key, ref in refs.items():
        if ref not in ready:
            missing[key] = "its checkup agent did not start in time (ray status; ray.log)"
            continue
        try:
            found[key] = ray.get(ref)
        except RayError as error:
            missing[key] = str(error).strip().splitlines()[-1].strip()
    return found, missing


def _count(nodes: Sequence[Any]) -> str:
    return f"{len(nodes):,} node{'' if len(nodes) == 1 else 's'}"


def _named(ips: Sequence[str]) -> str:
    if len(ips) <= 3:
        return ", ".join(ips)
    return f"{', '.join(ips[:2])} and {len(ips) - 2} more"


def _key(nodes: Sequence[Node], needs: ScriptNeeds) -> str:
    """This set of nodes (ids live as long as their Ray), our versions, and what is needed."""
    parts = [
        sorted(node.id for node in nodes),
        launcher_version(),
        asdict(node_facts(replace(needs.on_node, modules=(), paths=()), None))["version_by_name"],
        list(needs.modules),
        [need.path for need in needs.paths],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _remembered(cache: Path) -> "dict[str, Fit]":
    try:
        return {
            key: Fit(float(fit["at_s"]), dict(fit["allowed_cpus_by_node"]))
            for key, fit in read_object(cache).items()
        }
    except (ValueError, TypeError, KeyError):
        return {}


def _remember(cache: Path, key: str, fit: "Fit") -> None:
    known = sorted(_remembered(cache).items(), key=lambda item: item[1].at_s)
    newest = {k: asdict(v) for k, v in [*known, (key, fit)][-_MAX_REMEMBERED:]}
    try:
        replace_file(cache, json.dumps(newest))
    except OSError as error:
        log.warning("the checkup could not be remembered: %s", error)
