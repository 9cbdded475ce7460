"""Probe agents on loopback addresses of this machine: pings, transfers, strangers, noise."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.worker import echoes as echoes_module
from launcher.worker import greeting, responder
from launcher.worker.agent import ProbeAgent
from launcher.worker.echoes import Echoes
from launcher.worker.greeting import HELLO, Endpoint, Way
from launcher.worker.held_streams import HeldStreams
from launcher.worker.round_trips import Pings, RoundTrip
from launcher.worker.traffic import TrafficBook
from launcher.worker.upload import Effort, measure_rate

TOKEN = b"t" * 16
EFFORT = Effort(max_bytes=4 << 20)
RESENT_BYTES = 1 << 17  # a few segments, where a busy machine acknowledges late

PATIENCE_S = 60.0  # a busy machine may hold everything up for long


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "CONNECT_S", PATIENCE_S)
    monkeypatch.setattr(greeting, "HANDSHAKE_S", PATIENCE_S)
    monkeypatch.setattr(responder, "HANDSHAKE_S", PATIENCE_S)
    monkeypatch.setattr(echoes_module, "BUSY_S", PATIENCE_S)


@pytest.fixture
def agents() -> Iterator[tuple[ProbeAgent, ProbeAgent]]:
    pair = ProbeAgent("127.0.0.1", TOKEN), ProbeAgent("127.0.0.2", TOKEN)
    yield pair
    for agent in pair:
        agent.close()


def to(agent: ProbeAgent) -> Way:
    return Way(agent.endpoints()[0])


def pinged(agent: ProbeAgent, way: Way, wait_s: float = PATIENCE_S) -> RoundTrip:
    (trip,) = agent.round_trips([way], Pings(wait_s=wait_s))
    return trip


def test_a_path_has_round_trip_jitter_and_loss_each_way(
    agents: tuple[ProbeAgent, ProbeAgent],
) -> None:
    trip = pinged(agents[0], to(agents[1]))
    assert trip.error is None
    assert 0 < (trip.rtt_s or 0) < 0.1
    assert (trip.jitter_s or 0) >= 0
    assert (trip.loss_out, trip.loss_back) == (0.0, 0.0)


def test_a_transfer_has_a_rate_and_is_accounted_for(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    rate = agents[0].rate(to(agents[1]), Effort(max_bytes=4 << 20), 0.001)
    assert rate.error is None
    assert (rate.bytes_per_s or 0) > 1e7
    sent_bytes = agents[0].traffic().sent_bytes[rate.session]
    assert rate.n_bytes <= sent_bytes <= (4 << 20) + HELLO.size + RESENT_BYTES
    pinged(agents[0], to(agents[1]))  # another probe begins
    assert not agents[0].traffic().sent_bytes


def test_a_transfer_takes_the_stream_that_is_held_for_it(
    agents: tuple[ProbeAgent, ProbeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    create = socket.create_connection

    def counted(*words: Any, **options: Any) -> socket.socket:
        opened.append(words)
        return create(*words, **options)

    monkeypatch.setattr(socket, "create_connection", counted)
    src, dst = agents
    held = HeldStreams(TOKEN)
    held.open([to(dst)])
    wait_until(lambda: held.n_open == 1)
    stream = held.take(to(dst))
    assert stream is not None
    rate = measure_rate(to(dst), TOKEN, EFFORT, 0.0005, TrafficBook(set()), stream)
    assert rate.bytes_per_s
    assert (len(opened), held.take(to(dst))) == (1, None)
    src.hold([to(dst)])
    assert src.rate(to(dst), EFFORT, 0.0005).bytes_per_s
    held.close()


def test_a_held_stream_that_is_gone_is_replaced(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    _, dst = agents
    gone = socket.socket()
    gone.close()
    rate = measure_rate(to(dst), TOKEN, EFFORT, 0.0005, TrafficBook(set()), gone)
    assert rate.bytes_per_s


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_at_s
        time.sleep(0.01)


def test_no_more_bytes_than_allowed_are_sent(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    rate = agents[0].rate(to(agents[1]), Effort(max_bytes=300_000, repeats=3), 0.0)
    assert 0 < rate.n_bytes <= 300_000
    sent_bytes = agents[0].traffic().sent_bytes[rate.session]
    assert sent_bytes <= 300_000 + 3 * HELLO.size + RESENT_BYTES


def test_an_account_tells_how_short_processors_were(
    agents: tuple[ProbeAgent, ProbeAgent],
) -> None:
    pinged(agents[0], to(agents[1]))
    waiting = agents[0].traffic().cpu_waiting
    assert waiting is None or 0.0 <= waiting <= 1.1


def test_a_loopback_is_measured(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    assert agents[0].rate(to(agents[0]), Effort(max_bytes=1 << 20), 0.0).bytes_per_s


def test_many_ways_are_pinged_at_the_same_time_and_answered_in_order() -> None:
    peers = [ProbeAgent(f"127.0.1.{i}", TOKEN) for i in range(1, 9)]
    ways = [to(peer) for peer in peers]
    gone = Way(Endpoint("127.0.1.9", *closed_ports(), ""))
    started = time.monotonic()
    trips = peers[0].round_trips([*ways[:4], gone, *ways[4:]], Pings(n=50))
    assert time.monotonic() - started < 20.0
    assert [trip.error is None for trip in trips] == [True] * 4 + [False] + [True] * 4
    for peer in peers:
        peer.close()


def closed_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.1.9", 0)) as sock:
        port = sock.getsockname()[1]
    return port, port


def test_where_udp_is_blocked_the_round_trip_is_taken_over_tcp(
    agents: tuple[ProbeAgent, ProbeAgent],
) -> None:
    (there,) = agents[1].endpoints()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind((there.ip, 0))
        blocked = Endpoint(there.ip, there.tcp_port, deaf.getsockname()[1])
        trip = pinged(agents[0], Way(blocked), wait_s=0.1)
    assert trip.error is None
    assert (trip.rtt_s or 0) > 0
    assert trip.loss_out is None


def test_a_way_starts_at_the_address_that_it_names(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    way = Way(agents[1].endpoints()[0], source_ip="127.0.0.9")
    assert pinged(agents[0], way).error is None
    assert agents[0].rate(way, Effort(max_bytes=1 << 20), 0.0).error is None


def test_a_stranger_is_refused() -> None:
    agent, stranger = ProbeAgent("127.0.0.1", TOKEN), ProbeAgent("127.0.0.2", b"s" * 16)
    trip = pinged(stranger, to(agent))
    assert trip.rtt_s is None
    assert "127.0.0.1 does not answer" in (trip.error or "")
    assert "broke off" in (stranger.rate(to(agent), Effort(), 0.0).error or "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.2)
        sock.sendto(bytes(28), ("127.0.0.1", agent.endpoints()[0].udp_port))
        with pytest.raises(TimeoutError):
            sock.recv(64)
    agent.close()
    stranger.close()


def test_noise_does_not_disturb_an_agent(agents: tuple[ProbeAgent, ProbeAgent]) -> None:
    (there,) = agents[1].endpoints()
    for noise in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(200)):
        with socket.create_connection((there.ip, there.tcp_port)) as sock:
            sock.sendall(noise)
    assert pinged(agents[0], Way(there)).error is None


def test_peers_that_never_speak_cost_about_a_second_together(
    agents: tuple[ProbeAgent, ProbeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "HANDSHAKE_S", 1.0)
    with socket.create_server(("127.0.0.3", 0)) as mute:
        silent = Way(Endpoint("127.0.0.3", mute.getsockname()[1], 9))
        started = time.monotonic()
        *trips, heard = agents[0].round_trips([silent] * 30 + [to(agents[1])], Pings(n=10))
        assert time.monotonic() - started < 15.0  # 30 s, one after another
    assert all("127.0.0.3 does not answer" in (trip.error or "") for trip in trips)
    assert heard.error is None


def test_a_closed_agent_answers_nobody() -> None:
    agent, other = ProbeAgent("127.0.0.1", TOKEN), ProbeAgent("127.0.0.2", TOKEN)
    agent.close()
    assert pinged(other, to(agent)).error is not None
    other.close()


def test_jitter_is_the_ninth_decile_above_the_median() -> None:
    echoes = Echoes(tuple(i / 1000 for i in range(1, 12)), sent=11, received_there=11)
    assert echoes.rtt_s == pytest.approx(0.006)
    assert echoes.jitter_s == pytest.approx(0.004)


def test_loss_is_told_apart_by_direction() -> None:
    echoes = Echoes((0.001,) * 60, sent=100, received_there=80)
    assert echoes.loss_out == pytest.approx(0.2)
    assert echoes.loss_back == pytest.approx(0.25)
