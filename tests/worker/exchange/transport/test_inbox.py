import threading

import pytest

from launcher.errors import LauncherError, TrainingFailedError
from launcher.worker.exchange.transport.frame import Frame, FrameError, Kind
from launcher.worker.exchange.transport.inbox import OVERHEAD_BYTES, Inbox


class Stream:
    """A stream that remembers whether it was abandoned."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def abandon(self, reason: str) -> None:
        self.reasons.append(reason)


def chunk(
    data: bytes, offset: int = 0, total: int | None = None, *, tag: int = 1, n: int = 0
) -> tuple:
    total = len(data) if total is None else total
    return Frame(Kind.DATA, tag, n, offset, len(data), total), data


def write(inbox: Inbox, frame: Frame, data: bytes, stream: Stream | None = None) -> bool:
    """One chunk; whether it was of use."""
    stream = stream or Stream()
    into = inbox.begin(frame, stream)
    if into is None:
        return False
    into[:] = data
    inbox.end(frame, stream, complete=True)
    return True


def test_a_message_goes_straight_into_the_buffer() -> None:
    inbox, into = Inbox(1, 1000), bytearray(6)
    arrival = inbox.post(1, memoryview(into))
    write(inbox, *chunk(b"def", 3, 6))
    assert into == b"\0\0\0def"
    assert not arrival.is_over
    write(inbox, *chunk(b"abc", 0, 6))
    arrival.wait()
    assert into == b"abcdef"


def test_a_message_that_comes_early_is_kept() -> None:
    inbox, into = Inbox(1, 1000), bytearray(3)
    write(inbox, *chunk(b"abc"))
    inbox.post(1, memoryview(into)).wait()
    assert into == b"abc"


def test_a_message_may_be_waited_for_when_half_of_it_is_there() -> None:
    inbox, into = Inbox(1, 1000), bytearray(6)
    write(inbox, *chunk(b"abc", 0, 6))
    arrival = inbox.post(1, memoryview(into))
    assert not arrival.is_over
    write(inbox, *chunk(b"def", 3, 6))
    arrival.wait()
    assert into == b"abcdef"


def test_an_empty_message_arrives() -> None:
    inbox = Inbox(1, 1000)
    write(inbox, *chunk(b""))
    inbox.post(1, memoryview(bytearray())).wait()


def test_a_chunk_that_comes_twice_is_dropped() -> None:
    inbox, into = Inbox(1, 1000), bytearray(6)
    arrival = inbox.post(1, memoryview(into))
    assert write(inbox, *chunk(b"abc", 0, 6))
    assert not write(inbox, *chunk(b"abc", 0, 6))
    assert write(inbox, *chunk(b"def", 3, 6))
    arrival.wait()
    assert not write(inbox, *chunk(b"def", 3, 6))


def test_a_buffer_is_not_handed_over_while_a_broken_path_still_writes_to_it() -> None:
    inbox, into, broken = Inbox(1, 1000), bytearray(3), Stream()
    arrival = inbox.post(1, memoryview(into))
    frame, data = chunk(b"abc")
    assert inbox.begin(frame, broken) is not None
    write(inbox, frame, data)
    assert not arrival.is_over
    assert broken.reasons == ["its chunk came over another path"]
    inbox.end(frame, broken, complete=False)
    arrival.wait()


def test_a_chunk_of_which_only_a_part_came_is_not_counted() -> None:
    inbox, stream = Inbox(1, 1000), Stream()
    arrival = inbox.post(1, memoryview(bytearray(3)))
    frame, data = chunk(b"abc")
    inbox.begin(frame, stream)
    inbox.end(frame, stream, complete=False)
    assert not arrival.is_over
    write(inbox, frame, data)
    arrival.wait()


def test_a_stream_waits_while_there_is_no_room_and_goes_on_when_somebody_waits() -> None:
    inbox, into = Inbox(1, 100 + OVERHEAD_BYTES), bytearray(100)
    write(inbox, *chunk(b"a" * 60, tag=1, n=0))
    thread = threading.Thread(target=write, args=(inbox, *chunk(b"b" * 100, tag=2, n=1)))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    inbox.post(2, memoryview(into)).wait()
    thread.join()
    assert into == b"b" * 100


def test_room_comes_back_when_an_early_message_is_taken() -> None:
    inbox = Inbox(1, 100 + OVERHEAD_BYTES)
    for n in range(5):
        write(inbox, *chunk(b"a" * 100, tag=n, n=n))
        inbox.post(n, memoryview(bytearray(100))).wait()


def test_a_message_of_another_size_fails_the_wait_and_no_other() -> None:
    inbox, into = Inbox(3, 1000), bytearray(2)
    wrong, right = inbox.post(1, memoryview(bytearray(5))), inbox.post(2, memoryview(into))
    assert not write(inbox, *chunk(b"abc", tag=1, n=0))
    write(inbox, *chunk(b"xy", tag=2, n=1))
    right.wait()
    with pytest.raises(TrainingFailedError, match="rank 3 sent 3 bytes where 5 were expected"):
        wrong.wait()


def test_an_early_message_of_another_size_fails_the_wait() -> None:
    inbox = Inbox(3, 1000)
    write(inbox, *chunk(b"abc"))
    with pytest.raises(TrainingFailedError, match="rank 3 sent 3 bytes where 5 were expected"):
        inbox.post(1, memoryview(bytearray(5))).wait()


def test_a_tag_cannot_be_waited_for_twice() -> None:
    inbox = Inbox(3, 1000)
    inbox.post(1, memoryview(bytearray()))
    with pytest.raises(ValueError, match="tag 1 of rank 3 is waited for already"):
        inbox.post(1, memoryview(bytearray()))


def test_two_messages_of_one_tag_are_refused() -> None:
    inbox = Inbox(3, 1 << 20)
    write(inbox, *chunk(b"abc", tag=1, n=0))
    with pytest.raises(FrameError, match="second message of tag 1"):
        write(inbox, *chunk(b"abc", tag=1, n=1))


def test_a_chunk_that_contradicts_its_message_is_refused() -> None:
    inbox = Inbox(3, 1 << 20)
    write(inbox, *chunk(b"abc", 0, 6))
    with pytest.raises(FrameError, match="a chunk of another message"):
        write(inbox, *chunk(b"abc", 3, 7))


def test_all_who_wait_are_told_that_nothing_will_come() -> None:
    inbox = Inbox(3, 1000)
    write(inbox, *chunk(b"abc", 0, 6, tag=2))
    waiting = [inbox.post(1, memoryview(bytearray())), inbox.post(2, memoryview(bytearray(6)))]
    inbox.fail(lambda: LauncherError("lost"))
    for arrival in [*waiting, inbox.post(5, memoryview(bytearray()))]:
        with pytest.raises(LauncherError, match="lost"):
            arrival.wait()


def test_what_has_come_can_be_had_after_a_loss() -> None:
    inbox, into = Inbox(3, 1000), bytearray(3)
    write(inbox, *chunk(b"abc"))
    inbox.fail(lambda: LauncherError("lost"))
    inbox.post(1, memoryview(into)).wait()
    assert into == b"abc"
