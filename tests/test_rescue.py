import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from launcher.book import Book
from launcher.keeper import Keeper
from launcher.record import load_record
from launcher.rescue import Rescue, Settled
from launcher.runs import RunIndex, RunStore
from launcher.storage import Storage
from tests.fakes import a_record, actor


class Desk:
    """A run in a storage that can be broken and mended, and two places to rescue it to."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "storage"
        self.storage = Storage.open(str(self.root))
        self.folder = self.storage.folder("runs/brave-otter")
        self.places = (tmp_path / "home" / "rescued", tmp_path / "tmp" / "rescued")
        self.rescue = Rescue(self.folder, self.places)
        self.keeper = Keeper(str(self.root), "brave-otter")
        self.stages: list[str] = []
        self._elsewhere = tmp_path / "elsewhere"

    def fail(self) -> None:
        if self.root.exists():
            self.root.rename(self._elsewhere)
        self.root.write_text("in the way")

    def mend(self) -> None:
        self.root.unlink()
        if self._elsewhere.exists():
            self._elsewhere.rename(self.root)

    def settle(self, wait_s: float = 0.0) -> Settled:
        return self.rescue.files(
            actor(self.keeper), wait_s, self.stages.append, get=lambda answer: answer
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_where_storage_has_all_there_is_nothing_to_say(desk: Desk) -> None:
    desk.keeper.keep_model("model.keras", b"model")
    settled = desk.settle()
    assert (settled.text, settled.places, desk.stages) == (None, {}, [])
    assert [event.kind for event in settled.events] == ["model"]


def test_what_storage_did_not_take_is_kept_here_and_said(desk: Desk) -> None:
    desk.fail()
    desk.keeper.keep_files("aa", b"zip", 1)
    desk.keeper.keep_checkpoint({"epoch": 1}, b"1", "aa")
    desk.keeper.keep_model("model.keras", b"model")
    settled = desk.settle()
    home = desk.places[0]
    assert settled.places["model.keras"] == home / "model.keras"
    assert len(settled.places) == 3
    assert settled.text is not None
    assert settled.text.startswith("Storage did not take checkpoints/files-aa.zip, ")
    assert "Not a directory" in settled.text
    assert f"It is in {home}: " in settled.text
    assert "model.keras" in desk.stages[0]
    desk.mend()
    shutil.copytree(home, desk.folder.root)  # as the text says
    assert Storage.open(str(desk.root)).folder("runs/brave-otter").read("model.keras") == b"model"


def test_a_storage_that_works_again_in_time_has_all(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.fail()
    desk.keeper.keep_model("model.keras", b"model")
    unwritten = desk.keeper.unwritten

    def mended_meanwhile(timeout_s: float) -> Any:
        if timeout_s > 0 and desk.root.is_file():
            desk.mend()
        return unwritten(timeout_s)

    monkeypatch.setattr(desk.keeper, "unwritten", mended_meanwhile)
    settled = desk.settle(wait_s=60.0)
    assert settled.text is None
    assert [event.kind for event in settled.events] == ["warning", "stage", "model"]
    assert desk.folder.read("model.keras") == b"model"


def test_of_two_places_the_first_that_can_be_written_counts(desk: Desk) -> None:
    desk.fail()
    desk.keeper.keep_model("model.keras", b"model")
    desk.places[0].parent.write_text("in the way")
    settled = desk.settle()
    assert settled.places == {"model.keras": desk.places[1] / "model.keras"}


def test_what_is_lost_for_good_is_said_too(desk: Desk) -> None:
    desk.fail()
    desk.keeper.keep_model("model.keras", b"model")
    for place in desk.places:
        place.parent.write_text("in the way")
    settled = desk.settle()
    assert settled.places == {}
    assert settled.text is not None
    assert settled.text.endswith("Lost, as nothing here could be written either: model.keras.")


def test_a_keeper_that_has_died_is_told(desk: Desk) -> None:
    def died(answer: object) -> object:
        raise ray.exceptions.RayActorError

    settled = desk.rescue.files(actor(desk.keeper), 0.0, desk.stages.append, get=died)
    assert settled.text is not None
    assert settled.text.startswith("The keeper of checkpoints has died: ")


def test_a_record_that_storage_did_not_take_is_kept_here(desk: Desk, tmp_path: Path) -> None:
    store = RunStore(desk.storage, RunIndex(tmp_path / "index"))
    book = Book(store, a_record(), lambda _: None, patience_s=60.0)
    book.write(book.record)
    assert desk.rescue.record(book, 0.0) is None
    desk.fail()
    book.write(replace(book.record, status="interrupted"))
    text = desk.rescue.record(book, 0.0)
    assert text is not None
    assert text.startswith("Storage did not take run.json: ")
    kept = load_record((desk.places[0] / "run.json").read_bytes(), "run.json")
    assert kept.status == "interrupted"
