import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.worker.exchange.transport.handshake import (
    DATA,
    PULSE,
    WELCOME,
    Acceptance,
    HandshakeError,
    Hello,
    Introduction,
    introduce,
)

SECRET, OTHER = b"s" * 32, b"o" * 32
NONCE, NONCE_THERE = b"n" * 32, b"m" * 32


def acceptance(secret: bytes = SECRET) -> Acceptance:
    return Acceptance(secret, rank=0, world_size=3, n_paths=2, nonce=NONCE_THERE)


def hello(kind: int = DATA, path: int = 1, source: int = 2, target: int = 0) -> Hello:
    return Hello(kind, path, source, target)


def test_both_sides_believe_each_other() -> None:
    ours, theirs = Introduction(SECRET, hello(PULSE), NONCE), acceptance()
    challenge = theirs.feed(ours.first)
    assert theirs.hello is None
    assert theirs.feed(ours.answer(challenge)) == WELCOME
    assert theirs.hello is not None
    assert (theirs.hello.source, theirs.hello.path, theirs.hello.kind) == (2, 1, PULSE)
    assert theirs.wanted == 0


def test_bytes_may_come_one_by_one() -> None:
    ours, theirs = Introduction(SECRET, hello(), NONCE), acceptance()
    challenge = b"".join(theirs.feed(bytes([byte])) for byte in ours.first)
    assert b"".join(theirs.feed(bytes([b])) for b in ours.answer(challenge)) == WELCOME


def test_an_acceptor_without_the_secret_is_refused() -> None:
    ours = Introduction(SECRET, hello(), NONCE)
    with pytest.raises(HandshakeError, match="does not know the secret"):
        ours.answer(acceptance(OTHER).feed(ours.first))


def test_a_connector_without_the_secret_is_refused() -> None:
    theirs = acceptance()
    theirs.feed(Introduction(OTHER, hello(), NONCE).first)
    with pytest.raises(HandshakeError, match="does not know the secret"):
        theirs.feed(b"\0" * 32)


def test_the_acceptors_own_answer_cannot_be_sent_back_to_it() -> None:
    theirs = acceptance()
    challenge = theirs.feed(Introduction(SECRET, hello(), NONCE).first)
    with pytest.raises(HandshakeError, match="does not know the secret"):
        theirs.feed(challenge[32:])


def test_a_recorded_proof_is_of_no_use() -> None:
    ours, theirs = Introduction(SECRET, hello(), NONCE), acceptance()
    proof = ours.answer(theirs.feed(ours.first))
    later = Acceptance(SECRET, 0, 3, 2, b"l" * 32)
    later.feed(ours.first)
    with pytest.raises(HandshakeError, match="does not know the secret"):
        later.feed(proof)


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (hello(kind=7), "kind 7"),
        (hello(path=2), "over path 2"),
        (hello(source=3), "rank 3 asks"),
        (hello(source=0), "rank 0 asks for rank 0"),
        (hello(target=1), "asks for rank 1 at rank 0"),
    ],
)
def test_a_greeting_that_does_not_fit_the_run_is_refused(greeting: Hello, message: str) -> None:
    with pytest.raises(HandshakeError, match=message):
        acceptance().feed(Introduction(SECRET, greeting, NONCE).first)


def test_another_protocol_is_refused_by_name() -> None:
    first = Introduction(SECRET, hello(), NONCE).first
    with pytest.raises(HandshakeError, match="protocol b'launch-exchange9'"):
        acceptance().feed(b"launch-exchange9" + first[16:])


def test_more_bytes_than_wanted_are_refused() -> None:
    with pytest.raises(HandshakeError, match="more bytes"):
        acceptance().feed(b"x" * 10_000)


@given(st.binary(max_size=200))
def test_no_random_bytes_get_in(data: bytes) -> None:
    theirs = acceptance()
    with pytest.raises(HandshakeError):
        theirs.feed(data + b"\0" * 200)
    assert theirs.hello is None


def test_an_acceptor_that_hangs_up_is_noticed() -> None:
    here, there = socket.socketpair()
    with here:
        threading.Thread(target=lambda: (there.recv(1000), there.close())).start()
        with pytest.raises(ConnectionResetError, match="closed the connection in the handshake"):
            introduce(here, SECRET, hello())


def test_an_acceptor_that_says_no_welcome_is_refused() -> None:
    here, there = socket.socketpair()

    def answer() -> None:
        theirs = acceptance()
        there.sendall(theirs.feed(there.recv(theirs.wanted)))
        theirs.feed(there.recv(theirs.wanted))
        there.sendall(b"?")

    with here, there:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HandshakeError, match="did not say welcome"):
            introduce(here, SECRET, hello())
        thread.join()
