import math
from dataclasses import replace

import numpy as np
import pytest

from policies.completion import completed
from policies.data.topologies import TOPOLOGIES, geo, two_level
from policies.links import links_between
from policies.probe_schedule import schedule

NAN = math.nan


def known(n, latency_by_pair):
    """Latencies of some pairs, both ways; bandwidths of 1e8."""
    one_way_s = np.full((n, n), NAN)
    for (a, b), s in latency_by_pair.items():
        one_way_s[a, b] = one_way_s[b, a] = s
    return one_way_s, np.where(np.isnan(one_way_s), NAN, 1e-8)


def some_pairs(topology, n_rounds, rng):
    """Pairs of random rounds, and each node with the next by address."""
    names = [node.id for node in topology.nodes]
    pairs = {tuple(sorted(p)) for _ in range(n_rounds) for p in random_round(names, rng)}
    ordered = sorted(topology.nodes, key=lambda node: [int(x) for x in node.ip.split(".")])
    for step in (1, 2):
        pairs |= {
            tuple(sorted((a.id, b.id))) for a, b in zip(ordered, ordered[step:], strict=False)
        }
    return sorted(pairs)


def random_round(names, rng):
    order = rng.permutation(len(names))
    return [(names[a], names[b]) for a, b in zip(order[::2], order[1::2], strict=False)]


def log_errors(topology, pairs, rng):
    """|log error| of latency and bandwidth of the links that were not measured."""
    links = links_between(topology.nodes, topology.probed(pairs, rng))
    open_links = links.inferred
    latency = np.abs(np.log(links.one_way_s * 2.0 / topology.rtt_s))[open_links]
    bandwidth = np.abs(np.log(links.s_per_byte * topology.bandwidth_bytes_per_s))[open_links]
    return latency, bandwidth


def test_what_was_measured_stays():
    one_way_s, s_per_byte = known(4, {(0, 1): 0.001, (1, 2): 0.020, (2, 3): 0.001})
    whole_s, whole = completed(one_way_s, s_per_byte)
    seen = ~np.isnan(one_way_s)
    assert (whole_s[seen] == one_way_s[seen]).all()
    assert (whole[seen] == s_per_byte[seen]).all()


def test_a_friend_of_a_friend_is_near():
    near, far = 0.0002, 0.020
    pairs = {(0, 1): near, (1, 2): near, (3, 4): near, (4, 5): near, (0, 3): far, (2, 5): far}
    whole_s, _ = completed(*known(6, pairs))
    assert whole_s[0, 2] == pytest.approx(near, rel=0.3)
    assert whole_s[3, 5] == pytest.approx(near, rel=0.3)
    assert whole_s[1, 4] == pytest.approx(far, rel=0.3)
    assert whole_s[2, 3] == pytest.approx(far, rel=0.3)


def test_a_node_that_met_nobody_stays_unknown():
    whole_s, whole = completed(*known(4, {(0, 1): 0.001, (1, 2): 0.001}))
    assert np.isnan(whole_s[3]).all()
    assert np.isnan(whole[:, 3]).all()
    assert not np.isnan(whole_s[0, 2])


def test_a_full_map_and_an_empty_one_stay_as_they_are():
    full = {(a, b): 0.001 * (a + b) for a in range(3) for b in range(a)}
    assert np.array_equal(completed(*known(3, full))[0], known(3, full)[0], equal_nan=True)
    assert np.isnan(completed(*known(3, {}))[0]).all()


def test_a_link_whose_bandwidth_alone_is_not_known_gets_one():
    one_way_s, s_per_byte = known(3, {(0, 1): 0.001, (1, 2): 0.001, (0, 2): 0.001})
    s_per_byte[0, 2] = NAN
    assert completed(one_way_s, s_per_byte)[1][0, 2] == pytest.approx(1e-8)


def test_bandwidth_is_the_least_of_uplink_downlink_and_pipe():
    rng = np.random.default_rng(5)
    topology = geo(60, rng)
    up, down, pipe = (
        rng.choice(x, n) for x, n in (((2e7, 1e8), 60), ((3e7, 1e8), 60), ((5e7,), 1))
    )
    side = np.arange(60) % 2
    crosses = side[:, None] != side[None, :]
    rate = np.minimum(up[:, None], down[None, :])
    rate = np.where(crosses, np.minimum(rate, pipe), rate)
    one_way_s = np.full((60, 60), NAN)
    inverse = one_way_s.copy()
    for _ in range(12):
        for a, b in random_round(range(60), rng):
            one_way_s[a, b] = one_way_s[b, a] = 0.020 if crosses[a, b] else 0.0002
            inverse[a, b], inverse[b, a] = 1 / rate[a, b], 1 / rate[b, a]
    found = 1 / completed(one_way_s, inverse)[1]
    off = np.abs(np.log(found / rate))[~np.eye(60, dtype=bool)]
    assert len(topology.nodes) == 60
    assert np.quantile(off, 0.95) < 0.05


@pytest.mark.parametrize("name", ["flat", "two-level", "geo"])
def test_most_links_of_a_hundred_nodes_are_inferred_within_a_fifth(name):
    rng = np.random.default_rng(2)
    topology = TOPOLOGIES[name](100, rng)
    pairs = [p for pairs in schedule(topology.nodes, 2) for p in pairs]
    latency, bandwidth = log_errors(topology, pairs, rng)
    assert np.median(latency) < 0.08
    assert np.median(bandwidth) < 0.05
    assert np.quantile(latency, 0.95) < 0.25
    assert np.quantile(bandwidth, 0.95) < 0.20


def test_a_slow_access_line_adds_to_every_link_of_its_node():
    """In seconds: it doubles a short way and hardly changes a long one."""
    n, line_s = 60, 0.0003
    rng = np.random.default_rng(6)
    far = np.arange(n) % 2
    one_way_s = np.where(far[:, None] == far[None, :], 0.0003, 0.030)
    one_way_s[7, :] += line_s
    one_way_s[:, 7] += line_s
    seen = np.full((n, n), NAN)
    for _ in range(12):
        for a, b in random_round(range(n), rng):
            seen[a, b] = seen[b, a] = one_way_s[a, b]
    whole_s, _ = completed(seen, np.where(np.isnan(seen), NAN, 1e-8))
    off = np.abs(np.log(whole_s / one_way_s))[7, np.arange(n) != 7]
    assert off.max() < 0.15


@pytest.mark.parametrize("name", ["flat", "two-level", "geo"])
def test_a_few_disturbed_measurements_do_not_spread(name):
    rng = np.random.default_rng(3)
    topology = TOPOLOGIES[name](100, rng)
    pairs = [p for pairs in schedule(topology.nodes, 3) for p in pairs]
    network = topology.probed(pairs, rng)
    links = tuple(
        replace(x, rtt_s=4 * x.rtt_s, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / 4)
        if rng.random() < 0.1
        else x
        for x in network.links
    )
    found = links_between(topology.nodes, replace(network, links=links))
    off = np.abs(np.log(found.one_way_s * 2.0 / topology.rtt_s))[found.inferred]
    assert np.median(off) < 0.08
    assert np.quantile(off, 0.9) < 0.2


def test_more_links_measured_are_never_much_worse():
    errors = []
    for n_rounds in (3, 10, 30):
        rng = np.random.default_rng(3)
        topology = two_level(60, rng)
        errors.append(log_errors(topology, some_pairs(topology, n_rounds, rng), rng)[0].mean())
    assert errors[1] < 1.2 * errors[0]
    assert errors[2] < 1.2 * errors[1]


def test_a_small_cluster_is_probed_in_full_and_nothing_is_inferred():
    rng = np.random.default_rng(4)
    topology = two_level(24, rng)
    pairs = [p for pairs in schedule(topology.nodes, 0) for p in pairs]
    links = links_between(topology.nodes, topology.probed(pairs, rng))
    assert not links.inferred.any()
    assert links.known[~np.eye(24, dtype=bool)].all()
