from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.data.topologies import geo
from policies.links import (
    BETWEEN_SITES,
    JITTER_PER_HOP,
    LOOPBACK,
    ONE_SITE,
    RETRANSMIT_S,
    links_between,
)
from policies.probe_schedule import schedule
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
    mute = Link("a", "b", "default", None, None, None, None)
    links = links_between([node("a"), node("b")], Network((mute,), "t", 1.0, ("b",)))
    assert links.rtt_s("a", "b") == pytest.approx(ONE_SITE.rtt_s)


def test_of_two_paths_the_one_with_more_bandwidth_counts():
    slow = Link("a", "b", "vpn", 0.001, 0.0, 0.0, 1e6)
    fast = Link("a", "b", "default", 0.005, 0.0, 0.0, 1e8)
    for order in ((slow, fast), (fast, slow)):
        links = links_between([node("a"), node("b")], Network(order, "t", 1.0))
        assert links.rtt_s("a", "b") == pytest.approx(0.005)


def test_loss_and_jitter_lengthen_a_link():
    link = Link("a", "b", "default", 0.010, 0.002, 0.01, 1e8)
    links = links_between([node("a"), node("b")], Network((link,), "t", 1.0))
    counted_s = 0.010 * 0.002 / 0.012
    assert links.one_way_s[0, 1] == pytest.approx(
        0.005 + JITTER_PER_HOP * counted_s + 0.01 * RETRANSMIT_S
    )


def test_a_jitter_longer_than_the_rtt_lengthens_a_link_little_but_puts_it_in_doubt():
    steady = Link("a", "b", "default", 0.020, 0.0002, 0.0, 1e8)
    shaken = Link("a", "c", "default", 0.032, 0.072, 0.0, 1e8)
    mute = Link("b", "c", "default", None, 0.1, 0.0, 1e8)
    links = links_between(
        [node(x) for x in "abc"], Network((steady, shaken, mute), "2026-11-01", 1.0)
    )
    assert links.doubt[0, 1] < 0.02
    assert 0.5 < links.doubt[0, 2] < 1.0
    assert links.doubt[1, 2] == 0.0
    assert 0.016 < links.one_way_s[0, 2] < 0.016 + JITTER_PER_HOP * 0.032


def test_no_inferred_link_is_wider_than_what_its_nodes_were_seen_to_carry():
    rng = np.random.default_rng(1)
    world = geo(40, rng)
    pairs = [pair for pairs in schedule(world.nodes, 1) for pair in pairs]
    links = links_between(world.nodes, world.probed(pairs, rng))
    inferred = links.inferred & ~np.eye(40, dtype=bool)
    measured = np.where(links.known & ~np.eye(40, dtype=bool), links.s_per_byte, np.inf)
    leaving, entering = measured.min(axis=1)[:, None], measured.min(axis=0)[None, :]
    assert inferred.any()
    assert (links.s_per_byte >= np.maximum(leaving, entering) - 1e-15)[inferred].all()


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
@settings(max_examples=50, deadline=None)
def test_more_rtt_or_more_jitter_is_never_faster(rtt_s, jitter_s, more_rtt_s, more_jitter_s):
    def one_way_s(rtt_s, jitter_s):
        link = Link("a", "b", "default", rtt_s, jitter_s, 0.0, 1e8)
        found = links_between([node("a"), node("b")], Network((link,), "2026-11-01", 1.0))
        return found.one_way_s[0, 1]

    shorter = one_way_s(rtt_s, jitter_s)
    assert one_way_s(rtt_s + more_rtt_s, jitter_s) >= shorter * (1 - 1e-9)
    assert one_way_s(rtt_s, jitter_s + more_jitter_s) >= shorter * (1 - 1e-9)


def test_links_of_nodes_that_left_are_ignored():
    links = links_between([node("a")], network("ab", 0.020))
    assert links.one_way_s.shape == (1, 1)
