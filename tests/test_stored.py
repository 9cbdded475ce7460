import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ClusterError, RecordError, ScriptFailedError
from launcher.storage import Storage
from launcher.stored import (
    ABOUT_FILE,
    CODE_FILE,
    Shipped,
    forget,
    has_checkpoint,
    laid_out,
    newest_checkpoint,
    work_left,
)
from launcher.worker import snapshot
from launcher.worker.files import key as files_key
from tests.fakes import a_workload


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
        parallel_draws=("train.py:14: ds.map(aug, num_parallel_calls=4)",),
    )


def zipped(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return buffer.getvalue()


FILES = zipped({"log.csv": "epoch,loss\n"})


def kept(folder: Storage, number: int, files: bytes | None = None) -> str:
    """A checkpoint as the keeper writes it; its path."""
    state = {"position": {"fit": 0, "epoch": number, "step": 0}, "weights": [np.ones(3)]}
    key = "" if files is None else f"-{files_key(files)}"
    if files is not None:
        folder.write(f"checkpoints/files-{files_key(files)}.zip", files)
    path = f"checkpoints/{number:020d}{key}.npz"
    folder.write(path, snapshot.dump(state))
    return path


# ---- the script's folder


def test_what_was_shipped_can_be_read_back(folder: Storage) -> None:
    a_shipment().keep(folder)
    assert Shipped.read(folder, "brave-otter") == a_shipment()


def test_a_shipment_of_an_earlier_launcher_can_be_read_back(folder: Storage) -> None:
    a_shipment().keep(folder)
    about = json.loads(folder.read(ABOUT_FILE))
    del about["ignored"]
    folder.write(ABOUT_FILE, json.dumps(about).encode())
    assert Shipped.read(folder, "brave-otter") == a_shipment()


def test_a_file_that_was_not_shipped_is_named_where_the_script_misses_it() -> None:
    shipment = replace(a_shipment(), ignored=("data", "a.log", "more/x"))
    line = "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'\n"
    error = shipment.with_hint(ScriptFailedError(0, f"Traceback …\n{line}"))
    assert str(error).startswith(f"Traceback …\n{line}launch: data is not shipped")
    assert str(error).endswith("write !data into .rayignore\n")
    for text in ("No such file: 'database.csv'", "No such file: 'my-data/x'", "ValueError: data"):
        same = ScriptFailedError(0, text)
        assert shipment.with_hint(same) is same
    other = ClusterError("No such file: data")
    assert shipment.with_hint(other) is other


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
    for number in range(12):
        kept(folder, number)
    found = newest_checkpoint(folder, pytest.fail)
    assert found is not None
    assert found.position == {"fit": 0, "epoch": 11, "step": 0}
    assert snapshot.load(found.data)["position"] == found.position
    assert found.files is None


def cut(content: bytes) -> bytes:
    return content[:-1]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def emptied(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damaged", [cut, flipped, emptied])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    folder: Storage, damaged: Callable[[bytes], bytes]
) -> None:
    kept(folder, 0)
    path = kept(folder, 1)
    folder.write(path, damaged(folder.read(path)))
    warnings: list[str] = []
    found = newest_checkpoint(folder, warnings.append)
    assert found is not None
    assert found.position["epoch"] == 0
    assert len(warnings) == 1
    assert path in warnings[0]
    assert "damaged" in warnings[0]


def test_a_checkpoint_comes_with_the_files_of_its_moment(folder: Storage) -> None:
    kept(folder, 0, zipped({"log.csv": "epoch\n"}))
    kept(folder, 1, FILES)
    found = newest_checkpoint(folder, pytest.fail)
    assert found is not None
    assert (found.position["epoch"], found.files) == (1, FILES)


@pytest.mark.parametrize("damaged", [cut, flipped, emptied])
def test_a_checkpoint_whose_files_are_damaged_is_passed_over(
    folder: Storage, damaged: Callable[[bytes], bytes]
) -> None:
    older = zipped({"log.csv": "epoch\n"})
    kept(folder, 0, older)
    kept(folder, 1, FILES)
    path = f"checkpoints/files-{files_key(FILES)}.zip"
    folder.write(path, damaged(FILES))
    warnings: list[str] = []
    found = newest_checkpoint(folder, warnings.append)
    assert found is not None
    assert (found.position["epoch"], found.files) == (0, older)
    assert len(warnings) == 1
    assert path in warnings[0]


def test_without_another_one_it_counts_without_its_files(folder: Storage) -> None:
    kept(folder, 1, FILES)
    folder.delete(f"checkpoints/files-{files_key(FILES)}.zip")
    warnings: list[str] = []
    found = newest_checkpoint(folder, warnings.append)
    assert found is not None
    assert (found.position["epoch"], found.files) == (1, None)
    assert "missing" in warnings[0]
    assert "without the files" in warnings[1]


def test_half_written_files_are_not_looked_at(folder: Storage) -> None:
    path = kept(folder, 0)
    half = folder.read(path)[:100]
    folder.write(f"checkpoints/.{1:020d}.npz-0123.part", half)
    found = newest_checkpoint(folder, pytest.fail)
    assert found is not None
    assert found.position["epoch"] == 0


def test_without_a_checkpoint_there_is_none(folder: Storage) -> None:
    assert newest_checkpoint(folder, pytest.fail) is None
    assert not has_checkpoint(folder)


def test_that_no_checkpoint_is_whole_is_told(folder: Storage) -> None:
    for number in range(2):
        folder.write(kept(folder, number), b"damaged")
    warnings: list[str] = []
    assert newest_checkpoint(folder, warnings.append) is None
    assert len(warnings) == 3
    assert warnings[-1] == "No checkpoint is whole: training begins anew."
    assert has_checkpoint(folder)


# ---- artifacts


def test_artifacts_are_laid_out_as_files(folder: Storage) -> None:
    folder.write("files.zip", zipped({"log.csv": "epoch,loss\n", "logs/größe.txt": "7"}))
    path = Path(laid_out(folder, "files.zip", pytest.fail))
    assert path == Path(folder.path("artifacts"))
    assert (path / "log.csv").read_text() == "epoch,loss\n"
    assert (path / "logs" / "größe.txt").read_text() == "7"


def test_artifacts_stay_inside_of_their_folder(folder: Storage, tmp_path: Path) -> None:
    outside = str(tmp_path / "outside.txt")
    folder.write("files.zip", zipped({"../run.json": "x", outside: "x", "a/": "", "b": "y"}))
    path = laid_out(folder, "files.zip", pytest.fail)
    assert [p.name for p in Path(path).rglob("*")] == ["b"]
    assert not Path(outside).exists()
    assert not folder.exists("run.json")


def test_where_artifacts_cannot_be_laid_out_they_stay_zipped(folder: Storage) -> None:
    folder.write("files.zip", zipped({"log.csv": "epoch,loss\n"}))
    folder.write("artifacts", b"in the way")
    warnings: list[str] = []
    assert laid_out(folder, "files.zip", warnings.append) == folder.path("files.zip")
    assert "stay in" in warnings[0]


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


def test_what_cannot_be_removed_is_no_error(folder: Storage) -> None:
    a_shipment().keep(folder)
    (Path(folder.path()) / "link").symlink_to("nowhere")
    forget(folder)
    assert Path(folder.path()).exists()
