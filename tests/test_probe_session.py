"""The probe with agents of this process: what it finds, silent nodes, few bytes, many nodes."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from launcher.probe import survey
from launcher.probe_session import AgentLostError
from launcher.worker.agent import ProbeAgent
from launcher.worker.greeting import Endpoint
from policies.schema import DEFAULT_PATH, Network, Node

FAST = "10.98.0.0/24"


class LocalAgents:
    """Agents at loopback addresses.

    `mute` ones, and all of them where a method is in `unanswered`, take calls and don't answer;
    `dead` ones fail.
    """

    def __init__(self, n: int) -> None:
        self.by_node = {f"n{i}": ProbeAgent(f"127.0.2.{i}", b"t" * 16) for i in range(1, n + 1)}
        self.mute: set[str] = set()
        self.dead: set[str] = set()
        self.unanswered: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.pool = ThreadPoolExecutor(4 * n)

    @property
    def nodes(self) -> list[Node]:
        return [
            Node(name, agent.endpoints()[0].ip, 1.0, 0.0, None, 0.0, "own machine", "1 cpu")
            for name, agent in self.by_node.items()
        ]

    @property
    def endpoints(self) -> dict[str, tuple[Endpoint, ...]]:
        return {name: agent.endpoints() for name, agent in self.by_node.items()}

    def ask(self, node: str, method: str, *args: Any) -> "Future[Any]":
        self.asked.append((node, method))
        if node in self.mute or method in self.unanswered:
            return Future()
        if node in self.dead:
            return self.pool.submit(_die)
        return self.pool.submit(getattr(self.by_node[node], method), *args)

    def answered(self, tickets: Sequence[Any], timeout_s: float) -> list[Any]:
        return list(wait(tickets, timeout_s, FIRST_COMPLETED)[0])

    def answer(self, ticket: Any) -> Any:
        return ticket.result()


def _die() -> None:
    raise AgentLostError("it died")


@contextmanager
def local_agents(n: int) -> Iterator[LocalAgents]:
    agents = LocalAgents(n)
    try:
        yield agents
    finally:
        for agent in agents.by_node.values():
            agent.close()
        agents.pool.shutdown(wait=False, cancel_futures=True)


def surveyed(
    agents: LocalAgents,
    endpoints: dict[str, tuple[Endpoint, ...]] | None = None,
    *,
    deadline_s: float = 300.0,
    max_bytes: int = 1 << 30,
    said: list[str] | None = None,
) -> Network:
    return survey(
        agents.nodes,
        agents,
        agents.endpoints if endpoints is None else endpoints,
        time.monotonic() + deadline_s,
        max_bytes,
        (lambda _: None) if said is None else said.append,
    )


def test_every_pair_and_loopback_is_measured_both_ways() -> None:
    said: list[str] = []
    with local_agents(3) as agents:
        network = surveyed(agents, said=said)
    ids = ["n1", "n2", "n3"]
    assert [(k.src, k.dst) for k in network.links] == list(product(ids, ids))
    for link in network.links:
        assert 0 < (link.rtt_s or 0) < 0.1
        assert link.loss == 0.0
        assert (link.bandwidth_bytes_per_s or 0) > 1e7
    assert 0 < network.sent_bytes <= network.max_bytes
    assert said[-1] == "bandwidth of 9 of 9 directions"


def test_few_bytes_are_shared_out_and_kept_to() -> None:
    with local_agents(3) as agents:
        network = surveyed(agents, max_bytes=9 << 20)
    assert all(link.rtt_s for link in network.links)
    assert 0 < network.sent_bytes <= 1.01 * (9 << 20)
    assert sum(link.bandwidth_bytes_per_s is not None for link in network.links) >= 6


def test_without_bytes_round_trips_are_still_known() -> None:
    with local_agents(2) as agents:
        network = surveyed(agents, max_bytes=1000)
    assert all(link.rtt_s and link.bandwidth_bytes_per_s is None for link in network.links)


@pytest.mark.parametrize("state", ["mute", "dead"])
def test_a_silent_node_costs_its_wait_once_and_the_others_are_measured(state: str) -> None:
    with local_agents(6) as agents:
        endpoints = agents.endpoints
        getattr(agents, state).add("n2")
        agents.by_node["n2"].close()
        started = time.monotonic()
        network = surveyed(agents, endpoints)
        took_s = time.monotonic() - started
    assert network.silent == ("n2",)
    assert took_s < 40.0  # of its ten ways each would cost 8 s
    assert agents.asked.count(("n2", "endpoints")) == 1
    assert agents.asked.count(("n2", "rate")) == 0
    assert len(network.links) == 36
    for link in network.links:
        assert (link.rtt_s is None) == ("n2" in (link.src, link.dst))
        assert (link.bandwidth_bytes_per_s is None) == ("n2" in (link.src, link.dst))


def test_a_node_without_an_agent_is_silent_and_costs_nothing() -> None:
    with local_agents(3) as agents:
        endpoints = {name: e for name, e in agents.endpoints.items() if name != "n3"}
        started = time.monotonic()
        network = surveyed(agents, endpoints)
        assert time.monotonic() - started < 60.0
    assert network.silent == ("n3",)
    assert len(network.links) == 9
    assert not [asked for asked in agents.asked if asked[0] == "n3"]


def test_when_the_deadline_is_over_what_is_known_is_kept() -> None:
    for deadline_s in (0.7, 2.8, 11.2, 44.8):  # a busy machine needs longer for round trips
        with local_agents(4) as agents:
            agents.unanswered.add("rate")
            started = time.monotonic()
            network = surveyed(agents, deadline_s=deadline_s)
            assert time.monotonic() - started < deadline_s + 20.0  # to wait for all takes 48 s
        if any(link.rtt_s for link in network.links):
            break
    assert any(link.rtt_s for link in network.links)
    assert not any(link.bandwidth_bytes_per_s for link in network.links)


def test_a_second_network_is_measured_as_a_path_of_its_own() -> None:
    with local_agents(3) as agents:
        endpoints = {
            name: (first, replace(first, ip=f"127.0.3.{name[1:]}", network=FAST))
            for name, (first,) in agents.endpoints.items()
        }
        further = [ProbeAgent(f"127.0.3.{i}", b"t" * 16) for i in (1, 2, 3)]
        for agent, name in zip(further, endpoints, strict=True):
            there = replace(agent.endpoints()[0], network=FAST)
            endpoints[name] = (endpoints[name][0], there)
        network = surveyed(agents, endpoints)
        for agent in further:
            agent.close()
    assert {i.path for i in network.interfaces} == {DEFAULT_PATH, FAST}
    fast = [link for link in network.links if link.path == FAST]
    assert len(fast) == 6
    assert all(link.rtt_s and link.bandwidth_bytes_per_s for link in fast)


def test_a_network_on_which_nothing_answers_is_left_out_after_one_handshake() -> None:
    with local_agents(4) as agents:
        endpoints = {
            name: (first, Endpoint(f"127.0.4.{name[1:]}", 9, 9, FAST))
            for name, (first,) in agents.endpoints.items()
        }
        started = time.monotonic()
        network = surveyed(agents, endpoints)
        assert time.monotonic() - started < 60.0
    assert network.interfaces == ()
    assert {link.path for link in network.links} == {DEFAULT_PATH}
    assert network.silent == ()


def test_of_many_nodes_some_pairs_are_measured() -> None:
    with local_agents(26) as agents:
        network = surveyed(agents, max_bytes=26 << 20)
    between = [link for link in network.links if link.src != link.dst]
    assert 26 * 4 < len(between) / 2 <= 26 * 5
    assert all(link.rtt_s for link in between)
