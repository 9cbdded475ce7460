"""Storage that fills up, turns read-only or vanishes in mid-run: with real file systems."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launcher import book as book_module
from launcher import keeper as keeper_module
from launcher.book import Book
from launcher.keeper import Keeper
from launcher.record import RunRecord, Segment
from launcher.runs import RunIndex, RunStore
from launcher.storage import Storage
from launcher.stored import newest_checkpoint
from launcher.worker import snapshot
from launcher.worker.job import ORDER_STOP
from tests.fakes import a_plan, a_record, an_event
from tests.mounts import Mount, mounted, mounted_disk, needs_root

pytestmark = needs_root

SIZE = 1 << 20
PATIENCE_S = 0.3  # for storage that hangs
WAIT_S = 60.0  # for what comes at all, however busy the machine is


class Run:
    """A run whose storage is a file system of its own."""

    def __init__(self, place: Path, index: Path, patience_s: float = WAIT_S) -> None:
        storage = Storage.open(str(place))
        self.folder = storage.folder("runs/brave-otter")
        self.folder.write("owner", b"me")
        self.keeper = Keeper(str(place), "brave-otter")
        self.warnings: list[str] = []
        self.store = RunStore(storage, RunIndex(index))
        self.book = Book(
            self.store,
            a_record(),
            self.warnings.append,
            patience_s=patience_s,
            first_pause_s=0.05,
        )

    def checkpoint(self, epoch: int, n_bytes: int = 100_000) -> None:
        position = {"fit": 0, "epoch": epoch, "step": 0}
        state = {"position": position, "weights": np.zeros(n_bytes, np.uint8)}
        self.keeper.keep_checkpoint(position, snapshot.dump(state))

    def write_record(self, status: str) -> None:
        record = replace(self.book.record, status=status)  # type: ignore[arg-type]
        self.book.write(record)

    def told(self) -> list[str]:
        """What the keeper warned of, and whether it said that storage works again."""
        return [
            event.detail["text"]
            for event in self.keeper.drain(0)
            if event.kind in ("warning", "stage")
        ]

    def newest(self) -> int:
        """The epoch of the newest whole checkpoint; fails if any is damaged."""
        found = newest_checkpoint(self.folder, pytest.fail)
        assert found is not None
        return int(found.position["epoch"])

    def caught_up(self) -> None:
        """Storage gets all that it has missed."""
        assert self.keeper.unwritten(WAIT_S)[0] == ()
        assert self.book.settle(WAIT_S) is None


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    with mounted(tmp_path / "storage", SIZE) as mount:
        yield mount


@pytest.fixture
def run(mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(keeper_module, "PATIENCE_S", WAIT_S)
    return Run(mount.path, tmp_path / "index")


def test_a_full_storage_is_told_and_catches_up_when_there_is_room(run: Run, mount: Mount) -> None:
    run.checkpoint(0)
    run.write_record("running")
    mount.fill()
    for epoch in (1, 2):
        run.checkpoint(epoch)
    run.write_record("done")
    (text,) = run.told()
    assert "No space left on device" in text
    assert "Training goes on" in text
    assert "No space left on device" in run.warnings[0]
    assert run.newest() == 0
    assert run.store.load("brave-otter").status == "running"
    mount.empty()
    run.caught_up()
    assert "works again" in run.told()[0]
    assert run.newest() == 2
    assert run.store.load("brave-otter").status == "done"
    assert not [name for name in run.folder.files() if name.endswith(".part")]


def test_old_checkpoints_make_room_for_new_ones(run: Run, mount: Mount) -> None:
    for epoch in range(3):
        run.checkpoint(epoch, 250_000)
    mount.fill()
    run.checkpoint(3, 250_000)
    assert run.told() == []
    assert run.newest() == 3


def test_a_storage_that_turns_read_only_is_told_and_catches_up(run: Run, mount: Mount) -> None:
    run.checkpoint(0)
    mount.read_only(True)
    run.checkpoint(1)
    run.write_record("done")
    (text,) = run.told()
    assert "Read-only file system" in text
    assert "Read-only file system" in run.warnings[0]
    assert run.newest() == 0
    mount.read_only(False)
    run.caught_up()
    assert run.newest() == 1


def test_a_storage_that_is_unmounted_is_not_written_beside(run: Run, mount: Mount) -> None:
    run.checkpoint(0)
    mount.unmount()
    run.checkpoint(1)
    (text,) = run.told()
    assert "has vanished. Is the storage mounted?" in text
    assert not run.folder.exists("checkpoints")


def test_a_folder_that_vanishes_and_comes_back_catches_up(run: Run) -> None:
    run.checkpoint(0)
    root = Path(run.folder.root)
    root.rename(root.parent / "away")
    run.checkpoint(1)
    assert len(run.told()) == 1
    (root.parent / "away").rename(root)
    run.caught_up()
    assert run.newest() == 1


def test_a_record_is_whole_whatever_happened(run: Run, mount: Mount) -> None:
    plan = a_plan(2)
    mount.fill()
    began_s = time.monotonic()
    for number in range(200):
        segment = Segment(plan, "2026-11-30T12:00:00.000Z", steps=number)
        run.book.write(replace(run.book.record, segments=(segment,)))
        if number == 100:
            mount.empty()
    run.caught_up()
    assert time.monotonic() - began_s < 2 * WAIT_S  # fifty times that if each waited in vain
    found: RunRecord = run.store.load("brave-otter")
    assert found.segments[0].steps == 199


def test_a_storage_that_hangs_holds_up_nobody_and_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_module, "HEARTBEAT_S", 0.0)
    with mounted_disk(tmp_path / "disk") as disk:
        run = Run(disk.path, tmp_path / "index", PATIENCE_S)
        run.checkpoint(0)
        run.write_record("running")
        disk.freeze()
        monkeypatch.setattr(keeper_module, "PATIENCE_S", PATIENCE_S)
        began_s = time.monotonic()
        run.checkpoint(1)
        run.write_record("running")
        for _ in range(400):  # 120 s if each waited
            run.book.beat()
            run.keeper.order(ORDER_STOP)
            assert run.keeper.tell([an_event("progress")]) == ORDER_STOP
        run.write_record("done")
        assert time.monotonic() - began_s < 45.0
        assert "has not taken" in run.told()[0]
        assert "has not taken" in run.warnings[0]
        disk.thaw()
        run.caught_up()
        assert run.newest() == 1
        assert run.store.load("brave-otter").status == "done"
