"""Workers that train together over loopback, each at its own pace."""

import threading
import time

import numpy as np
import pytest

from launcher.worker.exchange.decentralized.dlion import Dlion, DlionOptions
from launcher.worker.exchange.decentralized.gaia import Gaia, GaiaOptions
from launcher.worker.exchange.decentralized.links import Links
from launcher.worker.exchange.decentralized.training import Training
from launcher.worker.exchange.decentralized.transfer import TransferOptions
from launcher.worker.exchange.transport.address import Address, listen
from tests.fakes import soon
from tests.worker.exchange.decentralized.replicas import Descent
from tests.worker.exchange.transport.meshes import addresses_of, listening

SECRET = b"secret of the tests' runs".ljust(32)
SIZES = (30, 10)
OPTIONS = DlionOptions(transfer=TransferOptions(every_steps=10))
NO_TRANSFER = DlionOptions(transfer=TransferOptions(every_steps=0))
LIMIT_S = 60.0  # a busy machine may hold everything up for long


def dlion(options):
    def new_rule(rank, peers, layout, *, is_new):
        return Dlion(rank, peers, layout, options, is_new=is_new)

    return new_rule


def gaia(rank, peers, layout, *, is_new):
    return Gaia(rank, peers, layout, GaiaOptions(max_gap=3))


class Rank:
    """A rank whose examples lie around a point of its own."""

    kind = Training

    def __init__(
        self,
        rank,
        addresses,
        sockets=(),
        weights=0.0,
        connect_s=LIMIT_S,
        options=OPTIONS,
        rule=None,
    ):
        self.sockets = sockets
        self.rank, self.replica = rank, Descent(sum(SIZES), rate=0.2)
        self.replica.write(np.full(sum(SIZES), weights))
        self.target = np.full(sum(SIZES), float(rank + 1), np.float32)

        def open_links(size, hearer, generation):
            own, self.sockets = self.sockets, ()  # the first links take them; others open theirs
            return Links(rank, addresses, SECRET, size, hearer, generation, own)

        self.training = self.kind(
            rank, len(addresses), open_links, rule or dlion(options), connect_s=connect_s
        )

    def open(self, model="first"):
        self.training.open(SIZES, self.replica, model)

    def step(self):
        gradient = self.replica.read() - self.target
        loss = float(np.square(gradient).mean())
        total = self.training.exchange(self.replica, gradient, 4, loss, 0.01)
        self.replica.apply(total)

    def steps(self, n):
        for _ in range(n):
            self.step()
            time.sleep(0.001)  # a pace at which others are heard of

    def steps_until(self, is_so):
        begun_s = time.monotonic()
        while not is_so():
            assert time.monotonic() - begun_s < LIMIT_S
            self.steps(1)

    @property
    def distance(self):
        return float(np.abs(self.replica.weights - 1.5).max())


def start(ranks):
    threads = [threading.Thread(target=rank.open) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def pair(request):
    sockets = listening(2)
    addresses = addresses_of(sockets)
    options = getattr(request, "param", OPTIONS)
    ranks = [Rank(rank, addresses, sockets[rank], options=options) for rank in range(2)]
    start(ranks)
    yield ranks, addresses
    for rank in ranks:
        rank.training.close()


def together(ranks, n):
    """Steps of all ranks at one pace, whatever else the machine does."""
    barrier = threading.Barrier(len(ranks))

    def steps(rank):
        for _ in range(n):
            rank.steps(1)
            barrier.wait()

    threads = [threading.Thread(target=steps, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def together_until(ranks, is_so):
    """Steps of all ranks until something holds: messages may be late on a busy machine."""
    begun_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun_s < LIMIT_S
        together(ranks, 10)


def have_met(ranks):
    return max(rank.distance for rank in ranks) < 0.4  # alone each would be 0.5 away


def test_workers_meet_at_what_fits_all_of_their_data(pair):
    ranks, _ = pair
    together(ranks, 150)
    assert ranks[0].training.figures().n_steps == 150
    together_until(ranks, lambda: have_met(ranks))
    figures = ranks[0].training.figures()
    assert figures.n_percent == {1: 100.0}
    assert ranks[0].training.speeds() == {0: pytest.approx(400), 1: pytest.approx(400)}


def test_one_that_is_gone_stops_nobody_and_goes_on_where_the_other_is(pair, monkeypatch):
    monkeypatch.setattr("launcher.worker.exchange.decentralized.training.GONE_S", 0.05)
    ranks, addresses = pair
    together(ranks, 20)
    ranks[1].training.close()
    ranks[0].steps_until(lambda: ranks[0].training.speeds().keys() == {0})
    ranks[0].steps(100)
    assert abs(ranks[0].replica.weights - 1.0).max() < 0.01
    ip, port = addresses[1][0].split(":")
    ranks[1] = Rank(1, addresses, [listen(Address(ip, int(port)))], weights=9.0)
    is_over = threading.Event()
    other = threading.Thread(target=ranks[0].steps_until, args=(is_over.is_set,))
    other.start()
    ranks[1].open()
    ranks[1].steps_until(lambda: ranks[1].training.figures().n_transfers > 0)
    is_over.set()
    assert ranks[1].replica.weights.max() < 2.0
    assert ranks[1].training.figures().n_steps >= 100
    other.join()


def test_workers_that_begin_unalike_take_the_first_ones_weights():
    sockets = listening(2)
    addresses = addresses_of(sockets)
    ranks = [Rank(0, addresses, sockets[0]), Rank(1, addresses, sockets[1], weights=100.0)]
    start(ranks)
    together_until(ranks, lambda: ranks[1].replica.weights.max() < 3.0)
    assert ranks[1].training.figures().n_transfers >= 1
    assert ranks[0].replica.weights.max() < 3.0
    for rank in ranks:
        rank.training.close()


def test_training_begins_without_those_who_do_not_come():
    sockets = listening(2)
    rank = Rank(0, addresses_of(sockets), sockets[0], connect_s=0.05)
    rank.open()
    rank.steps(50)
    assert abs(rank.replica.weights - 1.0).max() < 0.01
    rank.training.close()
    sockets[1][0].close()


def test_one_that_joins_does_not_wait_for_the_dead(monkeypatch):
    monkeypatch.setattr("launcher.worker.exchange.decentralized.training.GONE_S", 0.05)
    sockets = listening(3)
    addresses = addresses_of(sockets)
    first = Rank(0, addresses, sockets[0], connect_s=0.05)
    first.open()
    first.steps(3)
    other = Rank(1, addresses, sockets[1], connect_s=600.0)
    opening = threading.Thread(target=other.open, daemon=True)
    opening.start()
    opening.join(LIMIT_S)
    assert not opening.is_alive()
    for rank in (other, first):
        rank.training.close()
    sockets[2][0].close()


def test_a_stop_ends_the_waiting_for_those_who_do_not_come():
    sockets = listening(2)
    rank = Rank(0, addresses_of(sockets), sockets[0], connect_s=600.0)
    opening = threading.Thread(target=rank.open, daemon=True)
    opening.start()
    rank.training.stop_all()
    opening.join(LIMIT_S)
    assert not opening.is_alive()
    rank.training.close()
    sockets[1][0].close()


def test_at_the_end_the_first_has_the_best_ones_weights(pair):
    """The others serve it after their own last steps."""
    ranks, _ = pair
    ranks[0].target += 20  # never near
    together(ranks, 35)
    kept = ranks[1].replica.read()
    ranks[1].training.settle(ranks[1].replica)
    # What was asked for in mid-training may be answered with weights of then.
    assert soon(lambda: not ranks[0].training._rule.is_asking)
    ranks[0].training.settle(ranks[0].replica)
    np.testing.assert_array_equal(ranks[1].replica.read(), kept)
    np.testing.assert_array_equal(ranks[0].replica.read(), kept)


@pytest.mark.parametrize("pair", [NO_TRANSFER], indirect=True)
def test_weights_that_do_not_come_in_time_change_nothing(pair):
    ranks, _ = pair
    ranks[0].target += 20
    together(ranks, 30)
    kept = ranks[0].replica.read()
    ranks[0].training.settle(ranks[0].replica, timeout_s=0.05)  # the other takes no step
    np.testing.assert_array_equal(ranks[0].replica.read(), kept)


def test_a_worker_that_has_ended_waits_for_the_first_one(pair):
    ranks, _ = pair
    together(ranks, 3)
    ranks[0].training.linger()
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (ranks[1].training.linger(), ended.set()))
    thread.start()
    assert not ended.wait(0.05)
    ranks[0].training.close()
    assert ended.wait(LIMIT_S)
    thread.join()


def test_another_model_of_the_same_size_is_not_mixed_up_with_the_first_one(pair):
    ranks, _ = pair
    together(ranks, 5)
    ranks[0].replica.write(np.zeros(sum(SIZES)))
    opening = threading.Thread(target=ranks[0].open, args=("second",))
    opening.start()
    ranks[1].steps(10)  # goes on with the first model, alone
    assert opening.is_alive()
    ranks[1].replica.write(np.zeros(sum(SIZES)))
    ranks[1].open("second")
    opening.join(LIMIT_S)
    assert not opening.is_alive()
    together(ranks, 2)
    assert [rank.training.figures().n_steps for rank in ranks] == [2, 2]


def test_those_who_have_gone_on_to_another_model_count_as_lost_until_one_follows(pair, monkeypatch):
    monkeypatch.setattr("launcher.worker.exchange.decentralized.training.GONE_S", 0.05)
    ranks, _ = pair
    together(ranks, 5)
    opening = threading.Thread(target=ranks[0].open, args=("second",))
    opening.start()
    ranks[1].steps_until(lambda: 0 not in ranks[1].training.speeds())
    ranks[1].open("second")
    opening.join(LIMIT_S)
    assert not opening.is_alive()
    together(ranks, 200)
    together_until(ranks, lambda: have_met(ranks))


def test_another_model_does_not_wait_for_the_dead(pair, monkeypatch):
    monkeypatch.setattr("launcher.worker.exchange.decentralized.training.GONE_S", 0.05)
    ranks, _ = pair
    ranks[0].training._connect_s = 600.0
    together(ranks, 5)
    ranks[1].training.close()
    ranks[0].steps_until(lambda: 1 not in ranks[0].training.speeds())
    opening = threading.Thread(target=ranks[0].open, args=("second",), daemon=True)
    opening.start()
    opening.join(LIMIT_S)
    assert not opening.is_alive()
    ranks[0].steps(1)


def test_a_gradient_that_is_not_finite_is_neither_sent_nor_applied(pair, caplog):
    ranks, _ = pair
    together(ranks, 5)
    for value in (np.nan, np.inf, np.float32(1e30)):  # the last one's norm overflows
        gradient = np.zeros(sum(SIZES), np.float32)
        gradient[3] = value
        total = ranks[0].training.exchange(ranks[0].replica, gradient, 4, 0.5, 0.01)
        assert np.isfinite(total).all()
        assert ranks[0].training.figures().loss is None
    together(ranks, 5)
    for rank in ranks:
        assert np.isfinite(rank.replica.weights).all()
        assert np.isfinite(rank.training.figures().loss)
    assert caplog.text.count("isn't finite, and is left out") == 1


def test_a_stop_reaches_all(pair):
    ranks, _ = pair
    ranks[0].training.stop_all()
    assert soon(lambda: ranks[1].training.is_told_to_stop)


def test_a_rule_that_waits_goes_on_when_it_hears_of_the_others_or_of_their_end(monkeypatch):
    monkeypatch.setattr("launcher.worker.exchange.decentralized.training.GONE_S", 0.05)
    monkeypatch.setattr("launcher.worker.exchange.decentralized.training.TICK_S", 0.05)
    sockets = listening(2)
    addresses = addresses_of(sockets)
    ranks = [Rank(rank, addresses, sockets[rank], rule=gaia) for rank in range(2)]
    start(ranks)
    together(ranks, 5)
    ahead = threading.Thread(target=ranks[0].steps, args=(50,))
    ahead.start()
    ranks[1].steps(20)
    assert ahead.is_alive()  # it waits, since the other has taken 25 steps
    ranks[1].training.close()
    ahead.join(LIMIT_S)
    assert not ahead.is_alive()
    ranks[0].training.close()


def test_exchanging_before_the_links_are_open_is_refused():
    rank = Rank(0, [["127.0.0.1:1"], ["127.0.0.1:2"]])
    with pytest.raises(ValueError, match="comes first"):
        rank.step()
