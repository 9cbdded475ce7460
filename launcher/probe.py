"""Probes the network between a cluster's nodes: round trip, jitter, loss, bandwidth."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher import network_cache
from launcher.cluster import Cluster
from launcher.network_map import Pair, complete, rounds, silent_link
from launcher.worker.agent import TOKEN_BYTES, ProbeAgent
from launcher.worker.probe_path import Effort, Endpoint, Rates, RoundTrip
from policies.schema import Link, Network, Node

log = logging.getLogger(__name__)

DEADLINE_S = 15.0
MAX_BYTES = 2 << 30
MAX_ROUNDS = 23  # each node meets so many others; 24 nodes are probed in full

_PATH = "default"
_START_GRACE_S = 4.0  # an agent starts in 0.2 to 3 s, on a busy or distant node later
_USUAL_S = 2.5  # a pair inside a datacenter takes 0.1 to 1 s
_PAIR_S = 5.5  # more for a far pair: greetings of 1 s, pings of 0.6 s, transfers of up to 5 s
_PAIR_MAX_BYTES = 32 << 20
_PAIR_MIN_BYTES = 64 << 10
_PING_S = 2.0


@dataclass(slots=True)
class _Probe:
    """What is known so far; `agents` are Ray actor handles by node id."""

    deadline_at_s: float
    progress: Callable[[str], None]
    agents: dict[str, Any] = field(default_factory=dict)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    round_trips: dict[Pair, RoundTrip] = field(default_factory=dict)
    rates: dict[Pair, Rates] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline_at_s - time.monotonic())

    def hides(self, pair: Pair) -> bool:
        """Whether a node of this pair is silent."""
        return not self.silent.isdisjoint(pair)


def probe(
    cluster: Cluster,
    *,
    deadline_s: float = DEADLINE_S,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[str], None] = lambda _: None,
    cache: Path | None = None,
) -> Network:
    """Measure the paths between all nodes, disjoint pairs at the same time.

    Blocks until all is measured or the deadline is over. A node that doesn't answer costs its
    waiting time once; its links are "not known" and it's listed as `silent`. Beyond
    `MAX_ROUNDS` + 1 nodes each node meets `MAX_ROUNDS` others, and the other links are assumed
    (`network_map.complete`), as are links for which the time didn't suffice.

    Args:
        cluster: a connected cluster.
        deadline_s: for all of it, in seconds.
        max_bytes: that all transfers together may carry.
        progress: is told in a few words what is going on.
        cache: a file that remembers maps for ten minutes; None: always measure.

    Returns:
        Both directions of every pair and each node's loopback.
    """
    now = datetime.now(UTC)
    known = network_cache.load(cache, cluster.nodes, now) if cache else None
    if known is not None:
        log.info("network remembered from %s", known.probed_at)
        return known
    started_s = time.monotonic()
    state = _Probe(started_s + deadline_s, progress)
    try:
        _start_agents(state, cluster.nodes)
        _measure_all(state, max_bytes)
    finally:
        _stop_agents(state)
    took_s = time.monotonic() - started_s
    network = _network([n.id for n in cluster.nodes], state, now.isoformat(), took_s)
    log.info("probed %d links in %.1f s, silent: %s", len(network.links), took_s, network.silent)
    if cache:
        network_cache.save(cache, cluster.nodes, network)
    return network


def _start_agents(state: _Probe, nodes: Sequence[Node]) -> None:
    """An agent per node; those that don't come up in time are silent."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    token = os.urandom(TOKEN_BYTES)
    state.progress(f"starting {len(nodes)} probe agents")
    # Two threads: an agent that measures still says that it is alive.
    remote = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(ProbeAgent)
    for node in nodes:
        here = NodeAffinitySchedulingStrategy(node.id, soft=False)
        state.agents[node.id] = remote.options(scheduling_strategy=here).remote(node.ip, token)
    asked = {node.id: state.agents[node.id].endpoint.remote() for node in nodes}
    _await_most(list(asked.values()), state.left_s / 2)
    answers = _answers(asked, 0.0)
    for node in nodes:
        if node.id in answers:
            state.endpoints[node.id] = answers[node.id]
        else:
            _silence(state, node.id, "its probe agent did not start")


def _await_most(refs: Sequence[Any], at_most_s: float) -> None:
    """Wait for half of the agents, then for the rest: some seconds, and twice as long again."""
    import ray

    asked_s = time.monotonic()
    ray.wait(list(refs), num_returns=(len(refs) + 1) // 2, timeout=at_most_s)
    half_s = time.monotonic() - asked_s
    patience_s = min(at_most_s - half_s, _START_GRACE_S + 2 * half_s)
    ray.wait(list(refs), num_returns=len(refs), timeout=max(0.0, patience_s))


def _measure_all(state: _Probe, max_bytes: int) -> None:
    """Round trips of all pairs while the paths are idle, then transfers, until time is over."""
    ids = list(state.endpoints)
    schedule = [[(i, i) for i in ids], *rounds(ids)[:MAX_ROUNDS]]
    n_pairs = sum(len(pairs) for pairs in schedule)
    for pairs in schedule:
        state.round_trips |= _ping(state, [p for p in pairs if not state.hides(p)])
        state.progress(f"round trips of {len(state.round_trips)} of {n_pairs} paths")
    share = max(_PAIR_MIN_BYTES, min(_PAIR_MAX_BYTES, max_bytes // max(1, 2 * n_pairs)))
    left_bytes = max_bytes
    for pairs in schedule:
        heard = [p for p in pairs if not state.hides(p) and _rtt_s(state, p) is not None]
        rates = _transfer(state, heard[: left_bytes // (2 * share)], share)
        left_bytes -= sum(rate.n_bytes for rate in rates.values())
        state.rates |= rates
        state.progress(f"bandwidth of {len(state.rates)} of {n_pairs} paths")


def _ping(state: _Probe, pairs: Sequence[Pair]) -> dict[Pair, RoundTrip]:
    if not state.left_s:
        return {}
    effort = Effort()
    refs = {(a, b): state.agents[a].round_trip.remote(state.endpoints[b], effort) for a, b in pairs}
    found: dict[Pair, RoundTrip] = _round(state, refs, lambda trip: trip.rtt_s is not None)
    return found


def _transfer(state: _Probe, pairs: Sequence[Pair], max_bytes: int) -> dict[Pair, Rates]:
    if not state.left_s:
        return {}
    refs = {}
    for a, b in pairs:
        loopback = Effort(max_bytes=max_bytes // 2, both_ways=False, repeats=4)
        effort = loopback if a == b else Effort(max_bytes=max_bytes)
        rtt_s = _rtt_s(state, (a, b)) or 0.0
        refs[a, b] = state.agents[a].rates.remote(state.endpoints[b], effort, rtt_s)
    found: dict[Pair, Rates] = _round(state, refs, lambda rates: not rates.error)
    return found


def _round(state: _Probe, refs: dict[Pair, Any], is_good: Callable[[Any], bool]) -> dict[Pair, Any]:
    """What a round of disjoint pairs found; finds silent nodes among those that failed."""
    found = _answers(refs, min(_USUAL_S, state.left_s))
    _find_silent(state, [p for p in refs if p not in found or not is_good(found[p])])
    late = {p: ref for p, ref in refs.items() if p not in found and not state.hides(p)}
    found |= _answers(late, min(_PAIR_S, state.left_s))
    for pair, answer in found.items():
        if answer.error:
            log.warning("path %s: %s", pair, answer.error)
    return found


def _rtt_s(state: _Probe, pair: Pair) -> float | None:
    trip = state.round_trips.get(pair)
    return trip.rtt_s if trip else None


def _find_silent(state: _Probe, failed: Sequence[Pair]) -> None:
    """Of a pair that failed, the agent that Ray can't reach either is silent.

    If both answer, the pair is slow or only the path between them is blocked.
    """
    asked = {i: state.agents[i].endpoint.remote() for i in {i for pair in failed for i in pair}}
    answers = _answers(asked, _PING_S)
    for node_id in asked.keys() - answers.keys():
        _silence(state, node_id, "its probe agent stopped answering")


def _silence(state: _Probe, node_id: str, why: str) -> None:
    log.warning("node %s is silent: %s", node_id, why)
    state.silent.add(node_id)


def _answers(refs: dict[Any, Any], timeout_s: float) -> dict[Any, Any]:
    """The results that came in time, by key; a dead actor gives none."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    if not refs:
        return {}
    ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=timeout_s)
    found = {}
    for key, ref in refs.items():
        if ref in ready:
            try:
                found[key] = ray.get(ref, timeout=_PING_S)
            except (RayError, GetTimeoutError, OSError) as error:
                log.warning("the probe agent of %s failed: %s", key, error)
    return found


def _stop_agents(state: _Probe) -> None:
    import ray

    for agent in state.agents.values():
        ray.kill(agent)


def _network(ids: Sequence[str], state: _Probe, probed_at: str, took_s: float) -> Network:
    link_by_pair: dict[Pair, Link] = {}
    for (a, b), trip in state.round_trips.items():
        if trip.rtt_s is not None and not state.hides((a, b)):
            there, back = _links(a, b, trip, state.rates.get((a, b), Rates()))
            link_by_pair[a, b], link_by_pair[b, a] = there, back
    gone = [(a, b) for a in ids for b in ids if state.hides((a, b))]
    open_pairs = [(a, b) for a in ids for b in ids if (a, b) not in link_by_pair]
    missing = [pair for pair in open_pairs if not state.hides(pair)]
    links = [
        *link_by_pair.values(),
        *complete(link_by_pair, missing),
        *(silent_link(a, b, _PATH) for a, b in gone),
    ]
    order = {node_id: i for i, node_id in enumerate(ids)}
    links.sort(key=lambda link: (order[link.src], order[link.dst]))
    return Network(tuple(links), probed_at, took_s, tuple(i for i in ids if i in state.silent))


def _links(a: str, b: str, trip: RoundTrip, rates: Rates) -> tuple[Link, Link]:
    """Both directions of a measured pair (twice the same for a loopback)."""
    there = Link(a, b, _PATH, trip.rtt_s, trip.jitter_s, trip.loss_out, rates.out_bytes_per_s)
    if a == b:
        return there, there
    back = Link(b, a, _PATH, trip.rtt_s, trip.jitter_s, trip.loss_back, rates.back_bytes_per_s)
    return there, back
