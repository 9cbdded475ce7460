from dataclasses import replace

import pytest

from policies.links import BETWEEN_SITES, LOOPBACK, ONE_SITE, RETRANSMIT_S, links_between
from policies.schema import Link, Network
from tests.policies.cases import network, node


def test_measured_links_are_taken_as_they_are():
    links = links_between([node("a"), node("b")], network("ab", 0.020, 1e7))
    assert links.rtt_s("a", "b") == pytest.approx(0.020)
    assert links.s_per_byte[0, 1] == pytest.approx(1e-7)
    assert links.known[0, 1]
    assert not links.known[0, 0]


def test_without_a_probe_distance_is_guessed_from_addresses():
    far = replace(node("c"), ip="10.7.0.9")
    named = replace(node("d"), ip="host-d.example")
    public = replace(node("e"), ip="8.8.4.4")
    links = links_between([node("a"), node("b"), far, named, public], None)
    assert links.rtt_s("a", "b") == pytest.approx(ONE_SITE.rtt_s)
    assert links.rtt_s("a", "c") == pytest.approx(BETWEEN_SITES.rtt_s)
    assert links.rtt_s("a", "d") == links.rtt_s("d", "e") == pytest.approx(BETWEEN_SITES.rtt_s)
    assert links.rtt_s("a", "a") == pytest.approx(LOOPBACK.rtt_s)
    assert not links.known.any()


def test_a_silent_link_is_no_better_than_the_worst_that_answered():
    whole = network("abc", 0.080, 1e6)
    mute = replace(whole.links[0], rtt_s=None, bandwidth_bytes_per_s=None)
    links = links_between([node(x) for x in "abc"], replace(whole, links=(mute, *whole.links[1:])))
    assert links.rtt_s("a", "b") == pytest.approx(0.080)
    assert links.s_per_byte[0, 1] == pytest.approx(1e-6)
    assert not links.known[0, 1]


def test_all_links_silent_leaves_the_assumed_values():
    mute = Link("a", "b", "direct", None, None, None, None)
    links = links_between([node("a"), node("b")], Network((mute,), "t", 1.0, ("b",)))
    assert links.rtt_s("a", "b") == pytest.approx(ONE_SITE.rtt_s)


def test_of_two_paths_the_one_with_more_bandwidth_counts():
    slow = Link("a", "b", "vpn", 0.001, 0.0, 0.0, 1e6)
    fast = Link("a", "b", "direct", 0.005, 0.0, 0.0, 1e8)
    for order in ((slow, fast), (fast, slow)):
        links = links_between([node("a"), node("b")], Network(order, "t", 1.0))
        assert links.rtt_s("a", "b") == pytest.approx(0.005)


def test_loss_and_jitter_lengthen_a_link():
    link = Link("a", "b", "direct", 0.010, 0.002, 0.01, 1e8)
    links = links_between([node("a"), node("b")], Network((link,), "t", 1.0))
    assert links.one_way_s[0, 1] == pytest.approx(0.006 + 0.01 * RETRANSMIT_S)


def test_links_of_nodes_that_left_are_ignored():
    links = links_between([node("a")], network("ab", 0.020))
    assert links.one_way_s.shape == (1, 1)
