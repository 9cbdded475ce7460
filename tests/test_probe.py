"""The probe without a cluster: schedule, completion, memory, and agents on loopback addresses."""

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import combinations, permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import network_cache
from launcher.network_map import complete, rounds, silent_link
from launcher.worker.agent import ProbeAgent
from launcher.worker.probe_path import Effort, Endpoint
from launcher.worker.transfer import Echoes
from policies.schema import Link, Network, Node

TOKEN = b"t" * 16
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def link(src: str, dst: str, rtt_s: float, bytes_per_s: float = 1e9) -> Link:
    return Link(src, dst, "default", rtt_s, rtt_s / 10, 0.0, bytes_per_s)


def both(a: str, b: str, rtt_s: float, bytes_per_s: float = 1e9) -> dict[tuple[str, str], Link]:
    return {(a, b): link(a, b, rtt_s, bytes_per_s), (b, a): link(b, a, rtt_s, bytes_per_s)}


def node(ip: str, kind: str = "2 cpu", id: str = "") -> Node:
    return Node(id or f"id-{ip}", ip, 2.0, 0.0, None, 0.0, "own machine", kind)


@given(st.integers(0, 25))
def test_every_pair_meets_once_and_no_node_twice_in_a_round(n: int) -> None:
    nodes = [str(i) for i in range(n)]
    schedule = rounds(nodes)
    met = [frozenset(pair) for pairs in schedule for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(sorted(p) for p in combinations(nodes, 2))
    for pairs in schedule:
        busy = [i for pair in pairs for i in pair]
        assert len(busy) == len(set(busy))
    assert len(schedule) == (0 if n < 2 else n - 1 + n % 2)


def test_a_missing_link_takes_the_best_common_neighbour() -> None:
    links = {
        **both("a", "near", 0.001, 5e8),
        **both("near", "b", 0.002, 1e9),
        **both("a", "far", 0.1),
        **both("far", "b", 0.1),
    }
    assumed = complete(links, [("a", "b")])[0]
    assert (assumed.rtt_s, assumed.bandwidth_bytes_per_s) == (0.002, 5e8)
    assert (assumed.basis, assumed.loss) == ("assumed", None)


def test_without_a_common_neighbour_the_typical_link_is_assumed() -> None:
    links = {**both("a", "b", 0.001), **both("c", "d", 0.003), **both("e", "f", 0.002)}
    assert complete(links, [("a", "c")])[0].rtt_s == 0.002


def test_with_nothing_measured_nothing_is_known() -> None:
    (assumed,) = complete({("a", "b"): silent_link("a", "b", "default")}, [("b", "a")])
    assert assumed.rtt_s is None
    assert assumed.bandwidth_bytes_per_s is None


@given(st.lists(st.sampled_from(["x", "y"]), min_size=3, max_size=8), st.floats(1e-5, 1))
def test_an_assumed_link_keeps_to_the_sites_of_its_nodes(sites: list[str], far_s: float) -> None:
    """Two sites: within one, completion never assumes a longer way than the measured ones."""
    near_s = far_s / 10
    names = [f"{site}{i}" for i, site in enumerate(sites)]
    links = {
        (a, b): link(a, b, near_s if a[0] == b[0] else far_s) for a, b in permutations(names, 2)
    }
    for pair in permutations(names, 2):
        rest = {p: found for p, found in links.items() if set(p) != set(pair)}
        rtt_s = complete(rest, [pair])[0].rtt_s
        assert rtt_s is not None
        assert links[pair].rtt_s <= rtt_s <= far_s  # type: ignore[operator]


def network(*links: Link, silent: tuple[str, ...] = ()) -> Network:
    return Network(links, NOW.isoformat(), 1.5, silent)


def test_a_map_is_remembered_for_ten_minutes(tmp_path: Path) -> None:
    path, nodes = tmp_path / "deep" / "net.json", [node("10.0.0.1"), node("10.0.0.2")]
    measured = network(link("id-10.0.0.1", "id-10.0.0.2", 0.01))
    network_cache.save(path, nodes, measured)
    assert network_cache.load(path, nodes, NOW + timedelta(minutes=9)) == measured
    assert network_cache.load(path, nodes, NOW + timedelta(minutes=11)) is None
    assert network_cache.load(path, nodes, NOW - timedelta(minutes=1)) is None


def test_a_restarted_ray_keeps_its_map_under_new_ids(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    network_cache.save(path, [node("10.0.0.1", id="old")], network(link("old", "old", 0.01)))
    found = network_cache.load(path, [node("10.0.0.1", id="new")], NOW)
    assert found == network(link("new", "new", 0.01))


@pytest.mark.parametrize(
    "others",
    [
        [node("10.0.0.1")],
        [node("10.0.0.1"), node("10.0.0.3")],
        [node("10.0.0.1"), node("10.0.0.2", kind="8 cpu")],
        [node("10.0.0.1"), node("10.0.0.2"), node("10.0.0.3")],
    ],
)
def test_other_machines_have_another_map(tmp_path: Path, others: list[Node]) -> None:
    path, nodes = tmp_path / "net.json", [node("10.0.0.1"), node("10.0.0.2")]
    network_cache.save(path, nodes, network(link("id-10.0.0.1", "id-10.0.0.2", 0.01)))
    assert network_cache.load(path, others, NOW) is None


def test_two_sets_of_machines_are_remembered_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    for ip in ("10.0.0.1", "10.0.0.2"):
        network_cache.save(path, [node(ip)], network(link(f"id-{ip}", f"id-{ip}", 0.01)))
    assert network_cache.load(path, [node("10.0.0.1")], NOW) is not None
    assert network_cache.load(path, [node("10.0.0.2")], NOW) is not None


def test_a_map_with_a_silent_node_is_not_remembered(tmp_path: Path) -> None:
    network_cache.save(tmp_path / "net.json", [node("a")], network(silent=("id-a",)))
    assert not (tmp_path / "net.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"10.0.0.1=2 cpu": 3}', '{"10.0.0.1=2 cpu": {}}'])
def test_a_damaged_memory_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "net.json"
    path.write_text(text)
    assert network_cache.load(path, [node("10.0.0.1")], NOW) is None
    network_cache.save(path, [node("10.0.0.1")], network())
    assert network_cache.load(path, [node("10.0.0.1")], NOW) == network()


@pytest.fixture
def agents() -> Iterator[tuple[ProbeAgent, ProbeAgent]]:
    pair = ProbeAgent("127.0.0.1", TOKEN), ProbeAgent("127.0.0.2", TOKEN)
    yield pair
    for agent in pair:
        agent.close()


def test_a_path_has_round_trip_jitter_loss_and_both_rates(
    agents: tuple[ProbeAgent, ProbeAgent],
) -> None:
    trip = agents[0].round_trip(agents[1].endpoint(), Effort())
    assert trip.error is None
    assert 0 < (trip.rtt_s or 0) < 0.1
    assert (trip.jitter_s or 0) >= 0
    assert (trip.loss_out, trip.loss_back) == (0.0, 0.0)
    rates = agents[0].rates(agents[1].endpoint(), Effort(max_bytes=4 << 20), 0.001)
    assert rates.error is None
    assert (rates.out_bytes_per_s or 0) > 1e7
    assert (rates.back_bytes_per_s or 0) > 1e7


def test_no_more_bytes_than_allowed_are_sent(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    rates = agents[0].rates(agents[1].endpoint(), Effort(max_bytes=300_000), 0.0)
    assert 0 < rates.n_bytes <= 600_000


def test_a_loopback_is_measured_one_way(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    effort = Effort(max_bytes=1 << 20, both_ways=False)
    rates = agents[0].rates(agents[0].endpoint(), effort, 0.0)
    assert rates.out_bytes_per_s
    assert rates.back_bytes_per_s is None


def test_where_udp_is_blocked_the_round_trip_is_taken_over_tcp(
    agents: tuple[ProbeAgent, ProbeAgent],
) -> None:
    there = agents[1].endpoint()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind((there.ip, 0))
        blocked = Endpoint(there.ip, there.tcp_port, deaf.getsockname()[1])
        trip = agents[0].round_trip(blocked, Effort(wait_s=0.1))
    assert trip.error is None
    assert (trip.rtt_s or 0) > 0
    assert trip.loss_out is None


def test_a_stranger_is_refused() -> None:
    agent, stranger = ProbeAgent("127.0.0.1", TOKEN), ProbeAgent("127.0.0.2", b"s" * 16)
    trip = stranger.round_trip(agent.endpoint(), Effort())
    assert trip.rtt_s is None
    assert "127.0.0.1 does not answer" in (trip.error or "")
    assert "broke off" in (stranger.rates(agent.endpoint(), Effort(), 0.0).error or "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.2)
        sock.sendto(bytes(28), ("127.0.0.1", agent.endpoint().udp_port))
        with pytest.raises(TimeoutError):
            sock.recv(64)
    agent.close()
    stranger.close()


def test_noise_does_not_disturb_an_agent(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    there = agents[1].endpoint()
    for noise in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(200)):
        with socket.create_connection((there.ip, there.tcp_port)) as sock:
            sock.sendall(noise)
    assert agents[0].round_trip(there, Effort()).error is None


def test_a_peer_that_never_speaks_costs_about_a_second(
    agents: tuple[ProbeAgent, ProbeAgent],
) -> None:
    with socket.create_server(("127.0.0.3", 0)) as mute:
        started = time.monotonic()
        trip = agents[0].round_trip(Endpoint("127.0.0.3", mute.getsockname()[1], 9), Effort())
        assert time.monotonic() - started < 2.5
    assert trip.rtt_s is None
    assert "127.0.0.3 does not answer" in (trip.error or "")


def test_a_closed_agent_answers_nobody() -> None:
    agent, other = ProbeAgent("127.0.0.1", TOKEN), ProbeAgent("127.0.0.2", TOKEN)
    agent.close()
    assert other.round_trip(agent.endpoint(), Effort()).error is not None
    other.close()


def test_jitter_is_the_ninth_decile_above_the_median() -> None:
    echoes = Echoes(tuple(i / 1000 for i in range(1, 12)), sent=11, received_there=11)
    assert echoes.rtt_s == pytest.approx(0.006)
    assert echoes.jitter_s == pytest.approx(0.004)


def test_loss_is_told_apart_by_direction() -> None:
    echoes = Echoes((0.001,) * 60, sent=100, received_there=80)
    assert echoes.loss_out == pytest.approx(0.2)
    assert echoes.loss_back == pytest.approx(0.25)
