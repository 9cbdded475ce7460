import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import journal as module
from launcher.config import Environment
from launcher.journal import (
    Entry,
    Journal,
    JournalAnswers,
    JournalReader,
    KeptStatus,
    answer_path,
    read_bytes,
    write_answer,
)
from launcher.screen import make_journal_screen
from tests.fakes import FakeClock, a_decision, a_record

STATUS = KeptStatus(epoch=1, epochs=3, step=4, steps=10, loss=0.5, step_s=0.1, eta_s=2.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def entries(path: Path) -> list[Entry]:
    """All but the first, which says that the journal is open."""
    first, *others = JournalReader(lambda offset: read_bytes(path, offset)).entries()
    assert first == Entry("opened")
    return others


def test_what_is_written_is_read_in_order(path: Path) -> None:
    journal = Journal(path)
    journal.write("stage", text="probing")
    journal.output("größer\n", "stdout")
    assert entries(path) == [
        Entry("stage", {"text": "probing"}),
        Entry("output", {"text": "größer\n", "stream": "stdout"}),
    ]


def test_a_reader_gets_each_entry_once_and_whole(path: Path) -> None:
    journal = Journal(path)
    journal.write("stage", text="one")
    content = path.read_bytes()
    ends = [*range(0, len(content), 7), len(content)]
    seen: list[Entry] = []
    n_bytes = 0
    reader = JournalReader(lambda offset: content[offset:n_bytes])
    for n_bytes in ends:  # noqa: B007 - the reader sees so much of it
        seen += reader.entries()
    assert seen == [Entry("opened"), Entry("stage", {"text": "one"})]


def test_a_damaged_line_hides_no_other(path: Path) -> None:
    journal = Journal(path)
    with path.open("a") as stream:
        stream.write('{"kind": \n[]\n3\n')
    journal.write("stage", text="one")
    assert entries(path) == [Entry("stage", {"text": "one"})]


def test_where_training_stands_is_written_once_a_second(path: Path) -> None:
    clock = FakeClock()
    journal = Journal(path, clock)
    for step in range(100):
        clock.sleep(0.1)
        journal.training(replace(STATUS, step=step))
    kept = entries(path)
    assert 9 <= len(kept) <= 11
    assert KeptStatus.of(kept[0].detail) == replace(STATUS, step=0)


def test_the_end_of_an_epoch_is_always_written(path: Path) -> None:
    journal = Journal(path, FakeClock())
    for epoch in range(3):
        metrics = {"loss": 0.5 - epoch / 10}
        journal.training(replace(STATUS, epoch=epoch, epoch_ended=True, metrics=metrics))
    assert [entry.detail["epoch"] for entry in entries(path)] == [0, 1, 2]
    assert KeptStatus.of(entries(path)[1].detail).metrics == {"loss": 0.4}


def test_a_status_of_another_version_is_shown_as_far_as_it_is_known() -> None:
    assert KeptStatus.of({"epoch": 2, "of_a_later_version": 1}) == KeptStatus(epoch=2)


def test_output_without_end_is_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OUTPUT_BYTES", 10)
    journal = Journal(path)
    for _ in range(9):
        journal.output("12345\n", "stdout")
    journal.write("stage", text="evaluating")
    kinds = [entry.kind for entry in entries(path)]
    assert kinds == ["output", "output", "line", "stage"]


def test_a_journal_that_cannot_be_written_disturbs_nobody(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "gone" / "journal.jsonl")
    journal.write("stage", text="one")
    assert read_bytes(journal.path, 0) == b""


def test_a_screen_writes_all_that_it_shows(path: Path, tmp_path: Path) -> None:
    record = a_record()
    situation = record.situation()
    assert situation is not None
    screen = make_journal_screen(Journal(path), Environment(home=tmp_path, cwd=tmp_path))
    screen.stage("probing")
    screen.warn("a node is silent")
    screen.decided(a_decision(), situation)
    screen.output("hello\n", "stderr")
    screen.training(STATUS)
    screen.ended(record)
    found = entries(path)
    assert {entry.kind for entry in found} == {"stage", "line", "print", "output", "training"}
    text = "".join(entry.text for entry in found)
    words = ["probing", "a node is silent", " ✔ ", "3 workers: half", "hello", "done in", "model"]
    assert [text.index(word) for word in words] == sorted(text.index(word) for word in words)
    assert "\x1b" not in text


def test_a_screen_for_a_coloured_terminal_writes_its_codes(path: Path, tmp_path: Path) -> None:
    environment = Environment(home=tmp_path, cwd=tmp_path)
    make_journal_screen(Journal(path), environment, colour=True).ended(a_record())
    assert any("\x1b[" in entry.text for entry in entries(path))


def test_a_question_waits_for_the_answer_of_who_follows(path: Path, tmp_path: Path) -> None:
    journal = Journal(path)
    answers = JournalAnswers(journal, sleep=lambda _: write_answer(path, 0, "y\n"))
    assert answers.readline() == "y\n"
    assert entries(path) == [Entry("question", {"index": 0})]


def test_a_question_that_nobody_answers_is_answered_by_nothing(path: Path) -> None:
    clock = FakeClock()
    answers = JournalAnswers(Journal(path), limit_s=60.0, sleep=clock.sleep)
    assert answers.readline() == ""
    assert clock.now_s == pytest.approx(60, abs=1)


def test_each_question_has_its_own_answer(path: Path) -> None:
    journal = Journal(path)
    answers = JournalAnswers(journal)
    write_answer(path, 1, "no\n")
    write_answer(path, 0, "yes\n")
    assert [answers.readline(), answers.readline()] == ["yes\n", "no\n"]


def test_an_answer_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    answer_path(tmp_path / "journal.jsonl", 0).mkdir()
    with pytest.raises(OSError, match="irectory"):
        write_answer(tmp_path / "journal.jsonl", 0, "yes\n")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_journal_names_its_run_with_the_record(path: Path) -> None:
    Journal(path).begun(a_record())
    (entry,) = entries(path)
    assert (entry.kind, entry.detail["run"]) == ("begun", "brave-otter")
    assert json.dumps(entry.detail["record"]).count("brave-otter") >= 1
