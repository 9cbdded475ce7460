from dataclasses import replace

import pytest

from launcher.book import Book
from launcher.budget import Meter
from launcher.lookout import SegmentLookout
from launcher.record import RunEvent
from launcher.sentries import Sentries
from launcher.standing import Standing
from launcher.supervise import Lost, Move
from launcher.worker.activity import Phase
from policies.schema import Strategy
from tests.fake_posts import FakePosts, an_activity
from tests.fakes import FakeClock, FakeView, a_node, a_plan, a_record, an_event


class Scene:
    """Two workers on two nodes, looked after; time passes as told."""

    def __init__(self, strategy: Strategy = "allreduce") -> None:
        self.clock, self.posts = FakeClock(), FakePosts()
        plan, nodes = replace(a_plan(2), strategy=strategy), [a_node(0), a_node(1)]
        self.ids = [node.id for node in nodes]
        sentries = Sentries(self.posts, self.clock)
        sentries.watch(nodes, "run-1")
        for rank, node in enumerate(nodes):
            self.posts.activities[node.id] = (an_activity(rank),)
        self.book = Book(None, replace(a_record(), events=()))
        self.standing = Standing(self.book, FakeView(), Meter(self.clock), None, steps_per_epoch=10)
        self.lookout = SegmentLookout(
            "calm-fox", plan, {n.id: n for n in nodes}, sentries, clock=self.clock
        )

    def standing_events(self) -> tuple[RunEvent, ...]:
        """What was written down."""
        return self.book.record.events

    def found_after(self, seconds: float, *, steps: bool = False) -> Lost | Move | None:
        """The first finding, looking five times a second; with steps or without."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            if steps:
                total = self.standing.total_steps + 1
                self.standing.take(an_event("steps", durations_s=[0.2], total_steps=total))
            found = self.lookout.look(self.standing)
            if found is not None:
                return found
            self.clock.sleep(0.2)
        return None


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    assert made.found_after(20.0, steps=True) is None
    return made


def test_a_node_that_falls_silent_is_lost_within_five_seconds(scene: Scene) -> None:
    scene.posts.silent.add(scene.ids[1])
    found = scene.found_after(6.0)
    assert isinstance(found, Lost)
    assert found.nodes == (scene.ids[1],)
    assert found.text == "Lost 10.0.0.5: no sign of life for 4 s."
    assert scene.clock.now_s - 20.0 <= 5.5


def test_a_node_is_not_lost_while_steps_are_made(scene: Scene) -> None:
    scene.posts.silent.add(scene.ids[1])
    assert scene.found_after(60.0, steps=True) is None


def test_while_all_starts_silence_may_be_longer() -> None:
    scene = Scene()
    scene.found_after(3.0)
    scene.posts.silent.add(scene.ids[1])
    assert scene.found_after(10.0) is None
    assert isinstance(scene.found_after(10.0), Lost)


def test_a_worker_that_died_without_a_word_is_lost_at_once(scene: Scene) -> None:
    scene.posts.activities[scene.ids[1]] = (an_activity(1, is_alive=False),)
    found = scene.found_after(2.5)
    assert found == Lost("The worker of rank 1 on 10.0.0.5 died.")


def test_a_worker_that_was_stopped_is_lost_after_a_while(scene: Scene) -> None:
    scene.posts.activities[scene.ids[1]] = (an_activity(1, is_stopped=True),)
    assert scene.found_after(2.5) is None
    found = scene.found_after(4.0)
    assert found == Lost("The worker of rank 1 on 10.0.0.5 was stopped by a signal.")


def test_a_worker_that_was_stopped_for_a_moment_is_not(scene: Scene) -> None:
    scene.posts.activities[scene.ids[1]] = (an_activity(1, is_stopped=True),)
    assert scene.found_after(2.0) is None
    scene.posts.activities[scene.ids[1]] = (an_activity(1),)
    assert scene.found_after(10.0) is None


def test_training_without_progress_is_stuck_and_says_who_waits(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.posts.stacks_by_rank = {0: "Thread 0x01 …", 1: "Thread 0x02 …"}
    found = scene.found_after(70.0)
    assert isinstance(found, Lost)
    assert found.is_stuck
    assert found.text.startswith("Training is stuck: no progress for 60 s. Ranks 0 (10.0.0.4), 1")
    assert "stack of rank 1 on 10.0.0.5:\nThread 0x02 …" in caplog.text


def test_a_long_callback_is_not_stuck(scene: Scene) -> None:
    for rank, node in enumerate(scene.ids):
        scene.posts.activities[node] = (an_activity(rank, Phase.BETWEEN),)
    assert scene.found_after(1200.0) is None


def test_workers_that_wait_for_nobody_bear_the_loss_of_any_but_the_first() -> None:
    scene = Scene("decentralized")
    assert scene.found_after(20.0, steps=True) is None
    scene.posts.activities[scene.ids[1]] = (an_activity(1, is_alive=False),)
    assert scene.found_after(20.0, steps=True) is None
    (event,) = scene.standing_events()
    assert "The worker of rank 1 on 10.0.0.5 died: the others go on without it." in event.detail
    scene.posts.silent.add(scene.ids[1])
    assert scene.found_after(20.0) is None
    scene.posts.activities[scene.ids[0]] = (an_activity(0, is_alive=False),)
    assert scene.found_after(2.5) == Lost("The worker of rank 0 on 10.0.0.4 died.")


def test_a_worker_that_was_replaced_before_anyone_looked_is_told_of_too() -> None:
    scene = Scene("decentralized")
    scene.posts.activities[scene.ids[1]] = (an_activity(1, pid=7),)
    assert scene.found_after(20.0, steps=True) is None
    assert not scene.standing_events()
    scene.posts.activities[scene.ids[1]] = (an_activity(1, pid=8),)
    assert scene.found_after(20.0, steps=True) is None
    (event,) = scene.standing_events()
    assert "The worker of rank 1 on 10.0.0.5 died: the others go on without it." in event.detail
