import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import RecordError
from launcher.record import CheckpointRecord, RunRecord
from launcher.storage import Storage
from launcher.stored import (
    ABOUT_FILE,
    ARTIFACTS_FILE,
    CODE_FILE,
    Shipped,
    forget,
    last_checkpoint,
    read_artifacts,
    unpack_artifacts,
    work_left,
)
from launcher.worker import snapshot
from tests.fakes import a_record, a_workload


@pytest.fixture
def folder(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "launch")).folder("runs/brave-otter")


def a_shipment() -> Shipped:
    return Shipped(
        content=b"PK zip",
        fingerprint="f" * 16,
        script="src/training über alles.py",
        shown_root="/home/me/work",
        argv0="src/training über alles.py",
        kind="fit",
        frameworks=("keras", "tf_keras"),
        hints=("train.py:12: np.random.default_rng()",),
    )


def zipped(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return buffer.getvalue()


def with_checkpoints(*paths: str) -> RunRecord:
    kept = [
        CheckpointRecord("2026-11-30T12:00:00.000Z", {"fit": 0, "epoch": i, "step": 0}, path, 9)
        for i, path in enumerate(paths)
    ]
    return replace(a_record(), checkpoints=tuple(kept))


# ---- the script's folder


def test_what_was_shipped_can_be_read_back(folder: Storage) -> None:
    a_shipment().keep(folder)
    assert Shipped.read(folder, "brave-otter") == a_shipment()


@pytest.mark.parametrize("name", [CODE_FILE, ABOUT_FILE])
def test_a_missing_part_of_the_shipment_is_told(folder: Storage, name: str) -> None:
    a_shipment().keep(folder)
    folder.delete(name)
    with pytest.raises(RecordError, match=r"brave-otter cannot go on.*Launch the script again"):
        Shipped.read(folder, "brave-otter")


@pytest.mark.parametrize("about", [b"{", b"\xff", b"[]", b"{}", b'{"frameworks": 3}', b"null"])
def test_a_damaged_shipment_is_told(folder: Storage, about: bytes) -> None:
    a_shipment().keep(folder)
    folder.write(ABOUT_FILE, about)
    with pytest.raises(RecordError, match="missing or damaged"):
        Shipped.read(folder, "brave-otter")


def test_a_shipment_with_an_unknown_key_is_told(folder: Storage) -> None:
    a_shipment().keep(folder)
    about = json.loads(folder.read(ABOUT_FILE)) | {"from_the_future": 1}
    folder.write(ABOUT_FILE, json.dumps(about).encode())
    with pytest.raises(RecordError, match="from_the_future"):
        Shipped.read(folder, "brave-otter")


# ---- checkpoints


def test_the_newest_checkpoint_counts(folder: Storage) -> None:
    for name in ("c/0", "c/1"):
        folder.write(name, snapshot.dump({"name": name}))
    found = last_checkpoint(folder, with_checkpoints("c/0", "c/1"), pytest.fail)
    assert found is not None
    assert snapshot.load(found[0]) == {"name": "c/1"}
    assert found[1] == {"fit": 0, "epoch": 1, "step": 0}


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(folder: Storage) -> None:
    folder.write("c/0", snapshot.dump({"name": "c/0"}))
    folder.write("c/1", b"damaged")
    warnings: list[str] = []
    found = last_checkpoint(folder, with_checkpoints("c/0", "c/1"), warnings.append)
    assert found is not None
    assert found[1]["epoch"] == 0
    assert len(warnings) == 1
    assert "c/1" in warnings[0]
    assert "damaged" in warnings[0]


def test_checkpoints_that_were_cleared_away_are_passed_over_in_silence(folder: Storage) -> None:
    folder.write("c/0", snapshot.dump({"name": "c/0"}))
    found = last_checkpoint(folder, with_checkpoints("c/0", "c/1", "c/2"), pytest.fail)
    assert found is not None
    assert found[1]["epoch"] == 0


def test_without_a_readable_checkpoint_there_is_none(folder: Storage) -> None:
    assert last_checkpoint(folder, with_checkpoints(), pytest.fail) is None
    assert last_checkpoint(folder, with_checkpoints("c/0"), pytest.fail) is None


# ---- artifacts


def test_without_artifacts_there_is_nothing_to_unpack(folder: Storage) -> None:
    assert read_artifacts(folder) is None
    assert unpack_artifacts(folder) is None


def test_artifacts_are_laid_out_as_files(folder: Storage) -> None:
    folder.write(ARTIFACTS_FILE, zipped({"log.csv": "epoch,loss\n", "logs/größe.txt": "7"}))
    path = unpack_artifacts(folder)
    assert path is not None
    assert (Path(path) / "log.csv").read_text() == "epoch,loss\n"
    assert (Path(path) / "logs" / "größe.txt").read_text() == "7"


def test_artifacts_stay_inside_of_their_folder(folder: Storage, tmp_path: Path) -> None:
    outside = str(tmp_path / "outside.txt")
    folder.write(ARTIFACTS_FILE, zipped({"../run.json": "x", outside: "x", "a/": "", "b": "y"}))
    path = unpack_artifacts(folder)
    assert path is not None
    assert [p.name for p in Path(path).rglob("*")] == ["b"]
    assert not Path(outside).exists()
    assert not folder.exists("run.json")


# ---- what is left


def test_at_the_start_all_of_the_work_is_left() -> None:
    work = work_left(a_workload(), {})
    assert (work.steps, work.epochs, work.global_batch) == (15_600, 10, 256)


def test_what_was_trained_is_not_left() -> None:
    trained = 4 * 1560 + 780
    work = work_left(a_workload(), {"fit": 0, "epoch": 4, "step": 780, "total_steps": trained})
    assert (work.steps, work.epochs) == (15_600 - trained, 5.5)


def test_of_a_later_fit_its_own_epochs_count() -> None:
    work = work_left(a_workload(), {"fit": 1, "epoch": 4, "step": 780, "total_steps": 99_999})
    assert (work.steps, work.epochs) == (15_600 - 4 * 1560 - 780, 5.5)


@given(st.integers(0, 20), st.integers(0, 3000))
def test_something_is_always_left_and_never_more_than_all(epoch: int, step: int) -> None:
    all_steps = work_left(a_workload(), {}).steps
    reached = {"fit": 0, "epoch": epoch, "step": step, "total_steps": 1560 * epoch + step}
    left = work_left(a_workload(), reached)
    assert 1 <= left.steps <= all_steps


# ---- a run that never started


def test_a_forgotten_run_leaves_its_name_free(folder: Storage) -> None:
    a_shipment().keep(folder)
    folder.write("checkpoints/1", b"x")
    forget(folder)
    assert not Path(folder.path()).exists()
