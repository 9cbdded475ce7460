"""Workers whose sites have data of their own end when theirs are through, and no sooner."""

import threading
import time

import numpy as np
import pytest

from launcher.worker.exchange.decentralized import own_data
from launcher.worker.exchange.decentralized.own_data import OwnDataTraining, Place
from tests.worker.exchange.decentralized.test_training import SIZES, Rank, start
from tests.worker.exchange.transport.meshes import addresses_of, listening

LIMIT_S = 30.0


class OwnRank(Rank):
    """A rank that trains on data of its own."""

    kind = OwnDataTraining

    def settle(self):
        self.training.settle(self.replica)


@pytest.fixture
def pair():
    sockets = listening(2)
    ranks = [OwnRank(rank, addresses_of(sockets), sockets[rank]) for rank in range(2)]
    start(ranks)
    yield ranks
    for rank in ranks:
        rank.training.close()


def settling(rank):
    thread = threading.Thread(target=rank.settle, daemon=True)
    thread.start()
    return thread


def wait_until(is_so):
    """What is sent over a link comes in its own time."""
    until_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_the_first_one_waits_for_all_and_keeps_weights_of_those_that_trained_on(pair):
    first, second = pair
    second.steps(3)
    first.steps(3)
    waiting = settling(first)
    second.replica.write(np.full(sum(SIZES), 7.0))
    second.target = np.full(sum(SIZES), 9.0, np.float32)  # so that its loss is the greater one
    second.steps(5)
    assert waiting.is_alive()
    second.settle()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()
    np.testing.assert_allclose(first.replica.weights, second.replica.weights)


def test_who_ends_before_the_first_one_waits_for_nobody(pair):
    first, second = pair
    second.steps(2)
    second.settle()
    first.steps(5)
    first.settle()  # returns: all have ended
    assert first.training.n_ended == second.training.n_ended == 1


def test_a_stop_ends_the_wait(pair, monkeypatch):
    monkeypatch.setattr(own_data, "STOPPED_S", 0.05)  # the other one is in a long step
    first, second = pair
    second.steps(1)
    first.steps(1)
    waiting = settling(first)
    first.training.stop_all()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


def test_one_that_is_gone_is_not_waited_for(pair, monkeypatch):
    monkeypatch.setattr("launcher.worker.exchange.decentralized.training.GONE_S", 0.05)
    first, second = pair
    second.steps(1)
    first.steps(1)
    waiting = settling(first)
    second.training.close()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


def test_one_that_says_nothing_is_not_waited_for_for_ever(pair, monkeypatch):
    monkeypatch.setattr(own_data, "SILENT_S", 0.05)
    first, second = pair
    second.steps(1)
    first.steps(1)
    waiting = settling(first)
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


def test_the_first_one_knows_where_the_others_are_in_their_data(pair):
    first, second = pair
    second.training.go_to(3, 5)
    second.steps(6)
    first.training.go_to(4, 0)
    wait_until(lambda: first.training.places()[1] == Place(3, 10))
    second.training.go_to(4, 0)
    wait_until(lambda: first.training.places()[1] == Place(4, 0))
    assert first.training.places()[0] == Place(4, 0)
