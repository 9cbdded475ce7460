"""What a node's sentry can see of a loop of the script's own."""

from types import SimpleNamespace

from launcher.worker.activity import Phase
from launcher.worker.own_loop_session import OwnLoopSession


class Diary:
    """Remembers phases and progress as an `ActivityFile` does."""

    def __init__(self) -> None:
        self.phases, self.ticks = list[Phase](), 0

    def tick(self) -> None:
        self.ticks += 1

    def enter(self, phase: Phase) -> None:
        self.phases.append(phase)
        self.tick()


def a_session(diary: Diary) -> OwnLoopSession:
    parallel = SimpleNamespace(agreed=lambda: 0)
    channel = SimpleNamespace(emit=lambda *_, **__: None)
    return OwnLoopSession(parallel, channel, diary, lambda _: None, lambda: None)  # type: ignore[arg-type]


def test_a_loop_that_trains_is_watched_until_its_pass_is_over() -> None:
    diary = Diary()
    session = a_session(diary)
    session.trained(None, 0, None)
    session.ended()
    assert diary.phases == [Phase.BETWEEN, Phase.SCRIPT]


def test_every_element_that_a_loop_reads_is_progress() -> None:
    diary = Diary()
    session = a_session(diary)
    session.trained(None, 0, None)
    before = diary.ticks
    session.between()
    assert diary.ticks > before
