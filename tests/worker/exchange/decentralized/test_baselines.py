"""Rules to compare with, by their sources."""

import numpy as np
import pytest

from launcher.worker.exchange.decentralized.ako import Ako, n_partitions_for
from launcher.worker.exchange.decentralized.gaia import ADJUSTMENT, Gaia, GaiaOptions
from launcher.worker.exchange.decentralized.hop import Hop, HopOptions, ring_neighbours
from tests.worker.exchange.decentralized.replicas import LAYOUT, Company, step_of

ONES = np.ones(LAYOUT.size)


def peers_of(rank, n):
    return [peer for peer in range(n) if peer != rank]


def pair(make):
    return Company([make(rank, peers_of(rank, 2)) for rank in range(2)])


def test_gaia_sends_changes_of_more_than_the_threshold_and_keeps_the_others():
    workers = pair(lambda rank, peers: Gaia(rank, peers, LAYOUT, GaiaOptions(threshold=0.1)))
    for replica in workers.replicas:
        replica.write(ONES * 10)
    gradient = np.array([2, 0.4, 0, 0, 0, 0, 0, 0])
    for n, significant in ((1, []), (2, [0]), (3, [0]), (4, [0, 1])):
        (sent,) = workers.step(0, step_of(gradient))
        assert sent.message.part.indices.tolist() == significant, n
    np.testing.assert_allclose(sent.message.part.values, [-2, -1.2], rtol=1e-5)
    workers.deliver()
    workers.step(1, step_of(0 * ONES))
    np.testing.assert_allclose(workers.weights(1)[:2], [10 - 3 * 2, 10 - 3 * 0.4], rtol=1e-5)


def test_gaias_threshold_rises_when_more_is_sent_than_the_link_carries():
    options = GaiaOptions(threshold=0.01, adjusted=True)
    workers = pair(lambda rank, peers: Gaia(rank, peers, LAYOUT, options))
    for _ in range(2):
        workers.step(0, step_of(ONES), 8)
    assert workers.rules[0].threshold == pytest.approx(0.01 - ADJUSTMENT + ADJUSTMENT)
    for _ in range(9):
        workers.step(0, step_of(0 * ONES), 1000)
    assert workers.rules[0].threshold == 0


def test_gaia_waits_for_a_peer_that_is_too_far_behind():
    workers = pair(lambda rank, peers: Gaia(rank, peers, LAYOUT, GaiaOptions(max_gap=2)))
    rule, replica = workers.rules[0], workers.replicas[0]
    for _ in range(3):
        assert rule.begin(replica)
        workers.step(0, step_of(ONES))
    assert not rule.begin(replica)
    workers.step(1, step_of(ONES))
    workers.deliver()
    assert rule.begin(replica)
    rule.lost(1)
    workers.step(0, step_of(ONES))
    assert rule.begin(replica)


def test_ako_sends_each_gradient_once_spread_over_its_partitions():
    workers = pair(lambda rank, peers: Ako(rank, peers, LAYOUT, n_partitions=4))
    received = np.zeros(LAYOUT.size, np.float32)
    for _ in range(12):
        (sent,) = workers.step(0, step_of(ONES))
        assert len(sent.message.part.values) == LAYOUT.size // 4
        sent.message.part.add_to(received)
    # the partition of step t holds the gradients up to t: 9, 10, 11 or 12 of the twelve
    assert received.tolist() == [9, 9, 10, 10, 11, 11, 12, 12]


def test_ako_adds_what_has_arrived_to_its_own_gradient():
    workers = pair(lambda rank, peers: Ako(rank, peers, LAYOUT, n_partitions=1))
    workers.step(0, step_of(ONES))
    workers.deliver()
    workers.step(1, step_of(ONES * 3))
    np.testing.assert_allclose(workers.weights(1), -4)
    workers.step(1, step_of(0 * ONES))
    np.testing.assert_allclose(workers.weights(1), -4)


def test_akos_partitions_are_as_many_as_keep_within_the_links():
    assert n_partitions_for(1000, 5, 4000) == 5
    assert n_partitions_for(1000, 10, 4000) == 10
    assert n_partitions_for(1000, 5, 1 << 30) == 1
    assert n_partitions_for(1000, 5, 0) == 1000


def test_hop_averages_weights_and_applies_its_gradient_to_the_average():
    workers = pair(lambda rank, peers: Hop(rank, peers, LAYOUT, HopOptions(n_backup=0)))
    workers.replicas[0].write(ONES * 4)
    workers.step(0, step_of(0 * ONES))
    workers.deliver()
    workers.step(1, step_of(ONES))
    np.testing.assert_allclose(workers.weights(1), (4 + 0) / 2 - 1)


def test_hop_waits_for_all_but_its_backups_within_the_staleness():
    def far_ahead(n_backup, max_gap=20):
        options = HopOptions(staleness=2, n_backup=n_backup, max_gap=max_gap)
        rule = Hop(0, [1, 2], LAYOUT, options)
        workers = Company([rule])
        workers.rules += [Hop(peer, [0], LAYOUT) for peer in (1, 2)]
        workers.replicas *= 3
        n = 0
        while rule.begin(workers.replicas[0]) and n < 9:
            workers.step(1, step_of(ONES))
            workers.deliver()
            workers.step(0, step_of(ONES))
            n += 1
        return n

    assert far_ahead(n_backup=0) == 3  # worker 2 has sent nothing
    assert far_ahead(n_backup=1) == 9
    assert far_ahead(n_backup=1, max_gap=4) == 5


def test_a_slow_worker_of_hop_goes_on_at_the_step_of_its_neighbours():
    workers = pair(lambda rank, peers: Hop(rank, peers, LAYOUT, HopOptions(staleness=2)))
    for _ in range(8):
        workers.step(1, step_of(ONES))
    workers.deliver()
    workers.step(0, step_of(ONES))
    assert workers.rules[0].roster.own.step == 8


def test_a_ring_has_two_neighbours_each():
    assert [ring_neighbours(rank, 4) for rank in range(4)] == [(1, 3), (0, 2), (1, 3), (0, 2)]
    assert ring_neighbours(0, 2) == (1,)
    assert ring_neighbours(0, 1) == ()


@pytest.mark.parametrize("make", [Gaia, Ako, Hop])
def test_peers_come_and_go(make):
    rule = make(0, [1, 2], LAYOUT)
    workers = Company([rule])
    rule.lost(2)
    assert [sent.to for sent in workers.step(0, step_of(ONES))] == [1]
    late = workers.step(0, step_of(ONES))[0].message
    rule.take(2, late)
    rule.joined(2)
    assert [sent.to for sent in workers.step(0, step_of(ONES))] == [1, 2]
