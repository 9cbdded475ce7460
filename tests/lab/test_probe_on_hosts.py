"""The probe between real hosts: what it says is what the network was set to."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from policies.schema import DEFAULT_PATH, Link, Network
from tests.lab.lab import Lab, SecondNetwork
from tests.lab.probe_agents import LabAgents

pytestmark = [pytest.mark.lab, pytest.mark.alone]

MBIT = 125_000.0
HEADERS = 0.034  # of a full TCP segment of 1,500 bytes
SECOND = "10.98.0.0/24"

FLOOD = """
import socket, sys, threading
sink = socket.create_server((sys.argv[1], 5001))
print("ready", flush=True)
sock, _ = sink.accept()
while sock.recv(1 << 20): pass
"""
POUR = """
import socket, sys
sock = socket.create_connection((sys.argv[1], 5001))
while True: sock.sendall(bytes(1 << 16))
"""


def between(network: Network, src: str, dst: str, path: str = DEFAULT_PATH) -> Link:
    return next(k for k in network.links if (k.src, k.dst, k.path) == (src, dst, path))


def assert_as_set(link: Link, rtt_s: float, rate_bytes_per_s: float) -> None:
    assert link.rtt_s == pytest.approx(rtt_s, rel=0.1, abs=0.3e-3)
    carries = rate_bytes_per_s * (1 - HEADERS)
    assert link.bandwidth_bytes_per_s == pytest.approx(carries, rel=0.15)


def surveyed(agents: LabAgents, check: Callable[[Network], None]) -> None:
    """Check a survey; another one where something else held this machine's processors meanwhile."""
    for _ in range(2):
        with suppress(AssertionError, StopIteration):
            return check(agents.survey())
    return check(agents.survey())


def test_an_asymmetric_link_is_measured_as_it_is_each_way(make_lab: Callable[..., Lab]) -> None:
    def check(network: Network) -> None:
        assert_as_set(between(network, "h1", "h2"), 0.02, 200 * MBIT)
        assert_as_set(between(network, "h2", "h1"), 0.02, 20 * MBIT)
        assert network.sent_bytes <= network.max_bytes
        assert between(network, "h1", "h2").other_bytes_per_s == 0.0

    lab = make_lab(2, rtt_s=0.02)
    lab.set("h1>h2", rtt_s=0.01, rate_bytes_per_s=200 * MBIT)
    lab.set("h2>h1", rtt_s=0.03, rate_bytes_per_s=20 * MBIT)
    with LabAgents(lab) as agents:
        surveyed(agents, check)


def test_loss_and_jitter_are_seen(make_lab: Callable[..., Lab]) -> None:
    def check(network: Network) -> None:
        there, back = between(network, "h1", "h2"), between(network, "h2", "h1")
        assert 0.03 < (there.loss or 0.0) < 0.2
        assert back.loss == pytest.approx(0.0, abs=0.02)
        assert 0.0005 < (there.jitter_s or 0.0) < 0.005

    lab = make_lab(2, rtt_s=0.02, rate_bytes_per_s=20 * MBIT)
    lab.set("h1-h2", jitter_s=0.004)
    lab.set("h1>h2", loss=0.1)
    with LabAgents(lab) as agents:
        surveyed(agents, check)


def test_each_of_two_networks_is_a_path(make_lab: Callable[..., Lab]) -> None:
    def check(network: Network) -> None:
        for src, dst in (("h1", "h2"), ("h2", "h1")):
            assert_as_set(between(network, src, dst), 0.01, 50 * MBIT)
            assert_as_set(between(network, src, dst, SECOND), 0.0005, 500 * MBIT)
        assert {(i.node, i.path) for i in network.interfaces} == {
            ("h1", DEFAULT_PATH), ("h2", DEFAULT_PATH), ("h3", DEFAULT_PATH),
            ("h1", SECOND), ("h2", SECOND),
        }  # fmt: skip

    fast = SecondNetwork(("h1", "h2"), rtt_s=0.0005, rate_bytes_per_s=500 * MBIT)
    lab = make_lab(3, rtt_s=0.01, rate_bytes_per_s=50 * MBIT, second_network=fast)
    with LabAgents(lab) as agents:
        surveyed(agents, check)


def test_a_host_that_is_cut_off_costs_its_wait_once(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(5, rate_bytes_per_s=200 * MBIT)
    with LabAgents(lab) as agents:
        agents.endpoints()
        whole_s = agents.survey().took_s
        lab.cut_host("h3")
        agents.cut_later("h3")

        def check(network: Network) -> None:
            assert network.silent == ("h3",)
            assert network.took_s - whole_s < 4.5
            for link in network.links:
                assert (link.bandwidth_bytes_per_s is None) == ("h3" in (link.src, link.dst))

        surveyed(agents, check)


def test_what_others_send_is_said(make_lab: Callable[..., Lab]) -> None:
    def check(network: Network) -> None:
        assert between(network, "h1", "h2").other_bytes_per_s > 20 * MBIT
        assert between(network, "h1", "h3").other_bytes_per_s > 20 * MBIT  # shares h1's interface
        assert between(network, "h3", "h1").other_bytes_per_s == 0.0
        assert (between(network, "h1", "h2").bandwidth_bytes_per_s or 0.0) < 85 * MBIT

    def check_quiet(network: Network) -> None:
        assert max(link.other_bytes_per_s for link in network.links) == 0.0

    lab = make_lab(3, rate_bytes_per_s=100 * MBIT)
    with LabAgents(lab) as agents:
        agents.endpoints()
        with pouring(lab, "h1", "h2"):
            surveyed(agents, check)
        surveyed(agents, check_quiet)


@contextmanager
def pouring(lab: Lab, src: str, dst: str) -> Iterator[None]:
    """A stream from one host to another, as fast as it goes."""
    command: Any = [sys.executable, "-c", textwrap.dedent(FLOOD), lab.ip(dst)]
    sink = lab.popen(dst, command, stdout=subprocess.PIPE)
    try:
        assert sink.stdout.readline() == b"ready\n"
        source = lab.popen(src, [sys.executable, "-c", textwrap.dedent(POUR), lab.ip(dst)])
        try:
            yield
        finally:
            source.kill()
            source.wait()
    finally:
        sink.kill()
        sink.wait()
        sink.stdout.close()
