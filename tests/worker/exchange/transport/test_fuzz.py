"""Random and mutated bytes against everything that reads from the network."""

import random
import tracemalloc

import pytest

from launcher.errors import LauncherError
from launcher.worker.exchange.transport.frame import HEADER_BYTES, Frame, FrameError, Kind, parse
from launcher.worker.exchange.transport.handshake import (
    DATA,
    Acceptance,
    HandshakeError,
    Hello,
    Introduction,
)
from launcher.worker.exchange.transport.inbox import Inbox

SECRET = b"s" * 32
N_INPUTS = 10_000
EARLY_BYTES = 1 << 16


class Ignored:
    """A stream that cannot be abandoned."""

    def abandon(self, reason: str) -> None:
        pass


def mutated(rng: random.Random, valid: bytes) -> bytes:
    """Valid bytes with some changed, cut, or repeated; or random ones."""
    data = bytearray(valid)
    for _ in range(rng.randrange(1, 6)):
        choice = rng.randrange(5)
        if choice == 0:
            return rng.randbytes(rng.randrange(200))
        if choice == 1 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif choice == 2:
            del data[rng.randrange(len(data) + 1) :]
        elif choice == 3:
            data += data[rng.randrange(len(data) + 1) :]
        elif data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def test_no_input_gets_through_the_handshake_or_breaks_it() -> None:
    rng, refused = random.Random(1), 0
    for _ in range(N_INPUTS):
        theirs = Acceptance(SECRET, 0, 3, 2, rng.randbytes(32))
        ours = Introduction(SECRET, Hello(DATA, 1, 2, 0), rng.randbytes(32))
        try:
            first = mutated(rng, ours.first) if rng.random() < 0.5 else ours.first
            challenge = theirs.feed(first)
            if challenge:
                theirs.feed(mutated(rng, ours.answer(challenge)))
        except HandshakeError:
            refused += 1
        assert theirs.hello is None or theirs.hello.source == 2
    assert refused > N_INPUTS / 2


def test_no_header_breaks_the_parser() -> None:
    rng, refused = random.Random(2), 0
    for _ in range(N_INPUTS):
        valid = Frame(Kind.DATA, rng.getrandbits(40), rng.getrandbits(20), 0, 100, 100).packed()
        data = mutated(rng, valid)[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
        try:
            frame = parse(data)
            assert frame.length <= 1 << 20
        except FrameError:
            refused += 1
    assert refused > N_INPUTS / 10


def test_no_sequence_of_frames_takes_more_memory_than_allowed() -> None:
    rng, writer = random.Random(3), Ignored()
    inbox = Inbox(1, EARLY_BYTES)
    inbox.fail(lambda: LauncherError("so that no stream waits for room"))
    tracemalloc.start()
    try:
        for _ in range(N_INPUTS):
            feed_one(inbox, rng, writer)
        assert tracemalloc.get_traced_memory()[1] < 16 * EARLY_BYTES + (4 << 20)
    finally:
        tracemalloc.stop()


def feed_one(inbox: Inbox, rng: random.Random, writer: Ignored) -> None:
    total = rng.choice((0, 1, 100, 5000, 1 << 39))
    length = min(total, rng.choice((1, 100, 5000)))
    frame = Frame(
        Kind.DATA,
        rng.randrange(30),
        rng.randrange(60),
        rng.randrange(total - length + 1) if total < 1 << 20 else 0,
        length,
        total,
    )
    try:
        into = inbox.begin(frame, writer)
        if into is not None:
            inbox.end(frame, writer, complete=rng.random() < 0.9)
    except (FrameError, LauncherError):
        pass


@pytest.mark.parametrize("total", [1 << 39, (1 << 16) + 1])
def test_a_message_too_large_to_keep_takes_no_memory(total: int) -> None:
    inbox = Inbox(1, EARLY_BYTES)
    inbox.fail(lambda: LauncherError("closed"))
    with pytest.raises(LauncherError, match="closed"):
        inbox.begin(Frame(Kind.DATA, 1, 0, 0, 100, total), Ignored())
