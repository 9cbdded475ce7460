import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from launcher import storage as module
from launcher.errors import StorageError
from launcher.storage import Storage, in_time


@pytest.fixture
def memory() -> Storage:
    """Storage on a pyarrow filesystem that is not the local one."""
    from pyarrow.fs import _MockFileSystem

    return Storage(uri="mock://launch", root="launch", filesystem=_MockFileSystem())


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "launch"))


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest) -> Storage:
    found: Storage = request.getfixturevalue(request.param)
    return found


def test_what_was_written_is_read(storage: Storage) -> None:
    storage.write("runs/a/run.json", b"one")
    storage.write("runs/a/run.json", b"two")
    assert storage.read("runs/a/run.json") == b"two"
    assert storage.exists("runs/a")
    assert not storage.exists("runs/b")


def test_a_missing_file_is_told_apart_from_one_that_cannot_be_read(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")
    storage.write("folder/file", b"")
    with pytest.raises(StorageError, match="folder cannot be read"):
        storage.read("folder")


def test_a_folder_is_listed_in_order(storage: Storage) -> None:
    for name in ("b/2", "b/1", "a", "b/c/3"):
        storage.write(name, b"x")
    assert storage.list() == ("a", "b")
    assert storage.list("b") == ("1", "2", "c")
    assert storage.list("missing") == ()
    assert storage.files("b") == ("1", "2", "c/3")
    assert storage.folder("b").files() == ("1", "2", "c/3")


def test_a_folder_goes_up_and_comes_down_whole(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "über").mkdir(parents=True)
    (source / "über" / "a file").write_bytes(b"1")
    (source / "b").write_bytes(b"2" * 3_000_000)
    storage.upload(source, "runs/x")
    storage.download("runs/x", tmp_path / "target")
    assert (tmp_path / "target" / "über" / "a file").read_bytes() == b"1"
    assert (tmp_path / "target" / "b").read_bytes() == b"2" * 3_000_000


def test_a_single_file_goes_up_and_comes_down(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_bytes(b"weights")
    storage.upload(tmp_path / "model.keras", "runs/x/model.keras")
    storage.download("runs/x/model.keras", tmp_path / "out" / "m.keras")
    assert (tmp_path / "out" / "m.keras").read_bytes() == b"weights"


def test_deleting_leaves_nothing_and_may_be_repeated(storage: Storage) -> None:
    storage.write("a/b/c", b"x")
    storage.delete("a/b/c")
    storage.write("a/d/e", b"x")
    storage.delete("a/d")
    storage.delete("never")
    assert storage.files() == ()


def test_a_file_is_created_only_once(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLAIM_SETTLES_S", 0.01)  # nobody else claims meanwhile
    assert storage.create("owner", b"me")
    assert not storage.create("owner", b"you")
    assert storage.read("owner") == b"me"


def test_of_many_creators_at_once_one_wins(storage: Storage) -> None:
    barrier, wins = threading.Barrier(8), []

    def create(index: int) -> None:
        barrier.wait()
        wins.append(storage.create("owner", str(index).encode()))

    threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wins) == 1


def test_a_reader_never_sees_half_a_file(local: Storage) -> None:
    contents = {b"a" * 200_000, b"b" * 200_000}
    local.write("run.json", b"a" * 200_000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                local.write("run.json", content)

    writer = threading.Thread(target=write)
    writer.start()
    seen = {local.read("run.json") for _ in range(50)}
    stop.set()
    writer.join()
    assert seen <= contents
    assert local.list() == ("run.json",)


def test_what_breaks_off_leaves_the_old_content_and_nothing_else(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write("run.json", b"old")
    (tmp_path / "new").write_bytes(b"new")

    def broken(source: Any, target: Any, *_: Any) -> None:
        target.write(source.read(1))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", broken)
    with pytest.raises(StorageError, match="No space left on device"):
        storage.write_file(tmp_path / "new", "run.json")
    assert storage.read("run.json") == b"old"
    assert storage.files() == ("run.json",)


def test_a_call_that_hangs_is_given_up() -> None:
    ends = threading.Event()
    with pytest.raises(StorageError, match=r"/x cannot be read: no answer in 0 s\. Is the storage"):
        in_time("/x cannot be read", ends.wait, 0.05)
    ends.set()


def test_a_call_in_time_gives_what_it_found_or_raised() -> None:
    assert in_time("", lambda: 7, 60) == 7
    with pytest.raises(KeyError, match="x"):
        in_time("", lambda: {}["x"], 60)


def test_writable_storage_passes_the_check_and_stays_clean(storage: Storage) -> None:
    storage.check_writable()
    assert storage.files() == ()


def test_storage_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"cannot be written: .*Check the path") as error:
        Storage.open(str(tmp_path / "file" / "launch")).check_writable()
    assert "\n" not in str(error.value)


def test_a_uri_that_nothing_understands_is_refused() -> None:
    with pytest.raises(StorageError, match="Storage foo://bar cannot be opened"):
        Storage.open("foo://bar")


def test_a_password_does_not_show_in_an_error() -> None:
    with pytest.raises(StorageError) as error:
        Storage.open("foo://user:secret@bar")
    assert "secret" not in str(error.value)


def test_a_local_uri_is_a_local_folder(tmp_path: Path) -> None:
    storage = Storage.open(f"file://{tmp_path}/a%20b")
    storage.write("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"
    assert storage.is_local
    assert storage.path("x") == os.fspath(tmp_path / "a b" / "x")


def test_an_endpoint_stays_in_the_uri_of_a_folder() -> None:
    uri = "s3://bucket/launch?endpoint_override=127.0.0.1:9000&scheme=http"
    storage = Storage.open(uri)
    folder = storage.folder("runs/x")
    assert folder.uri == "s3://bucket/launch/runs/x?endpoint_override=127.0.0.1:9000&scheme=http"
    assert Storage.open(folder.uri).root == folder.root == "bucket/launch/runs/x"
    assert storage.path("a") == "s3://bucket/launch/a"


def test_a_server_that_does_not_answer_is_one_clear_line() -> None:
    uri = "s3://k:s@bucket/x?endpoint_override=127.0.0.1:9&scheme=http"
    with pytest.raises(StorageError, match=r"cannot be reached: Connection refused") as error:
        Storage.open(uri).check_writable()
    assert "\n" not in str(error.value)
