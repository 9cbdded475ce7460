import threading
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from launcher.errors import StorageError
from launcher.worker.channel import Channel
from launcher.worker.job import ORDER_CHECKPOINT, ORDER_STOP
from tests.fakes import FakeKeeper, soon


class Line:
    """A channel to a fake keeper, and what was waited for on it."""

    def __init__(self) -> None:
        self.keeper, self.waited_for = FakeKeeper(), []
        self.channel = Channel(self.keeper, self.get)

    def get(self, answer: Any) -> Any:
        self.waited_for.append(answer)
        return answer


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    if not line.keeper.is_gone:
        line.channel.close()


def test_events_are_sent_by_themselves(line: Line) -> None:
    line.channel.emit("stage", text="running the script")
    assert soon(lambda: line.keeper.calls == [("stage", {"text": "running the script"})])


def test_events_arrive_in_order_and_output_in_few_pieces(line: Line) -> None:
    for i in range(100):
        line.channel.text("stdout", f"{i} ")
    line.channel.text("stderr", "oh")
    line.channel.emit("steps", durations_s=[0.1])
    line.channel.text("stdout", "end")
    line.channel.flush()
    told = line.keeper.calls
    text = "".join(detail["text"] for _, detail in told if detail.get("stream") == "stdout")
    assert text == " ".join(map(str, range(100))) + " end"
    kinds = [(kind, detail.get("stream")) for kind, detail in told]
    tail = [("output", "stderr"), ("steps", None), ("output", "stdout")]
    assert kinds[-3:] == tail
    assert len(kinds) < 20


def test_output_from_several_threads_arrives_whole(line: Line) -> None:
    def talk(word: str) -> None:
        for _ in range(500):
            line.channel.text("stdout", word)

    threads = [threading.Thread(target=talk, args=(word,)) for word in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    line.channel.flush()
    text = "".join(detail["text"] for _, detail in line.keeper.calls)
    assert sorted(text) == sorted("abc" * 500)


def test_a_call_comes_after_what_was_emitted_before(line: Line) -> None:
    line.channel.emit("stage", text="saving")
    line.channel.call("keep_files", "k", b"zip", 3, True, wait=True)
    assert [kind for kind, _ in line.keeper.calls] == ["stage", "artifacts"]
    assert line.waited_for[-1] == "artifacts kept"


def test_a_call_need_not_be_waited_for(line: Line) -> None:
    line.channel.call("keep_files", "k", b"zip", 3, True, wait=False)
    assert line.keeper.calls == [("artifacts", {"files": 3, "bytes": 3, "key": "k"})]
    assert "artifacts kept" not in line.waited_for


def test_a_storage_that_failed_is_what_the_caller_hears_of(line: Line) -> None:
    failed = ray.exceptions.RayTaskError("keep", "Traceback …", StorageError("the disk is full"))

    def get(answer: Any) -> Any:
        if answer == "artifacts kept":
            raise failed.as_instanceof_cause()
        return answer

    channel = Channel(line.keeper, get)
    with pytest.raises(StorageError, match=r"^the disk is full$"):
        channel.call("keep_files", "k", b"zip", 3, True, wait=True)
    channel.close()


def test_each_new_order_is_passed_on_once(line: Line) -> None:
    orders: list[int] = []
    line.channel.obey(orders.append)
    for order in (ORDER_CHECKPOINT, ORDER_CHECKPOINT, ORDER_STOP, ORDER_STOP):
        line.keeper.order = order
        line.channel.flush()
    assert orders == [ORDER_CHECKPOINT, ORDER_STOP]


def test_an_order_arrives_without_anything_to_report(line: Line) -> None:
    orders: list[int] = []
    line.channel.obey(orders.append)
    line.keeper.order = ORDER_STOP
    assert soon(lambda: orders == [ORDER_STOP])


def test_an_order_that_came_before_is_obeyed_too(line: Line) -> None:
    line.keeper.order = ORDER_STOP
    line.channel.flush()
    orders: list[int] = []
    line.channel.obey(orders.append)
    assert orders == [ORDER_STOP]


def test_closing_sends_what_is_left(line: Line) -> None:
    line.channel.emit("end", how="done")
    line.channel.close()
    assert line.keeper.calls == [("end", {"how": "done"})]
    line.keeper.is_gone = True


def test_what_is_under_way_arrives_before_it_closes(line: Line) -> None:
    line.channel.before_closing(lambda: line.channel.emit("stage", text="the last thing"))
    line.channel.close()
    assert line.keeper.calls == [("stage", {"text": "the last thing"})]
    line.keeper.is_gone = True


def test_a_keeper_that_is_gone_ends_the_sending_quietly(line: Line) -> None:
    line.keeper.is_gone = True
    assert soon(lambda: not line.channel._thread.is_alive())


def test_ranks_other_than_0_say_nothing_and_hear_nothing() -> None:
    channel = Channel(None)
    channel.emit("stage", text="quiet")
    channel.call("keep_files", "k", b"", 0, True, wait=True)
    channel.obey(pytest.fail)
    channel.flush()
    channel.close()
