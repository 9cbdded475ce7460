import io
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from launcher.worker import files as module
from launcher.worker import script
from launcher.worker.files import ScriptFiles, TooManyBytesError, packed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("x = 1")
    return folder


@pytest.fixture
def files(folder: Path) -> ScriptFiles:
    return ScriptFiles(folder, module.listing(folder))


def content(files: ScriptFiles) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(packed(files.copied()).content)) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def test_what_the_script_wrote_or_changed_is_kept_and_no_more(
    folder: Path, files: ScriptFiles
) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "größe.txt").write_text("7")
    assert content(files) == {"deep/größe.txt": b"7"}
    (folder / "train.py").write_text("x = 2 + 2")
    assert content(files) == {"deep/größe.txt": b"7", "train.py": b"x = 2 + 2"}


def test_files_stay_as_they_were_when_they_were_copied(folder: Path, files: ScriptFiles) -> None:
    (folder / "log.csv").write_text("epoch\n")
    copies = files.copied()
    (folder / "log.csv").write_text("epoch\n0\n")
    files.copied()
    with zipfile.ZipFile(io.BytesIO(packed(copies).content)) as bundle:
        assert bundle.read("log.csv") == b"epoch\n"


def test_equal_files_have_an_equal_key(folder: Path, files: ScriptFiles, tmp_path: Path) -> None:
    (folder / "b").write_text("2")
    (folder / "a").write_text("1")
    first = packed(files.copied())
    again = tmp_path / "again"
    script.unpack(first.content, again)
    assert packed(ScriptFiles(again, {}).copied()) == first
    (folder / "a").write_text("other")
    assert packed(files.copied()).key != first.key


def test_a_copy_is_gone_when_nobody_needs_it_any_more(folder: Path, files: ScriptFiles) -> None:
    for text in ("1", "22", "333"):
        (folder / "log.csv").write_text(text)
        copies = files.copied()
    assert copies["log.csv"].path.read_text() == "333"
    assert len(list(copies["log.csv"].path.parent.iterdir())) == 1


def test_a_link_out_of_the_folder_is_not_kept(folder: Path, files: ScriptFiles) -> None:
    (folder.parent / "data.csv").write_text("1")
    (folder / "data.csv").symlink_to(folder.parent / "data.csv")
    (folder / "log.csv").write_text("2")
    (folder / "latest.csv").symlink_to("log.csv")
    assert content(files) == {"latest.csv": b"2", "log.csv": b"2"}


def test_what_does_not_change_is_copied_once(folder: Path, files: ScriptFiles) -> None:
    (folder / "best.keras").write_bytes(b"weights")
    assert files.copied()["best.keras"] is files.copied()["best.keras"]


def test_a_deleted_file_is_not_kept(folder: Path, files: ScriptFiles) -> None:
    (folder / "old").write_text("x")
    files.copied()
    (folder / "old").unlink()
    assert content(files) == {}


def test_files_survive_packing_with_their_mode(
    folder: Path, files: ScriptFiles, tmp_path: Path
) -> None:
    (folder / "run.sh").write_text("echo 42")
    (folder / "run.sh").chmod(0o755)
    (folder / "fixed").write_text("x")
    (folder / "fixed").chmod(0o444)
    script.unpack(packed(files.copied()).content, tmp_path / "copy")
    assert (tmp_path / "copy" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "copy" / "fixed").stat().st_mode & 0o600 == 0o600


def test_unpacking_twice_lays_the_later_files_over_the_earlier(
    folder: Path, files: ScriptFiles, tmp_path: Path
) -> None:
    for text in ("first", "second"):
        (folder / "log.csv").write_text(text)
        script.unpack(packed(files.copied()).content, tmp_path / "copy")
    assert (tmp_path / "copy" / "log.csv").read_text() == "second"


def test_too_many_bytes_are_told(
    folder: Path, files: ScriptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    (folder / "large.bin").write_bytes(b"x" * 11)
    with pytest.raises(TooManyBytesError, match="11"):
        files.copied()


def test_a_listing_leaves_byte_code_out(tmp_path: Path) -> None:
    for name in ("a.txt", "deep/b.txt", "__pycache__/c.pyc", "deep/__pycache__/d.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    assert set(module.listing(tmp_path)) == {"a.txt", "deep/b.txt"}


def test_files_that_vanish_or_have_odd_names_do_not_hold_up_the_others(
    folder: Path, files: ScriptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / os.fsdecode(b"\xff")).mkdir()
    for name in ("good", os.fsdecode(b"\xff/a"), os.fsdecode(b"b\xff.txt"), "vanishing", "secret"):
        (folder / name).write_text("1")
    real_stat, real_copy = Path.stat, shutil.copy

    def stat(path: Path, **options: bool) -> os.stat_result:
        if path.name == "vanishing":
            path.unlink(missing_ok=True)
        return real_stat(path, **options)

    def copy(source: Path, target: Path) -> object:
        if source.name == "secret":
            raise PermissionError(source)
        return real_copy(source, target)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(shutil, "copy", copy)
    assert content(files) == {"good": b"1"}
