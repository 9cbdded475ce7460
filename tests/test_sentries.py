import pytest

from launcher.sentries import Sentries
from tests.fake_posts import FakePosts, an_activity
from tests.fakes import FakeClock, a_node

A, B = a_node(0), a_node(1)


class Scene:
    def __init__(self) -> None:
        self.clock, self.posts = FakeClock(), FakePosts()
        self.sentries = Sentries(self.posts, self.clock)
        self.sentries.watch([A, B], "run-1")

    def pass_s(self, seconds: float, every_s: float = 0.5) -> None:
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self.sentries.poll()
            self.clock.sleep(every_s)

    def silent(self, at_least_s: float = 4.0) -> tuple[str, ...]:
        return self.sentries.silent([A.id, B.id], at_least_s)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_each_node_is_asked_once_a_second(scene: Scene) -> None:
    scene.pass_s(10.0)
    assert scene.posts.stationed == [A.id, B.id]
    assert scene.posts.asked.count((A.id, "run-1")) in (9, 10, 11)


def test_a_node_that_stops_answering_becomes_silent(scene: Scene) -> None:
    scene.pass_s(5.0)
    assert scene.silent() == ()
    scene.posts.silent.add(B.id)
    scene.pass_s(3.0)
    assert scene.silent() == ()
    scene.pass_s(2.5)
    assert scene.silent() == (B.id,)
    scene.posts.silent.clear()
    scene.pass_s(1.0)
    assert scene.silent() == ()


def test_a_node_whose_sentry_never_came_up_is_not_called_silent(scene: Scene) -> None:
    scene.posts.silent.add(B.id)
    scene.pass_s(60.0)
    assert scene.silent() == ()


def test_whoever_was_asleep_itself_blames_nobody(scene: Scene) -> None:
    scene.pass_s(5.0)
    scene.clock.sleep(3600.0)  # a laptop's lid
    scene.sentries.poll()
    assert scene.silent() == ()


def test_a_sentry_that_died_alone_is_replaced(scene: Scene) -> None:
    scene.pass_s(5.0)
    scene.posts.broken.add(B.id)
    scene.pass_s(10.0)
    assert scene.posts.stationed.count(B.id) == 2
    assert scene.silent() == ()


def test_answers_about_an_earlier_segment_are_not_mistaken_for_this_ones(scene: Scene) -> None:
    scene.posts.activities[A.id] = (an_activity(),)
    scene.sentries.poll()
    scene.sentries.watch([A], "run-2")
    scene.clock.sleep(0.5)
    assert scene.sentries.poll() == {}
    scene.pass_s(2.0)
    assert scene.sentries.poll()[A.id] == (an_activity(),)


def test_a_node_that_is_dropped_is_asked_no_more(scene: Scene) -> None:
    scene.pass_s(2.0)
    scene.sentries.drop([B.id])
    scene.posts.asked.clear()
    scene.pass_s(5.0)
    assert {node for node, _ in scene.posts.asked} == {A.id}
    assert scene.silent() == ()
