import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from launcher.config import Environment
from launcher.errors import TrainingFailedError
from launcher.follow import FileFollowed, Follower, Viewer, tail
from launcher.follow_record import RecordFollowed
from launcher.journal import Entry, Journal, KeptStatus
from launcher.ownership import SILENT_S, this_driver
from launcher.progress import Progress
from launcher.record import RunEvent
from launcher.runs import RunIndex, RunStore
from launcher.storage import Storage
from tests.fakes import NOW, FakeClock, a_record

RESULT = Entry("result", {"exit_code": 5, "text": ""})


class FakeFollowed:
    """Shows what it was given, a batch for each look."""

    def __init__(self, *batches: Sequence[Entry], dies: bool = False) -> None:
        self._batches, self._dies = [list(batch) for batch in batches], dies
        self.answers: list[tuple[int, str]] = []

    def entries(self) -> list[Entry]:
        return self._batches.pop(0) if self._batches else []

    def is_alive(self) -> bool:
        return bool(self._batches) or not self._dies

    def stop(self) -> None:
        raise AssertionError("nobody asked for it")

    def answer(self, index: int, text: str) -> None:
        self.answers.append((index, text))


class Shown:
    """A viewer on streams that are kept."""

    def __init__(self, *, colour: bool = False, answer: str | None = None) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        lines = Progress(
            self.out, self.err, live=False, shared=False, clock=FakeClock(), width=lambda: 80
        )
        ask = None if answer is None else lambda: answer
        self.viewer = Viewer(lines, self._result, colour, ask)

    def _result(self, text: str) -> None:
        self.out.write(text)


def follow(followed: FakeFollowed, shown: Shown, *kinds: str) -> Entry:
    clock = FakeClock()
    return Follower(followed, shown.viewer, "brave-otter", sleep=clock.sleep, clock=clock).until(
        *kinds
    )


def output(text: str) -> Entry:
    return Entry("output", {"text": text, "stream": "stdout"})


def test_a_run_elsewhere_is_shown_as_if_it_ran_here() -> None:
    shown = Shown()
    status = {"epoch": 1, "epochs": 3, "step": 0, "cost_usd": 0.2, "epoch_ended": True}
    batch = [
        Entry("opened"),
        Entry("stage", {"text": "probing"}),
        Entry("line", {"text": "launch: warning: a node is silent"}),
        output("hello\n"),
        Entry("training", status),
        Entry("print", {"text": "done in 3 s\n"}),
        Entry("of a later version", {"x": 1}),
        RESULT,
    ]
    assert follow(FakeFollowed(batch), shown, "result") == RESULT
    assert shown.out.getvalue() == "hello\ndone in 3 s\n"
    lines = shown.err.getvalue().splitlines()
    assert lines[:2] == ["launch: probing", "launch: warning: a node is silent"]
    assert "epoch 1/3 · done" in lines[2]


def test_following_ends_at_what_is_waited_for_and_goes_on_from_there() -> None:
    shown = Shown()
    followed = FakeFollowed([output("1\n"), Entry("begun"), output("2\n"), RESULT])
    follower = Follower(followed, shown.viewer, "brave-otter")
    assert follower.until("begun", "result").kind == "begun"
    assert shown.out.getvalue() == "1\n"
    assert follower.until("result") == RESULT
    assert shown.out.getvalue() == "1\n2\n"


def test_a_driver_that_died_is_told_apart_from_one_that_is_silent() -> None:
    silent = [[]] * 100
    assert follow(FakeFollowed(*silent, [RESULT]), Shown(), "result") == RESULT
    with pytest.raises(TrainingFailedError, match=r"brave-otter is lost.*launch resume brave-o"):
        follow(FakeFollowed(*silent, dies=True), Shown(), "result")


def test_the_last_words_of_a_driver_are_not_missed() -> None:
    class LastWords(FakeFollowed):
        def is_alive(self) -> bool:
            self._batches = [[RESULT]]  # written between the look and the question
            return False

    assert follow(LastWords(), Shown(), "result") == RESULT


@pytest.mark.parametrize(("colour", "text"), [(True, "\x1b[1mn\x1b[0m\n"), (False, "n\n")])
def test_tables_are_coloured_only_where_that_can_be_shown(colour: bool, text: str) -> None:
    shown = Shown(colour=colour)
    follow(FakeFollowed([Entry("print", {"text": "\x1b[1mn\x1b[0m\n"}), RESULT]), shown, "result")
    assert shown.out.getvalue() == text


def test_a_question_is_answered_by_the_person_who_follows() -> None:
    batch = [output("Start? [y/N] "), Entry("question", {"index": 3}), RESULT]
    followed = FakeFollowed(batch)
    follow(followed, Shown(answer="y\n"), "result")
    assert followed.answers == [(3, "y\n")]


def test_without_a_person_a_question_is_left_to_another() -> None:
    followed = FakeFollowed([Entry("question", {"index": 0}), RESULT])
    follow(followed, Shown(), "result")
    assert followed.answers == []


def test_of_the_past_the_last_lines_and_the_state_are_shown() -> None:
    past = [
        Entry("print", {"text": "a table\n"}),
        Entry("stage", {"text": "probing"}),
        output("".join(f"{n}\n" for n in range(100))),
        Entry("line", {"text": "launch: warning: x"}),
        Entry("training", {"step": 1}),
        Entry("training", {"step": 2}),
    ]
    kept = tail(past, n_lines=4)
    assert kept == [
        output("97\n98\n99\n"),
        Entry("line", {"text": "launch: warning: x"}),
        Entry("training", {"step": 2}),
    ]


def test_of_a_run_that_has_ended_no_state_is_shown() -> None:
    past = [Entry("training", {"step": 2}), Entry("print", {"text": "done\n"}), RESULT]
    assert tail(past) == [Entry("print", {"text": "done\n"})]
    shown = Shown()
    assert Follower(FakeFollowed(past), shown.viewer).catch_up() == RESULT


def test_a_journal_on_this_machine_is_followed_while_it_is_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    driver = this_driver(str(journal.path))
    followed = FileFollowed(journal.path, driver.process, lambda: None)
    assert followed.entries() == [Entry("opened")]
    journal.training(KeptStatus(epoch=2))
    (entry,) = followed.entries()
    assert entry.detail["epoch"] == 2
    assert followed.entries() == []
    assert followed.is_alive()
    gone = replace(driver.process, started="1")
    assert not FileFollowed(journal.path, gone, lambda: None).is_alive()


# ---- by the record alone


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Storage.open(str(tmp_path / "launch")), RunIndex(tmp_path / "index"))


def test_a_run_out_of_reach_is_followed_by_its_record(store: RunStore, tmp_path: Path) -> None:
    clock = FakeClock()
    done = a_record(storage=store.storage.uri)
    record = replace(done, status="running", exit_code=None, outcome=None)
    store.save(record)
    environment = Environment(home=tmp_path, cwd=tmp_path)
    followed = RecordFollowed(store, "brave-otter", environment, clock)
    first = followed.entries()
    assert [entry.kind for entry in first] == ["line", "line"]
    assert first[0].text == "launch: warning: a node is silent"
    assert first[1].text.startswith("launch: 15,600 steps, $0.43")

    event = RunEvent(NOW.isoformat(), "stage", "evaluating")
    store.save(replace(record, events=(*record.events, event)))
    assert followed.entries() == []  # storage is not asked all the time
    clock.sleep(5)
    assert followed.entries() == [Entry("stage", {"text": "evaluating"})]

    store.save(done)
    clock.sleep(5)
    *_, outcome, result = followed.entries()
    assert outcome.text.startswith("done in 18 min 52 s")
    assert result == Entry("result", {"exit_code": 0, "text": ""})


def test_a_record_that_does_not_change_any_more_is_of_a_run_that_is_lost(
    store: RunStore, tmp_path: Path
) -> None:
    clock = FakeClock()
    record = replace(a_record(), status="running")
    environment = Environment(home=tmp_path, cwd=tmp_path)
    followed = RecordFollowed(store, "brave-otter", environment, clock)
    for beat in range(20):
        store.save(record.beaten(NOW + timedelta(seconds=10 * beat)))
        followed.entries()
        clock.sleep(10)
        assert followed.is_alive()
    clock.sleep(SILENT_S)
    followed.entries()
    assert not followed.is_alive()


def test_a_run_out_of_reach_is_stopped_through_storage(store: RunStore, tmp_path: Path) -> None:
    store.save(replace(a_record(), status="running"))
    ownership = store.ownership("brave-otter")
    ownership.take(1, this_driver())
    environment = Environment(home=tmp_path, cwd=tmp_path)
    RecordFollowed(store, "brave-otter", environment).stop()
    assert ownership.is_asked_to_stop(1)
