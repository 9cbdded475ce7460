"""Probes the network between a cluster's nodes: round trip, jitter, loss, bandwidth."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from launcher import network_cache
from launcher.cluster import Cluster
from launcher.network_map import Findings, links
from launcher.node_agents import NodeAgents
from launcher.probe_agents import RayAgents
from launcher.probe_routes import Route, interfaces, routes, shared_networks
from launcher.probe_session import Agents, ProbeSession
from launcher.worker.greeting import Endpoint
from policies.probe_schedule import schedule
from policies.schema import Network, Node

log = logging.getLogger(__name__)

DEADLINE_S: Final = 15.0
# A transfer over a long fat link (1 Gbit/s at 50 ms) takes 30 MB, a near one 3 MB; a node has
# up to 23 of each direction.
MAX_BYTES_PER_NODE: Final = 256 << 20

BUSY_CPU: Final = 0.5

_SEED: Final = 0


def probe(
    cluster: Cluster,
    *,
    deadline_s: float = DEADLINE_S,
    max_bytes: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    cache: Path | None = None,
    quiet: Callable[[], object] = lambda: None,
    agents: NodeAgents | None = None,
) -> Network:
    """Measure the paths between all nodes (of many: between O(N log N) pairs).

    Blocks until all is measured or the deadline is over. A node that doesn't answer costs its
    waiting time once; its links are "not known" and it's listed as `silent`. Links that were
    not measured are not in the map.

    Args:
        cluster: a connected cluster.
        deadline_s: for measuring, in seconds; the agents' start comes on top.
        max_bytes: that all transfers together may carry; None: `MAX_BYTES_PER_NODE` each.
        progress: is told in a few words what is going on.
        cache: a file that remembers maps for ten minutes; None: always measure.
        quiet: is called when all agents are up; returns when nothing else disturbs them.
        agents: on these very nodes, which their owner ends; None: own ones.

    Returns:
        Both directions of every pair that was tried, and each node's loopback.
    """
    nodes, now = cluster.nodes, datetime.now(UTC)
    known = network_cache.load(cache, nodes, now) if cache else None
    if known is not None:
        log.info("network remembered from %s", known.probed_at)
        return known
    started_s = time.monotonic()
    budget = MAX_BYTES_PER_NODE * len(nodes) if max_bytes is None else max_bytes
    progress(f"starting {len(nodes)} probe agents")
    with NodeAgents(nodes) if agents is None else nullcontext(agents) as there:
        on_ray = RayAgents(there)
        endpoints = on_ray.started()
        quiet()
        until_s = time.monotonic() + deadline_s
        network = survey(nodes, on_ray, endpoints, until_s, budget, progress)
    took_s = time.monotonic() - started_s
    network = replace(network, probed_at=now.isoformat(), took_s=took_s)
    _log_summary(network)
    if cache:
        network_cache.save(cache, nodes, network)
    return network


def _log_summary(network: Network) -> None:
    n_links = len(network.links)
    log.info("probed %d links in %.1f s, silent: %s", n_links, network.took_s, network.silent)
    others = max((link.other_bytes_per_s for link in network.links), default=0.0)
    if others:
        log.info("others sent up to %.1f MB/s during the probe", others / 1e6)


def survey(
    nodes: Sequence[Node],
    agents: Agents,
    endpoints: Mapping[str, tuple[Endpoint, ...]],
    deadline_s: float,
    max_bytes: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Network:
    """Measure with agents that are up; `deadline_s` is on `time.monotonic`.

    Args:
        nodes: all nodes; those without an endpoint are silent.
        agents: one per node.
        endpoints: where each agent answers, its address in the cluster first.
        deadline_s: when to stop, on `time.monotonic`.
        max_bytes: that all transfers together may carry.
        progress: is told in a few words what is going on.
    """
    awake = [node for node in nodes if node.id in endpoints]
    by_path = shared_networks({node.id: endpoints[node.id] for node in awake})
    pairs = [pair for each in schedule(awake, _SEED) for pair in each]
    tried = routes(pairs, by_path)
    session = ProbeSession(agents, by_path, tried, deadline_s, max_bytes, progress)
    session.findings.silent.update(_absent(nodes, endpoints))
    found = session.measure()
    _name_busy_nodes(found)
    ids = [node.id for node in nodes]
    return Network(
        links(ids, tried, found, by_path),
        probed_at="",
        took_s=0.0,
        silent=tuple(node for node in ids if node in found.silent),
        interfaces=interfaces(_answering(by_path, tried, found)),
        sent_bytes=found.sent_bytes,
        max_bytes=max_bytes,
    )


def _absent(nodes: Sequence[Node], endpoints: Mapping[str, object]) -> list[str]:
    """Nodes whose agent did not come up in time."""
    ip_by_node = {node.id: node.ip for node in nodes}
    absent = [node.id for node in nodes if node.id not in endpoints]
    for node in absent:
        log.warning("%s is silent: its probe agent did not start", ip_by_node[node])
    return absent


def _name_busy_nodes(found: Findings) -> None:
    """Where processors were short, a rate or a jitter may be the processor's, not the path's."""
    for node, account in found.traffic.items():
        if (account.cpu_waiting or 0.0) > BUSY_CPU:
            log.info(
                "node %s was short of processors for %.0f %% of the probe: its links may be better",
                node,
                100 * (account.cpu_waiting or 0.0),
            )


def _answering(
    by_path: Mapping[str, Mapping[str, Endpoint]], tried: Sequence[Route], found: Findings
) -> dict[str, Mapping[str, Endpoint]]:
    """The networks over which at least one pair was heard; the cluster's own is always one."""
    heard = {route.path for route in tried if found.rtt_s(route) is not None}
    first = next(iter(by_path))
    return {path: ends for path, ends in by_path.items() if path in heard or path == first}
