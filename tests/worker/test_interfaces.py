"""A node's addresses, which of them others can reach, and what its interfaces carry."""

import socket
import sys

import pytest

from launcher.worker import traffic
from launcher.worker.interfaces import Address, Counters, addresses, counters, shared_addresses
from launcher.worker.traffic import TrafficBook

OWN = Address("10.0.0.1", "10.0.0.0/24", "eth0")


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_the_kernel_tells_this_machines_addresses() -> None:
    assert Address("127.0.0.1", "127.0.0.0/8", "lo") in addresses()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the Linux kernel's counters")
def test_the_loopback_counts_what_passes() -> None:
    before = counters("lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(bytes(10_000), ("127.0.0.1", 9))
    after = counters("lo")
    assert before is not None
    assert after is not None
    assert after.sent_bytes - before.sent_bytes >= 10_000
    assert counters("no-such-interface") is None


@pytest.mark.parametrize(
    "address",
    [
        Address("127.0.0.1", "127.0.0.0/8", "lo"),
        Address("169.254.3.4", "169.254.0.0/16", "eth1"),
        Address("172.17.0.1", "172.17.0.0/16", "docker0"),
        Address("172.18.0.1", "172.18.0.0/16", "br-0a1b2c"),
        Address("10.88.0.1", "10.88.0.0/16", "cni-podman0"),
        Address("100.64.0.7", "100.64.0.7/32", "tailscale0"),
        Address("10.0.0.9", "10.0.0.0/24", "eth0"),
        OWN,
    ],
)
def test_addresses_that_no_other_node_needs_are_left_out(address: Address) -> None:
    assert shared_addresses("10.0.0.1", (OWN, address)) == ()


def test_an_address_on_another_network_is_shared() -> None:
    fast = Address("192.168.7.1", "192.168.7.0/24", "ib0")
    assert shared_addresses("10.0.0.1", (OWN, fast)) == (fast,)


def test_what_passes_during_the_pings_says_whether_others_share_an_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = iter([0, 500, 0, 50_000_000])
    monkeypatch.setattr(traffic, "counters", lambda _: Counters(next(passed), 0))
    for is_shared in (False, True):
        book = TrafficBook({"eth0", "lo"})
        book.look_for_others()
        assert book.is_shared is is_shared
