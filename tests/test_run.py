from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError

from launcher.book import now
from launcher.config import Environment
from launcher.errors import ClusterError, RecordError, UsageError
from launcher.launch import Launch, _import_ahead
from launcher.ownership import Driver, Watch, this_driver
from launcher.process import Process
from launcher.record import RunRecord
from launcher.run import Around, resume, run
from launcher.runs import RunIndex, RunStore
from launcher.storage import Storage
from launcher.stored import CODE_FILE, Shipped
from tests.fakes import FakeClock, FakeScreen, a_record, a_request

Keep = Callable[..., RunRecord]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    (tmp_path / "work").mkdir()
    return Environment(home=tmp_path / "home", cwd=tmp_path / "work")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Storage.open(str(tmp_path / "launch")), RunIndex(tmp_path / "index"))


@pytest.fixture
def keep(store: RunStore) -> Keep:
    """Keeps a record of a run named brave-otter, with what it shipped."""

    def call(**changes: object) -> RunRecord:
        record = replace(a_record(storage=store.storage.uri), **changes)  # type: ignore[arg-type]
        store.save(record)
        shipped = Shipped(b"zip", "f" * 16, "train.py", "/project", "train.py", "fit", ("keras",))
        shipped.keep(store.folder(record.run))
        return record

    return call


@pytest.fixture
def around(environment: Environment, tmp_path: Path) -> Around:
    return Around.make(environment, FakeScreen(), tmp_path)


@pytest.fixture
def go_on(store: RunStore, around: Around) -> Callable[[], object]:
    def call() -> object:
        return resume("brave-otter", a_request(store.storage.uri), around, a_watch())

    return call


def a_watch() -> Watch:
    clock = FakeClock()
    return Watch(clock, clock.sleep, now)


# ---- resuming


def test_an_unknown_run_cannot_be_resumed(go_on: Callable[[], object]) -> None:
    with pytest.raises(RecordError, match="no run named 'brave-otter'"):
        go_on()


def test_a_running_run_cannot_be_resumed(
    keep: Keep, go_on: Callable[[], object], store: RunStore
) -> None:
    record = keep(status="running")
    store.ownership("brave-otter").take(1, this_driver())
    with pytest.raises(UsageError, match="brave-otter is still running"):
        go_on()
    assert store.load("brave-otter") == record


def test_a_run_that_is_done_cannot_be_resumed(keep: Keep, go_on: Callable[[], object]) -> None:
    keep()
    with pytest.raises(UsageError, match="nothing to resume"):
        go_on()


def test_a_run_without_a_checkpoint_is_launched_again(
    keep: Keep, go_on: Callable[[], object]
) -> None:
    keep(status="failed", checkpoints=())
    with pytest.raises(UsageError, match="failed before its first checkpoint"):
        go_on()


def test_a_run_whose_folder_is_gone_is_left_as_it_was(
    keep: Keep, go_on: Callable[[], object], store: RunStore
) -> None:
    record = keep(status="budget")
    store.folder(record.run).delete(CODE_FILE)
    with pytest.raises(RecordError, match="cannot go on"):
        go_on()
    assert store.load(record.run) == record


@pytest.mark.parametrize("status", ["budget", "failed", "running"])
def test_a_stopped_or_lost_run_goes_on_with_its_history(
    keep: Keep, store: RunStore, around: Around, status: str
) -> None:
    """It gets as far as the cluster, which is not there."""
    kept = keep(status=status)
    store.folder("brave-otter").write(f"checkpoints/{1:020d}.npz", b"state")
    store.ownership("brave-otter").take(1, Driver(Process("eve", "far", 1)))
    request = a_request(store.storage.uri, address="127.0.0.1:1", budget_usd=3.0)
    result = resume("brave-otter", request, around, a_watch())
    assert isinstance(result.error, ClusterError)
    record = store.load("brave-otter")
    assert (record.term, record.owner) == (2, str(this_driver()))
    assert (record.status, record.exit_code) == ("failed", 4)
    assert (record.segments, record.checkpoints) == (kept.segments, kept.checkpoints)
    assert ("resume", "budget 3.0") in [(event.kind, event.detail) for event in record.events]
    assert record.cost_usd == kept.cost_usd


# ---- starting


def test_an_import_that_fails_ahead_is_left_to_those_who_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def fail(name: str) -> None:
        asked.append(name)
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr("launcher.launch.importlib.import_module", fail)
    _import_ahead()
    assert len(asked) == 2


def test_a_cluster_that_is_not_there_leaves_the_name_free(
    store: RunStore, environment: Environment, tmp_path: Path
) -> None:
    screen, begun = FakeScreen(), list[RunRecord]()
    around = Around.make(environment, screen, tmp_path, begun=begun.append)
    script = environment.cwd / "train.py"
    script.write_text("import keras\nkeras.Sequential().fit([0.0])\n")
    uri = store.storage.uri
    request = a_request(uri, script=script, address="127.0.0.1:1", name="brave-otter")
    result = run(request, around)
    assert isinstance(result.error, ClusterError)
    assert (result.record.status, result.record.exit_code) == ("failed", 4)
    assert screen.records == [result.record]
    assert [record.run for record in begun] == ["brave-otter"]
    assert not store.has("brave-otter")
    assert store.storage.list("runs") == ()


def test_a_driver_that_its_cluster_has_given_up_says_how_to_go_on(
    keep: Keep, store: RunStore, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given_up(_: Launch) -> str:
        raise ActorDiedError

    monkeypatch.setattr(Launch, "_connected", given_up)
    keep(status="interrupted")
    result = resume("brave-otter", a_request(store.storage.uri), around, a_watch())
    assert "given this driver up (ActorDiedError)" in str(result.error)
    assert "launch resume brave-otter" in str(result.error)
    record = store.load("brave-otter")
    assert (record.status, record.exit_code) == ("failed", 4)
