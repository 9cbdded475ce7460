import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.codec import DecodeError
from launcher.errors import RecordError, StorageError, UsageError
from launcher.ownership import this_driver
from launcher.record import (
    CODEC,
    dump_record,
    load_record,
    parse_timestamp,
    timestamp,
)
from launcher.runs import RunIndex, RunStore, open_store
from launcher.storage import Storage
from policies.schema import Interval, Situation
from tests.fakes import NOW, a_decision, a_record, a_request


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Storage.open(str(tmp_path / "launch")), RunIndex(tmp_path / "index"))


def create(store: RunStore, name: str | None = None, seed: int = 0) -> str:
    request = a_request(store.storage.uri, name=name)
    rng = np.random.default_rng(seed)
    return store.create(request, now=NOW, driver=this_driver(), versions={}, rng=rng).run


def test_a_record_survives_a_round_trip() -> None:
    record = a_record()
    assert load_record(dump_record(record), "run.json") == record


def test_the_document_has_the_keys_that_the_documentation_names() -> None:
    document = json.loads(dump_record(a_record()))
    candidate = document["decisions"][0]["candidates"][0]
    assert document["schema"] == 1
    assert {"n_workers", "nodes", "strategy", "options", "step_s", "cost_usd"} <= set(candidate)
    assert {"at_step", "reason", "policy", "chosen", "work"} <= set(document["decisions"][0])
    assert document["network"]["links"][0]["rtt_s"] == 0.0004


def keys_of(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        return set(value) | set().union(*map(keys_of, value.values()))
    return set()


def test_every_key_is_documented() -> None:
    documentation = (Path(__file__).parent.parent / "docs" / "records.md").read_text()
    document = json.loads(dump_record(a_record()))
    free = {*document["versions"], *document["outcome"]["metrics"]}
    free |= set(document["checkpoints"][0]["position"])
    words = set(re.findall(r"[a-z_0-9]+", documentation))
    assert keys_of(document) - free <= words


def test_a_record_never_holds_the_environment_or_where_it_was_typed() -> None:
    record = a_record()
    request = replace(record.request, ray_address="secret:1", json=True, stdin_is_tty=True)
    document = json.loads(dump_record(replace(record, request=request)))
    assert "secret" not in json.dumps(document)
    assert not {"ray_address", "json", "yes", "dry_run", "stdin_is_tty"} & set(document["request"])


def test_unknown_keys_are_ignored_and_missing_ones_get_their_default() -> None:
    document = json.loads(dump_record(a_record()))
    document["of_a_later_version"] = {"x": 1}
    document["request"]["new_option"] = 3
    del document["events"], document["outcome"], document["request"]["explore"]
    record = load_record(json.dumps(document), "run.json")
    assert record.events == ()
    assert record.outcome is None
    assert record.request.explore == a_record().request.explore


def test_records_from_before_direct_exchanges_are_read() -> None:
    document = json.loads(dump_record(a_record()))
    del document["workload"]["own_loop"]
    for decision in document["decisions"]:
        del decision["rival"]
        for plan in (decision["chosen"], *decision["candidates"]):
            del plan["options"]["algorithm"], plan["options"]["sites"]
    assert load_record(json.dumps(document), "run.json") == a_record()


def test_a_later_schema_is_refused() -> None:
    document = json.loads(dump_record(a_record())) | {"schema": 99}
    with pytest.raises(RecordError, match=r"schema version 99.*Update the launcher"):
        load_record(json.dumps(document), "run.json")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"schema": 1}', "null", '{"schema": "x"}', "[" * 100_000],
)
def test_a_damaged_record_names_its_file_and_the_remedy(content: str) -> None:
    with pytest.raises(RecordError, match=r"x/run.json is damaged.*Delete or move"):
        load_record(content, "x/run.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("created", "yesterday"),
        ("decisions", 3),
        ("versions", []),
        ("cluster", "x"),
        ("run", 5),
        ("exit_code", True),
    ],
)
def test_a_value_of_the_wrong_type_is_damage(key: str, value: object) -> None:
    document = json.loads(dump_record(a_record())) | {key: value}
    with pytest.raises(RecordError, match="is damaged"):
        load_record(json.dumps(document), "run.json")


@pytest.mark.parametrize("key", ["started", "first_step_at"])
def test_a_moment_that_is_none_is_damage(key: str) -> None:
    document = json.loads(dump_record(a_record()))
    document["segments"][0][key] = "soon"
    with pytest.raises(RecordError, match=r"is damaged.*soon"):
        load_record(json.dumps(document), "run.json")


@pytest.mark.parametrize(
    "change", [{"candidates": []}, {"chosen": {"n_workers": 2, "nodes": ["x", "y"]}}]
)
def test_a_choice_among_no_candidates_is_damage(change: dict[str, object]) -> None:
    document = json.loads(dump_record(a_record()))
    for key, value in change.items():
        before = document["decisions"][0][key]
        document["decisions"][0][key] = before | value if isinstance(value, dict) else value
    with pytest.raises(RecordError, match=r"is damaged: decision 1 chose none.*Delete or move"):
        load_record(json.dumps(document), "run.json")


def test_text_that_is_not_unicode_does_not_keep_a_record_from_being_written(
    store: RunStore,
) -> None:
    store.save(a_record().happened("warning", "no such file: b\udcff.txt", NOW))
    assert store.load("brave-otter").events[-1].detail == "no such file: b?.txt"


def test_a_moment_without_a_zone_is_in_utc() -> None:
    document = json.loads(dump_record(a_record())) | {"heartbeat_at": "2026-11-30T12:00:00"}
    record = load_record(json.dumps(document), "run.json")
    assert parse_timestamp(record.heartbeat_at) == NOW


def test_a_float_that_is_no_number_is_damage() -> None:
    with pytest.raises(DecodeError, match="'mean' should be a number"):
        CODEC.decode(Interval, {"mean": "much", "low": 0, "high": 1})


@given(st.floats(), st.floats(), st.floats())
def test_any_float_survives_even_infinity(mean: float, low: float, high: float) -> None:
    interval = Interval(mean, low, high)
    text = json.dumps(CODEC.encode(interval), allow_nan=False)
    assert repr(CODEC.decode(Interval, json.loads(text))) == repr(interval)


def test_a_created_run_is_found_again_by_its_name(store: RunStore) -> None:
    name = create(store)
    assert store.load(name).run == name
    assert "-" in name
    assert open_store("/nowhere", store.index, name).load(name).run == name


def test_the_same_generator_draws_another_name_when_the_first_is_taken(store: RunStore) -> None:
    assert create(store, seed=1) != create(store, seed=1)


def test_a_storage_without_a_free_name_asks_for_one(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.runs.MAX_DRAWS", 1)
    create(store, seed=1)
    with pytest.raises(StorageError, match="Give one by --name"):
        create(store, seed=1)


def test_a_forgotten_run_is_no_longer_in_the_index(store: RunStore) -> None:
    name = create(store)
    assert store.index.names() == (name,)
    store.index.forget(name)
    store.index.forget(name)
    assert store.index.find(name) is None


def test_a_name_is_given_only_once(store: RunStore) -> None:
    create(store, "otter")
    with pytest.raises(UsageError, match=r"already a run named otter.*launch resume otter"):
        create(store, "otter")


def test_of_two_launches_with_one_name_exactly_one_wins(store: RunStore) -> None:
    barrier, outcomes = threading.Barrier(8), []

    def launch() -> None:
        barrier.wait()
        try:
            outcomes.append(create(store, "otter"))
        except UsageError:
            outcomes.append("refused")

    threads = [threading.Thread(target=launch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["otter", *["refused"] * 7]


def test_a_damaged_record_does_not_hide_the_others(store: RunStore) -> None:
    create(store, "one")
    create(store, "two")
    store.storage.write("runs/two/run.json", b"{")
    store.storage.write("runs/note.txt", b"not a run")
    runs = store.all()
    assert [record.run for record in runs.records] == ["one"]
    assert len(runs.damaged) == 1
    assert "two" in runs.damaged[0]


def test_an_unknown_run_is_named_with_a_suggestion(store: RunStore) -> None:
    create(store, "brave-otter")
    with pytest.raises(RecordError, match=r"no run named 'brave-oter'.*Did you mean brave-otter"):
        store.load("brave-oter")
    with pytest.raises(RecordError, match="`launch runs` lists"):
        store.load("xyz")


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x"])
def test_a_path_is_not_a_runs_name(store: RunStore, name: str) -> None:
    with pytest.raises(RecordError, match="is not a run's name"):
        open_store(store.storage.uri, store.index, name)


def test_an_unwritable_index_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("a file where the folder should be")
    store = RunStore(Storage.open(str(tmp_path / "launch")), RunIndex(tmp_path / "index"))
    assert create(store, "otter") == "otter"


def test_segments_become_experience_for_the_policy(store: RunStore) -> None:
    store.save(a_record(storage=store.storage.uri))
    (experience,) = store.experiences()
    assert experience.step_s == 0.070
    assert experience.startup_s == 12.0
    assert experience.plan.n_workers == 3


def test_a_situation_is_rebuilt_from_the_record() -> None:
    record = a_record()
    situation = record.situation()
    assert isinstance(situation, Situation)
    assert situation.work.steps == 15_600
    assert situation.limits.budget_usd == 5.0
    again = record.decided(a_decision(), replace(situation, spent_usd=0.2))
    assert again.situation() == replace(situation, spent_usd=0.2)


def test_an_event_is_added_with_its_time() -> None:
    event = a_record().happened("retry", "a worker died", NOW).events[-1]
    assert (event.at, event.kind, event.detail) == (timestamp(NOW), "retry", "a worker died")


def test_a_password_in_a_uri_stays_out_of_records() -> None:
    storage = Storage(uri="s3://key:secret@bucket/launch", root="bucket/launch")
    assert storage.public_uri == "s3://bucket/launch"
