"""Storage and data on a real S3 server, which is killed, hangs and comes back in mid-run."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from launcher import keeper as keeper_module
from launcher.errors import StorageError
from launcher.fetch import Fetching
from launcher.keeper import Keeper, checkpoint_paths
from launcher.storage import Storage
from launcher.stored import newest_checkpoint
from launcher.worker import snapshot
from launcher.worker.job import ORDER_STOP
from launcher.worker.staging import copying
from launcher.worker.staging.filling import Filling
from launcher.worker.staging.manifest import Source
from launcher.worker.staging.origin import DataDeniedError, DataMissingError
from launcher.worker.staging.origins import list_sources, open_origin
from launcher.worker.staging.wanted import DataPlace, Report, Wanted
from tests.fakes import an_event
from tests.object_store import PUBLIC, SECRET, ObjectStore

CATCH_UP_S = 90.0
HANGS_S = 1.0  # until a server is given up that answers nothing
BIG = bytes(range(256)) * 4096 * 12  # 12 MiB: uploaded in several parts


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    server = ObjectStore(tmp_path_factory.mktemp("s3") / "data")
    patch = pytest.MonkeyPatch()
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    try:
        server.start()
        yield server
    finally:
        server.close()
        patch.undo()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is what the server did, not that this machine was busy."""
    monkeypatch.setattr(keeper_module, "PATIENCE_S", CATCH_UP_S)


def keep(keeper: Keeper, epoch: int, n_bytes: int = 1000) -> None:
    position = {"fit": 0, "epoch": epoch, "step": 0}
    state = {"position": position, "weights": np.zeros(n_bytes, np.uint8)}
    keeper.keep_checkpoint(position, snapshot.dump(state))


def newest(folder: Storage) -> int:
    found = newest_checkpoint(folder, pytest.fail)
    assert found is not None
    return int(found.position["epoch"])


def texts(keeper: Keeper) -> list[str]:
    told = keeper.drain(0)
    return [event.detail["text"] for event in told if event.kind in ("warning", "stage")]


def put(uri: str, content_by_path: dict[str, bytes]) -> None:
    for path, content in content_by_path.items():
        Storage.open(uri).write(path, content)


def below(uri: str, folder: str) -> str:
    return uri.replace("?", f"/{folder}?", 1)


class Bringing:
    """Data on their way to this machine: a part of them, until told to go on."""

    def __init__(self, uri: str, tmp_path: Path) -> None:
        self._begun, self._go_on = threading.Event(), threading.Event()
        wanted = Wanted(list_sources([uri]), str(tmp_path / "cache"))
        self._filling = Filling(wanted, None, self._tell, threading.Event())
        self._places: list[DataPlace | None] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        assert self._begun.wait(CATCH_UP_S)

    def go_on(self) -> None:
        self._go_on.set()

    def content(self, path: str) -> bytes:
        """Of a file, once all is there."""
        self._thread.join(CATCH_UP_S)
        assert self._places
        assert self._places[0] is not None
        return Path(self._places[0].folder, path).read_bytes()

    def _work(self) -> None:
        self._places.append(self._filling.run().place)

    def _tell(self, report: Report) -> None:
        if report.fetched_bytes:
            self._begun.set()
            self._go_on.wait(CATCH_UP_S)


def test_a_run_is_kept_in_it(server: ObjectStore) -> None:
    uri = server.uri("first")
    folder = Storage.open(uri).folder("runs/brave-otter")
    Storage.open(uri).check_writable()
    assert folder.create("owner", b"me")
    assert not folder.create("owner", b"you")
    keeper = Keeper(uri, "brave-otter")
    for epoch in range(5):
        keep(keeper, epoch, n_bytes=12_000_000 if epoch == 4 else 1000)  # in several parts
    assert newest(folder) == 4
    assert len(checkpoint_paths(folder.list("checkpoints"))) == keeper_module.KEEP_CHECKPOINTS
    assert texts(keeper) == []


def test_a_server_that_dies_and_comes_back_has_all_in_the_end(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "FIRST_PAUSE_S", 0.1)
    uri = server.uri("second")
    keeper = Keeper(uri, "brave-otter")
    keep(keeper, 0)
    put(uri, {"set/big.bin": BIG})
    bringing = Bringing(below(uri, "set"), tmp_path)
    server.kill()
    bringing.go_on()
    for epoch in (1, 2):
        keep(keeper, epoch)
    server.start()
    assert keeper.unwritten(CATCH_UP_S)[0] == ()
    warning, again = texts(keeper)
    assert "Could not connect to server" in warning
    assert "works again" in again
    assert newest(Storage.open(uri).folder("runs/brave-otter")) == 2
    assert bringing.content("big.bin") == BIG


def test_a_server_that_hangs_holds_up_nobody(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = server.uri("third")
    keeper = Keeper(uri, "brave-otter")
    keep(keeper, 0)
    monkeypatch.setattr(keeper_module, "PATIENCE_S", HANGS_S)
    server.freeze(True)
    try:
        thread = threading.Thread(target=keep, args=(keeper, 1))
        thread.start()
        keeper.order(ORDER_STOP)
        began_s = time.monotonic()
        for _ in range(100):
            assert keeper.tell([an_event("progress")]) == ORDER_STOP
        assert time.monotonic() - began_s < 50 * HANGS_S  # each would wait for so long
        thread.join(CATCH_UP_S)
        assert not thread.is_alive()
    finally:
        server.freeze(False)
    assert keeper.unwritten(CATCH_UP_S)[0] == ()
    assert newest(Storage.open(uri).folder("runs/brave-otter")) == 1


# ---- data in, model out


def test_data_come_from_it_whole(server: ObjectStore, tmp_path: Path) -> None:
    uri = server.uri("data")
    put(uri, {"set/big.bin": BIG, "set/deep/small.csv": b"1,2", "other": b"x"})
    manifest = list_sources([below(uri, "set")])
    assert [file.path for file in manifest.files] == ["big.bin", "deep/small.csv"]
    wanted = Wanted(manifest, str(tmp_path / "cache"))
    report = Filling(wanted, None, lambda _: None, threading.Event()).run()
    assert report.place is not None
    assert Path(report.place.folder, "big.bin").read_bytes() == BIG
    assert Path(report.place.folder, "deep/small.csv").read_bytes() == b"1,2"
    single = list_sources([below(uri, "other")])
    assert [(file.path, file.size) for file in single.files] == [("other", 1)]


def test_wrong_credentials_are_told_without_the_secret(server: ObjectStore) -> None:
    uri = below(server.uri("data"), "set")
    with pytest.raises(DataDeniedError, match=r"no right to read .* AWS_ACCESS_KEY_ID") as error:
        list_sources([uri.replace(SECRET, "wrongsecret")])
    assert "wrongsecret" not in str(error.value)
    assert error.value.exit_code == 4
    with pytest.raises(DataMissingError, match=r"nothing at s3://data/nothing\?") as error_2:
        list_sources([below(server.uri("data"), "nothing")])
    assert SECRET not in str(error_2.value)


def test_storage_with_wrong_credentials_is_told_without_the_secret(server: ObjectStore) -> None:
    storage = Storage.open(server.uri("first").replace(SECRET, "wrongsecret"))
    with pytest.raises(StorageError, match=r"ACCESS_DENIED.* Check the credentials") as error:
        storage.check_writable()
    assert "wrongsecret" not in str(error.value)
    assert error.value.exit_code == 4


def test_a_public_bucket_needs_no_credentials(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    put(server.uri(PUBLIC), {"set/x.csv": b"1"})
    uri = below(server.uri(PUBLIC), "set").partition("@")[2]
    manifest = list_sources([f"s3://{uri}"])
    assert [file.path for file in manifest.files] == ["x.csv"]
    assert open_origin(manifest.sources[0]).open(manifest.files[0], 0).read(9) == b"1"


def test_a_run_is_fetched_from_it(server: ObjectStore, tmp_path: Path) -> None:
    folder = Storage.open(server.uri("runs")).folder("runs/brave-otter")
    files = {"run.json": b"{}", "model.keras": BIG, "artifacts/logs/x.tfevents.1": b"e"}
    for path, content in files.items():
        folder.write(path, content)
    origin = open_origin(Source(folder.uri))
    found = Fetching(origin, tmp_path / "home").fetched()
    assert {path: (tmp_path / "home" / path).read_bytes() for path in found.paths} == files
    assert Fetching(origin, tmp_path / "home").fetched().new == ()
