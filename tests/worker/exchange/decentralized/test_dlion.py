"""The launcher's rule, worker by worker."""

import numpy as np
import pytest

from launcher.worker.exchange.decentralized.dlion import Dlion, DlionOptions
from launcher.worker.exchange.decentralized.message import HEADER_BYTES, Kind
from launcher.worker.exchange.decentralized.transfer import TransferOptions
from tests.worker.exchange.decentralized.replicas import AMPLE, LAYOUT, Company, step_of

NO_TRANSFER = DlionOptions(transfer=TransferOptions(every_steps=0))
NARROW = HEADER_BYTES + 16  # two entries


def company(n, options=NO_TRANSFER):
    peers = [[p for p in range(n) if p != rank] for rank in range(n)]
    return Company([Dlion(rank, peers[rank], LAYOUT, options) for rank in range(n)])


def test_workers_on_ample_links_take_one_machines_step():
    """Each applies Σ (examples / all examples) · mean gradient, one step late for the others'."""
    workers = company(3)
    gradients = [np.full(LAYOUT.size, g) for g in (1.0, 2.0, 4.0)]
    sizes = (2, 4, 10)
    for _ in range(2):  # by the second step everybody knows everybody's batch
        for rank in range(3):
            workers.step(rank, step_of(gradients[rank], sizes[rank]))
        workers.deliver()
    for rank in range(3):
        workers.replicas[rank].write(np.zeros(LAYOUT.size))
        workers.step(rank, step_of(gradients[rank], sizes[rank]))
    mean = (2 * 1 + 4 * 2 + 10 * 4) / 16
    for rank in range(3):
        np.testing.assert_allclose(workers.weights(rank), -mean, rtol=1e-6)


def test_on_a_narrow_link_nothing_is_lost():
    """What has been sent and what waits add up to all gradients of the sender."""
    workers, rng = company(2), np.random.default_rng(0)
    total, sent = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size, np.float32)
    for _ in range(20):
        gradient = rng.normal(size=LAYOUT.size)
        total += gradient / 2
        for outgoing in workers.step(0, step_of(gradient), NARROW):
            assert len(outgoing.message.packed(LAYOUT.size)) <= NARROW
            outgoing.message.part.add_to(sent)
    np.testing.assert_allclose(sent + workers.rules[0].waiting(1), total, atol=1e-5)
    assert 0 < workers.rules[0].n_percent_by_peer()[1] < 100


def test_what_waited_goes_when_the_link_is_free_again():
    workers = company(2)
    workers.step(0, step_of(np.ones(LAYOUT.size)), 0)
    assert workers.step(0, step_of(np.ones(LAYOUT.size)), 0) == []
    (outgoing,) = workers.step(0, step_of(np.ones(LAYOUT.size)), AMPLE)
    np.testing.assert_allclose(outgoing.message.part.values, 1.5)
    assert not workers.rules[0].waiting(1).any()


def test_a_gradient_that_is_too_old_is_not_applied_and_made_up_for_by_a_transfer():
    options = DlionOptions(max_staleness=2, transfer=TransferOptions(every_steps=5))
    workers = company(2, options)
    workers.step(1, step_of(np.ones(LAYOUT.size)))  # on its way for four of worker 0's steps
    asked = [workers.step(0, step_of(np.zeros(LAYOUT.size))) for _ in range(4)]
    workers.deliver()
    asked = workers.step(0, step_of(np.zeros(LAYOUT.size)))
    assert not workers.weights(0).any()
    assert workers.rules[0].staleness.n_dropped == 1
    assert asked[0].message.kind is Kind.REQUEST


def test_staleness_is_counted_in_steps_of_the_receiver():
    workers = company(2)
    for _ in range(4):
        workers.step(0, step_of(np.ones(LAYOUT.size)))
        workers.step(1, step_of(np.ones(LAYOUT.size)))
        workers.deliver()
    staleness = workers.rules[0].staleness
    assert (staleness.oldest, staleness.n_dropped) == (2, 0)
    assert 1 <= staleness.mean <= 2


def test_those_behind_pull_the_best_ones_weights_and_merge_them():
    workers = company(3, DlionOptions(transfer=TransferOptions(every_steps=2, merge=0.75)))
    for rank, weight in enumerate((0.0, 4.0, 8.0)):
        workers.replicas[rank].write(np.full(LAYOUT.size, weight))
    losses, still = (0.1, 0.101, 1.0), np.zeros(LAYOUT.size)
    kinds = []
    for _ in range(4):
        for rank in range(3):
            kinds += [
                (rank, sent.to)
                for sent in workers.step(rank, step_of(still, loss=losses[rank]))
                if sent.message.kind is Kind.REQUEST
            ]
            workers.deliver()
    assert kinds[0] == (2, 0)
    assert all(rank == 2 for rank, _ in kinds)
    assert not workers.weights(0).any()
    np.testing.assert_allclose(workers.weights(2), 2.0)


def test_what_a_transfer_has_brought_is_not_sent_again():
    workers = company(2, DlionOptions(transfer=TransferOptions(every_steps=1, merge=0.75)))
    still = np.zeros(LAYOUT.size)
    workers.step(0, step_of(np.ones(LAYOUT.size), loss=0.1), HEADER_BYTES)
    workers.deliver()
    workers.step(1, step_of(still, loss=9.0))
    workers.deliver()
    sent = workers.step(0, step_of(still, loss=0.1), HEADER_BYTES)
    assert sent[0].message.kind is Kind.WEIGHTS
    np.testing.assert_allclose(workers.rules[0].waiting(1), 0.5 * 0.25)


def test_a_new_worker_takes_over_weights_and_step_before_it_sends_anything():
    workers = company(2)
    for _ in range(3):
        workers.step(0, step_of(np.ones(LAYOUT.size)))
    workers.deliver()
    workers.rules[1] = Dlion(1, [0], LAYOUT, NO_TRANSFER, is_new=True)
    workers.rules[0].joined(1)
    assert workers.step(1, step_of(np.ones(LAYOUT.size))) == []  # knows of nobody yet
    workers.step(0, step_of(np.ones(LAYOUT.size)))
    workers.deliver()
    (request,) = workers.step(1, step_of(np.ones(LAYOUT.size)))
    assert request.message.kind is Kind.REQUEST
    workers.deliver()
    weights, n_steps = workers.replicas[0].read(), workers.rules[0].roster.own.step
    workers.step(0, step_of(np.ones(LAYOUT.size)))
    workers.deliver()
    assert workers.rules[1].begin(workers.replicas[1])
    np.testing.assert_array_equal(workers.weights(1), weights)
    assert workers.rules[1].roster.own.step == n_steps
    assert workers.step(1, step_of(np.ones(LAYOUT.size)))[0].message.kind is Kind.GRADIENT


def test_those_that_are_left_share_the_whole_update():
    workers = company(3)
    workers.rules[0].lost(2)
    sent = workers.step(0, step_of(np.ones(LAYOUT.size)))
    assert [outgoing.to for outgoing in sent] == [1]
    np.testing.assert_allclose(workers.weights(0), -0.5)
    workers.rules[0].take(2, sent[0].message)  # late words of the dead count for nothing
    workers.step(0, step_of(np.zeros(LAYOUT.size)))
    np.testing.assert_allclose(workers.weights(0), -0.5)


@pytest.mark.parametrize("bad", [{"merge": 0.0}, {"merge": 1.5}, {"every_steps": -1}])
def test_transfers_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="0 < merge <= 1"):
        TransferOptions(**bad)


def test_a_copy_of_better_weights_is_kept_and_not_merged():
    """It takes nothing off what the sender still has for this worker."""
    workers = company(2)
    workers.replicas[1].write(np.full(LAYOUT.size, 5.0))
    for _ in range(2):
        workers.step(0, step_of(np.zeros(LAYOUT.size), loss=2.0))
        workers.step(1, step_of(np.ones(LAYOUT.size), loss=1.0), 0)
        workers.step(1, step_of(np.zeros(LAYOUT.size), loss=1.0))
        workers.deliver()
    worse, better = workers.rules
    (asked,) = worse.ask_copy({1: AMPLE})
    assert asked.message.kind is Kind.COPY
    assert worse.ask_copy({1: AMPLE}) == []  # one at a time
    better.take(0, asked.message)
    waiting = better.waiting(0).copy()
    expected = workers.weights(1).copy()
    (answer,) = better.answers(workers.replicas[1])
    np.testing.assert_array_equal(better.waiting(0), waiting)
    worse.take(1, answer.message)
    np.testing.assert_array_equal(worse.copy, expected)
    assert not worse.is_asking
    assert worse.n_transfers == 0
    assert better.ask_copy({0: AMPLE}) == []  # nobody is better


def test_one_that_has_diverged_takes_over_all_of_anothers_weights():
    options = DlionOptions(transfer=TransferOptions(every_steps=3))
    workers = company(2, options)
    workers.replicas[0].write(np.full(LAYOUT.size, np.nan))
    workers.replicas[1].write(np.ones(LAYOUT.size))
    for _ in range(5):
        for rank, loss in enumerate((np.inf, 1.0)):
            workers.step(rank, step_of(np.zeros(LAYOUT.size), loss=loss))
        workers.deliver()
    np.testing.assert_array_equal(workers.weights(0), np.ones(LAYOUT.size))
    workers.step(0, step_of(np.zeros(LAYOUT.size), loss=2.0))
    assert workers.rules[0].roster.own.loss == 2.0  # what came before counts no more


def test_weights_that_are_not_finite_are_refused_to_those_who_ask_for_them():
    workers = company(2, DlionOptions(transfer=TransferOptions(every_steps=3)))
    workers.replicas[1].write(np.full(LAYOUT.size, np.inf))
    for _ in range(3):
        for rank, loss in enumerate((9.0, 1.0)):
            workers.step(rank, step_of(np.zeros(LAYOUT.size), loss=loss))
        workers.deliver()
    assert workers.rules[0].is_asking
    (answer,) = workers.step(1, step_of(np.zeros(LAYOUT.size)))
    assert answer.message.kind is Kind.REFUSAL
    workers.deliver()
    assert not workers.rules[0].is_asking
