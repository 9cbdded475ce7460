import errno
import io
import os
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.archive import Archive, pack
from launcher.errors import ScriptError
from launcher.worker.script import unpack
from tests.fakes import a_request


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    put(folder, "train.py", "import keras\n")
    return folder


def put(root: Path, name: str, text: str = "x") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def packed(root: Path, **changes: object) -> Archive:
    return pack(root, a_request(**{"script": root / "train.py", **changes}))


def names(archive: Archive) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(archive.content)) as bundle:
        assert bundle.testzip() is None
        return bundle.namelist()


def test_all_files_of_the_folder_are_packed_in_order(root: Path) -> None:
    put(root, "data/b.csv")
    put(root, "data/a b ü.csv", "content")
    archive = packed(root)
    assert names(archive) == ["data/a b ü.csv", "data/b.csv", "train.py"]
    with zipfile.ZipFile(io.BytesIO(archive.content)) as bundle:
        assert bundle.read("data/a b ü.csv") == b"content"
    assert archive.n_files == 3


def test_a_folder_without_a_file_is_there_for_the_script_to_write_in(root: Path) -> None:
    (root / "out" / "plots").mkdir(parents=True)
    put(root, "logs/old.csv")
    put(root, "data/old.csv")
    put(root, "__pycache__/train.pyc")
    put(root, ".gitignore", "*.csv\ndata/\n")
    before = packed(root).fingerprint
    assert names(packed(root)) == [".gitignore", "train.py", "logs/", "out/", "out/plots/"]
    unpack(packed(root).content, root.parent / "copy")
    assert (root.parent / "copy" / "out" / "plots").is_dir()
    (root / "new").mkdir()
    assert packed(root).fingerprint != before


def test_equal_folders_give_equal_bytes(root: Path, tmp_path: Path) -> None:
    put(root, "helper.py", "a = 1")
    first = packed(root)
    os.utime(root / "helper.py", (1e9, 1e9))
    copy = tmp_path / "copy"
    put(copy, "helper.py", "a = 1")
    put(copy, "train.py", "import keras\n")
    assert packed(root).content == first.content == packed(copy).content
    assert packed(copy).fingerprint == first.fingerprint


def test_the_codes_fingerprint_looks_at_python_files_only(root: Path) -> None:
    first = packed(root)
    put(root, "data.csv", "1")
    second = packed(root)
    put(root, "helper.py", "a = 1")
    third = packed(root)
    assert first.code_fingerprint == second.code_fingerprint != third.code_fingerprint
    assert len({first.fingerprint, second.fingerprint, third.fingerprint}) == 3


def test_ignore_files_are_respected_as_git_reads_them(root: Path) -> None:
    put(root, ".gitignore", "*.log\n!keep.log\n/build/\n")
    put(root, "sub/.rayignore", "secret.txt\n!deep.log\n")
    for name in ("a.log", "keep.log", "build/x", "sub/build/x", "sub/secret.txt", "sub/deep.log"):
        put(root, name)
    archive = packed(root)
    assert set(names(archive)) == {
        ".gitignore",
        "keep.log",
        "sub/.rayignore",
        "sub/build/x",
        "sub/deep.log",
        "train.py",
    }
    assert archive.ignored == ("a.log", "build", "sub/secret.txt")


def test_lines_of_an_ignore_file_that_are_no_patterns_are_passed_over(root: Path) -> None:
    put(root, "data.csv")
    put(root, "notes.txt")
    put(root, ".gitignore", "\ufeff*.csv\n!\n\\\n[z-a]\n*.txt\r\n")
    assert names(packed(root)) == [".gitignore", "train.py"]


def test_a_rayignore_overrides_the_gitignore_beside_it(root: Path) -> None:
    put(root, ".gitignore", "data/\n")
    put(root, ".rayignore", "!data/\n")
    put(root, "data/train.csv")
    assert "data/train.csv" in names(packed(root))


def test_the_script_is_packed_even_if_it_is_ignored(root: Path) -> None:
    put(root, ".gitignore", "jobs/\n*.py\n")
    script = put(root, "jobs/train.py")
    put(root, "jobs/other.txt")
    assert names(packed(root, script=script)) == [".gitignore", "jobs/train.py"]


def test_what_is_never_needed_is_left_out(root: Path) -> None:
    for name in (".git/config", "__pycache__/a.pyc", "env/pyvenv.cfg", "env/lib/x", ".ssh/id"):
        put(root, name)
    assert names(packed(root)) == ["train.py"]


def test_the_storage_inside_the_folder_is_left_out(root: Path) -> None:
    put(root, "launch/runs/x/run.json")
    assert names(packed(root, storage=str(root / "launch"))) == ["train.py"]


def test_storage_that_is_the_folder_itself_is_left_out(root: Path) -> None:
    put(root, "runs/x/run.json")
    put(root, "tunes/y/tune.json")
    put(root, "data/runs/z.csv")
    kept = ["data/runs/z.csv", "train.py"]
    assert names(packed(root, storage=str(root))) == kept
    assert names(packed(root, storage=f"file://{str(root).replace(' ', '%20')}")) == kept


def test_a_folder_over_the_limit_names_the_largest_files(root: Path) -> None:
    put(root, "big.bin", "x" * 3000)
    put(root, "small.bin", "x" * 1000)
    with pytest.raises(
        ScriptError, match=r"over the limit of 2 KiB\. The largest: big\.bin \(3 KiB\)"
    ):
        packed(root, max_folder_bytes=2048)


def test_pipes_broken_links_and_cycles_are_skipped_with_a_warning(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "broken").symlink_to("nowhere")
    (root / "itself").symlink_to("itself")
    (root / "cycle").symlink_to(root)
    archive = packed(root)
    assert names(archive) == ["train.py"]
    assert len(archive.warnings) == 4
    assert any("itself is a broken link" in text for text in archive.warnings)
    assert any("pipe is not a regular file" in text for text in archive.warnings)
    assert any("broken is a broken link" in text for text in archive.warnings)


def test_links_arrive_as_the_content_that_they_point_to(root: Path, tmp_path: Path) -> None:
    put(tmp_path, "outside.csv", "1")
    put(root, "inside.csv", "2")
    (root / "a.csv").symlink_to(tmp_path / "outside.csv")
    (root / "b.csv").symlink_to("inside.csv")
    archive = packed(root)
    with zipfile.ZipFile(io.BytesIO(archive.content)) as bundle:
        assert bundle.read("a.csv") == b"1"
        assert bundle.read("b.csv") == b"2"
    assert archive.warnings == ("a.csv links out of the folder: a copy is shipped.",)


def test_a_program_stays_executable(root: Path) -> None:
    put(root, "run.sh").chmod(0o755)
    with zipfile.ZipFile(io.BytesIO(packed(root).content)) as bundle:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in bundle.infolist()}
    assert modes == {"run.sh": 0o755, "train.py": 0o644}


def test_a_name_that_is_not_utf8_is_skipped_with_a_warning(root: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(root) + b"/\xff"))
    odd.with_suffix(".csv").write_text("x")
    odd.mkdir()
    put(odd, "inside.csv")
    archive = packed(root)
    assert names(archive) == ["train.py"]
    assert ["not UTF-8" in text for text in archive.warnings] == [True, True]


def test_a_folder_that_may_not_be_read_is_skipped_with_a_warning(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "database/rows")
    scan, stat = os.scandir, os.stat

    def refused(call: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if Path(path).parent.name == "database" or (call is scan and Path(path).name == "database"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return call(path, *args, **kwargs)

    monkeypatch.setattr(os, "scandir", partial(refused, scan))
    monkeypatch.setattr(os, "stat", partial(refused, stat))
    archive = packed(root)
    assert names(archive) == ["train.py"]
    assert archive.warnings == ("database cannot be read (Permission denied): skipped.",)


def test_many_warnings_are_shortened(root: Path) -> None:
    for index in range(30):
        (root / f"broken{index}").symlink_to("nowhere")
    warnings = packed(root).warnings
    assert len(warnings) == 11
    assert warnings[-1] == "… and 20 more were skipped."
