"""Connections that come and go, over loopback."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from launcher.worker.exchange.decentralized.link import notice_silence
from launcher.worker.exchange.decentralized.links import Links
from launcher.worker.exchange.decentralized.message import Kind, Message, Outgoing, Standing
from launcher.worker.exchange.decentralized.sparse import Entries, Span
from launcher.worker.exchange.transport.address import Address, listen
from tests.worker.exchange.transport.meshes import addresses_of, listening

SECRET = b"secret of the tests' runs".ljust(32)
SIZE = 50_000


class Diary:
    """Notes what links tell, and waits for it."""

    def __init__(self):
        self.messages, self.ups, self.downs = [], [], []
        self.changed = threading.Condition()

    def hear(self, source, message):
        self._note(self.messages, (source, message))

    def link_is_up(self, peer):
        self._note(self.ups, peer)

    def link_is_down(self, peer):
        self._note(self.downs, peer)

    def _note(self, notes, note):
        with self.changed:
            notes.append(note)
            self.changed.notify_all()

    def wait(self, is_so):
        with self.changed:
            assert self.changed.wait_for(is_so, 60)


@contextlib.contextmanager
def opened(*sizes):
    """Links of several ranks, with their diaries; sizes of their models."""
    sockets = listening(len(sizes))
    addresses = addresses_of(sockets)
    diaries = [Diary() for _ in sizes]
    links = [
        Links(rank, addresses, SECRET, size, diaries[rank], 0, sockets[rank])
        for rank, size in enumerate(sizes)
    ]
    try:
        yield links, diaries, addresses
    finally:
        for each in links:
            each.close()


def gradient(step, n=SIZE):
    values = np.full(n, step, np.float32)
    return Message(Kind.GRADIENT, Standing(step=step), Span(0, values))


def test_messages_arrive_in_order_and_tell_what_the_link_carries():
    with opened(SIZE, SIZE) as (links, diaries, _):
        for diary in diaries:
            diary.wait(lambda diary=diary: diary.ups)
        for step in range(1, 6):
            links[0].send(Outgoing(1, gradient(step)))
        links[1].send(Outgoing(0, Message(Kind.REQUEST, Standing())))
        diaries[1].wait(lambda: len(diaries[1].messages) == 5)
        diaries[0].wait(lambda: diaries[0].messages)
        for step, (source, message) in enumerate(diaries[1].messages, start=1):
            assert (source, message.standing.step) == (0, step)
            assert (message.part.values == step).all()
        assert diaries[0].messages[0][1].kind is Kind.REQUEST
        assert links[0].sent_bytes()[1] > 5 * 4 * SIZE
        links[0].close()
        assert links[0].rates_bytes_per_s()[1] > 1e6


def test_a_link_that_is_down_carries_nothing_and_comes_again_with_its_peer():
    with opened(SIZE, SIZE) as (links, diaries, addresses):
        diaries[0].wait(lambda: diaries[0].ups)
        assert links[0].capacity_bytes(0.1)[1] > 0
        links[1].close()
        diaries[0].wait(lambda: diaries[0].downs)
        assert links[0].capacity_bytes(0.1) == {1: 0}
        links[0].send(Outgoing(1, gradient(1)))  # is forgotten
        ip, port = addresses[1][0].split(":")
        again = Diary()
        links[1] = Links(1, addresses, SECRET, SIZE, again, 0, [listen(Address(ip, int(port)))])
        again.wait(lambda: again.ups)
        diaries[0].wait(lambda: len(diaries[0].ups) == 2)
        links[0].send(Outgoing(1, gradient(2)))
        again.wait(lambda: again.messages)
        assert again.messages[0][1].standing.step == 2


def test_what_makes_no_sense_breaks_one_link_and_no_other():
    with opened(SIZE, SIZE + 1, SIZE) as (links, diaries, _):
        diaries[0].wait(lambda: set(diaries[0].ups) == {1, 2})
        diaries[2].wait(lambda: set(diaries[2].ups) == {0, 1})
        links[0].send(Outgoing(1, gradient(1)))
        diaries[0].wait(lambda: 1 in diaries[0].downs)
        assert not diaries[1].messages
        part = Entries(np.array([7]), np.array([1.0], np.float32))
        links[0].send(Outgoing(2, Message(Kind.GRADIENT, Standing(), part)))
        diaries[2].wait(lambda: diaries[2].messages)
        assert diaries[2].messages[0][1].part.indices.tolist() == [7]


def test_messages_of_another_model_break_the_link():
    sockets = listening(2)
    addresses, diaries = addresses_of(sockets), [Diary(), Diary()]
    links = [
        Links(rank, addresses, SECRET, SIZE, diaries[rank], 1 + rank, sockets[rank])
        for rank in range(2)
    ]
    diaries[0].wait(lambda: diaries[0].ups)
    links[0].send(Outgoing(1, gradient(1)))
    diaries[0].wait(lambda: diaries[0].downs)
    assert not diaries[1].messages
    for each in links:
        each.close()


def test_a_link_that_breaks_at_once_is_not_dialed_without_a_pause(monkeypatch):
    monkeypatch.setattr("launcher.worker.exchange.decentralized.links.AGAIN_S", 0.1)
    sockets = listening(2)
    addresses, times_s = addresses_of(sockets), []

    class Greeter(Diary):
        def link_is_up(self, peer):
            times_s.append(time.monotonic())
            links[0].send(Outgoing(1, Message(Kind.GREETING, Standing())))
            super().link_is_up(peer)

    diaries, links = [Greeter(), Diary()], []
    for rank, diary in enumerate(diaries):  # of two models, so that no message is understood
        links.append(Links(rank, addresses, SECRET, SIZE, diary, rank, sockets[rank]))
    diaries[0].wait(lambda: len(times_s) >= 4)
    for each in links:
        each.close()
    assert times_s[3] - times_s[0] > 2 * 0.1  # of two full pauses at least


def test_a_greeting_is_heard_first_whatever_is_sent_before_it():
    class Hasty(Diary):
        def link_is_up(self, peer):
            for kind in (Kind.REQUEST, Kind.GREETING):
                links[0].send(Outgoing(peer, Message(kind, Standing())))

    sockets, diaries, links = listening(2), [Hasty(), Diary()], []
    addresses = addresses_of(sockets)
    for rank, diary in enumerate(diaries):
        links.append(Links(rank, addresses, SECRET, SIZE, diary, 0, sockets[rank]))
    diaries[1].wait(lambda: len(diaries[1].messages) == 2)
    assert [message.kind for _, message in diaries[1].messages] == [Kind.GREETING, Kind.REQUEST]
    for each in links:
        each.close()


def test_whatever_goes_wrong_with_a_message_breaks_the_link_which_comes_again(caplog):
    with opened(SIZE, SIZE) as (links, diaries, _):
        diaries[0].wait(lambda: diaries[0].ups)
        diaries[1].wait(lambda: diaries[1].ups)
        diaries[1].hear = lambda source, message: message.no_such_thing
        links[0].send(Outgoing(1, gradient(1)))
        diaries[1].wait(lambda: diaries[1].downs)
        del diaries[1].hear
        diaries[1].wait(lambda: len(diaries[1].ups) == 2)
        diaries[0].wait(lambda: len(diaries[0].ups) == 2)
        links[0].send(Outgoing(1, gradient(2)))
        diaries[1].wait(lambda: diaries[1].messages)
    assert "the link to rank 0 fails" in caplog.text
    assert "no_such_thing" in caplog.text


def test_a_connection_that_is_cut_is_given_up_by_the_system():
    with socket.socket() as connection:
        notice_silence(connection)
        unanswered_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        idle_s = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert (unanswered_ms, idle_s) == (15_000, 5)


def test_ranks_without_a_common_network_are_refused():
    with pytest.raises(ValueError, match="ranks 1 and 0 have no path in common"):
        Links(1, [["127.0.0.1:1", ""], ["", "127.0.0.1:2"]], SECRET, SIZE, Diary())
