"""Storage on a real S3 server, which is killed, hangs and comes back in mid-run."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from launcher import keeper as keeper_module
from launcher.keeper import Keeper, checkpoint_paths
from launcher.storage import Storage
from launcher.stored import newest_checkpoint
from launcher.worker import snapshot
from launcher.worker.job import ORDER_STOP
from tests.fakes import an_event
from tests.object_store import ObjectStore

CATCH_UP_S = 90.0


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


def test_a_server_that_dies_and_comes_back_has_all_in_the_end(server: ObjectStore) -> None:
    uri = server.uri("second")
    keeper = Keeper(uri, "brave-otter")
    keep(keeper, 0)
    server.kill()
    for epoch in (1, 2):
        keep(keeper, epoch)
    server.start()
    assert keeper.unwritten(CATCH_UP_S)[0] == ()
    warning, again = texts(keeper)
    assert "Could not connect to server" in warning
    assert "works again" in again
    assert newest(Storage.open(uri).folder("runs/brave-otter")) == 2


def test_a_server_that_hangs_holds_up_nobody(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "PATIENCE_S", 1.0)
    uri = server.uri("third")
    keeper = Keeper(uri, "brave-otter")
    keep(keeper, 0)
    server.freeze(True)
    try:
        thread = threading.Thread(target=keep, args=(keeper, 1))
        thread.start()
        keeper.order(ORDER_STOP)
        began_s = time.monotonic()
        for _ in range(20):
            assert keeper.tell([an_event("progress")]) == ORDER_STOP
        assert time.monotonic() - began_s < 1.0
        thread.join(10)
        assert not thread.is_alive()
    finally:
        server.freeze(False)
    assert keeper.unwritten(CATCH_UP_S)[0] == ()
    assert newest(Storage.open(uri).folder("runs/brave-otter")) == 1
