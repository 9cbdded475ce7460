"""Ranks in one process, without sockets."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

PATIENCE_S = 300  # others may need the processors more


class Post:
    """Delivers messages between the mailboxes of one process, and remembers their sizes."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: dict[tuple[int, int, int], bytes] = {}
        self.sent: list[tuple[int, int, int]] = []  # from, to, bytes

    def put(self, source: int, to: int, tag: int, data: Any) -> None:
        with self.changed:
            key = (source, to, tag)
            assert key not in self.messages, f"tag {tag} was used twice"
            self.messages[key] = bytes(memoryview(data).cast("B")) if len(data) else b""
            self.sent.append((source, to, len(self.messages[key])))
            self.changed.notify_all()

    def get(self, key: tuple[int, int, int]) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.messages, PATIENCE_S), (
                f"no message {key}"
            )
            return self.messages.pop(key)


@dataclass
class Sent:
    """A message that has left."""

    def wait(self) -> None:
        pass


@dataclass
class Expected:
    """A message that is waited for."""

    post: Post
    key: tuple[int, int, int]
    into: Any

    def wait(self) -> None:
        data = self.post.get(self.key)
        assert len(data) == len(self.into)
        self.into[:] = np.frombuffer(data, np.uint8)


@dataclass
class FakeMailbox:
    """One rank's mailbox."""

    rank: int
    world_size: int
    post: Post

    def send(self, to: int, tag: int, data: Any) -> Sent:
        self.post.put(self.rank, to, tag, data)
        return Sent()

    def receive(self, source: int, tag: int, into: Any) -> Expected:
        return Expected(self.post, (source, self.rank, tag), into)


def on_all_ranks(n: int, work: Callable[[FakeMailbox], Any]) -> tuple[list[Any], Post]:
    """Results of `work` on n ranks at the same time, and what was posted."""
    post = Post()
    with ThreadPoolExecutor(n) as pool:
        futures = [pool.submit(work, FakeMailbox(rank, n, post)) for rank in range(n)]
        results = [future.result(timeout=2 * PATIENCE_S) for future in futures]
    assert not post.messages, "messages that nobody waited for"
    return results, post
