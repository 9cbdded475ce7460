import threading
from typing import Any

import pytest

from launcher.errors import LauncherError
from launcher.worker.exchange.transport.frame import HEADER_BYTES, Frame, Kind, parse
from launcher.worker.exchange.transport.outbox import SMALL_BYTES, Chunk, Lane, Outbox
from launcher.worker.exchange.transport.selection import AllPaths, BestPath, ShortestQueue

CHUNK_BYTES = SMALL_BYTES
LARGE = bytes(range(256)) * (4 * CHUNK_BYTES // 256)


class Wire:
    """What left a lane at once."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room, self.data = room, b""

    def send_now(self, data: bytes) -> int:
        n = min(self.room, len(data))
        self.data += data[:n]
        return n


def lane(path: int = 0, rtt_s: float = 0.001, wire: Wire | None = None) -> Lane:
    return Lane(path, rtt_s, (wire or Wire()).send_now)


def outbox(*lanes: Lane, acknowledged: bool = False, selector: Any = None) -> Outbox:
    box = Outbox(
        acknowledged=acknowledged,
        selector=selector or AllPaths(),
        balancer=ShortestQueue(),
        chunk_bytes=CHUNK_BYTES,
    )
    for one in lanes:
        box.attach(one)
    return box


def taken(box: Outbox, one: Lane) -> Chunk:
    item = box.take(one)
    assert item is not None
    assert item[1] is not None
    return item[1]


def ack(chunk: Chunk) -> Frame:
    return Frame(Kind.ACK, chunk.departure.tag, chunk.departure.sequence, chunk.offset)


def test_a_large_message_is_cut_into_chunks_that_say_where_they_belong() -> None:
    one = lane()
    box = outbox(one)
    departure = box.send(5, memoryview(LARGE + b"rest"))
    received, ends = bytearray(len(LARGE) + 4), []
    for _ in range(5):
        (header, data), chunk = box.take(one)  # type: ignore[misc]
        frame = parse(header)
        received[frame.offset : frame.offset + frame.length] = data
        ends.append(frame.total)
        box.written(one, chunk, 0.001)
    departure.wait()
    assert received == LARGE + b"rest"
    assert set(ends) == {len(received)}


def test_a_small_message_overtakes_a_large_one() -> None:
    one = lane()
    box = outbox(one)
    box.send(1, memoryview(LARGE))
    box.send(2, memoryview(b"small"))
    assert [taken(box, one).departure.tag for _ in range(2)] == [2, 1]


def test_small_messages_take_the_quickest_path() -> None:
    far, near = lane(0, 0.05), lane(1, 0.001)
    box = outbox(far, near)
    box.send(1, memoryview(b"small"))
    far.is_ending = True
    assert box.take(far) is None
    assert taken(box, near).departure.tag == 1


def test_a_small_message_leaves_at_once_when_the_path_waits_for_work() -> None:
    wire = Wire()
    one = lane(wire=wire)
    box = outbox(one)
    with waiting_thread(box, one):
        box.send(1, memoryview(b"small")).wait()
    assert wire.data[HEADER_BYTES:] == b"small"


def test_what_does_not_fit_at_once_is_left_to_the_paths_thread() -> None:
    wire = Wire(room=10)
    one = lane(wire=wire)
    box = outbox(one)
    with waiting_thread(box, one) as items:
        box.send(1, memoryview(b"small")).wait()
    ((rest,), chunk), *_ = items
    assert chunk is None
    assert (wire.data + rest)[HEADER_BYTES:] == b"small"


class waiting_thread:  # noqa: N801 - used like a function
    """A path's thread that takes what there is until the block ends."""

    def __init__(self, box: Outbox, one: Lane) -> None:
        self._box, self._lane, self._items = box, one, list[Any]()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while (item := self._box.take(self._lane)) is not None:
            self._items.append(item)

    def __enter__(self) -> list[Any]:
        self._thread.start()
        while not self._lane.is_idle:
            self._thread.join(0.001)
        return self._items

    def __exit__(self, *_: object) -> None:
        self._box.end(self._lane, b"")
        self._thread.join()


def test_chunks_of_a_broken_path_go_over_the_other_one() -> None:
    good, bad = lane(0), lane(1)
    box = outbox(good, bad, acknowledged=True)
    departure = box.send(1, memoryview(LARGE))
    chunks = [taken(box, one) for one in (good, bad, good, bad)]
    box.detach(bad)
    again = [taken(box, good) for _ in range(2)]
    assert {c.offset for c in again} == {chunks[1].offset, chunks[3].offset}
    for chunk in {chunks[0], chunks[2], *again}:
        box.acknowledge(good, ack(chunk))
    departure.wait()


def test_an_empty_message_is_sent_again_too() -> None:
    near, far = lane(0, 0.001), lane(1, 0.05)
    box = outbox(near, far, acknowledged=True)
    departure = box.send(1, memoryview(b""))
    taken(box, near)
    box.detach(near)
    box.acknowledge(far, ack(taken(box, far)))
    departure.wait()


def test_an_acknowledgement_that_comes_twice_counts_once() -> None:
    one, other = lane(0), lane(1)
    box = outbox(one, other, acknowledged=True)
    box.send(1, memoryview(LARGE))
    chunk = taken(box, one)
    for _ in range(3):
        box.acknowledge(one, ack(chunk))
    assert one.unsettled_bytes == 0
    assert not box.drain(0.0)


def test_a_path_that_is_not_selected_gets_nothing() -> None:
    near, far = lane(0, 0.001), lane(1, 0.05)
    box = outbox(near, far, acknowledged=True, selector=BestPath())
    box.send(1, memoryview(LARGE))
    far.is_ending = True
    far.control.append(b"")
    assert box.take(far) == ([b""], None)
    assert taken(box, near).departure.tag == 1


def test_all_who_wait_are_told_that_nothing_more_is_sent() -> None:
    box = outbox(lane())
    before = box.send(1, memoryview(LARGE))
    box.fail(lambda: LauncherError("lost"))
    for departure in (before, box.send(2, memoryview(b""))):
        with pytest.raises(LauncherError, match="lost"):
            departure.wait()
    assert box.drain(0.0)
