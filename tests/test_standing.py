import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from launcher.errors import ScriptError, ScriptFailedError, StorageError, TrainingFailedError
from launcher.record import dump_record, load_record
from launcher.runs import RunIndex, RunStore
from launcher.storage import Storage
from launcher.supervise import (
    Allowance,
)
from tests.fake_stage import DONE, Stage
from tests.fakes import (
    an_epoch,
    an_event,
)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# ---- the script


def test_output_passes_through_unchanged_and_in_order(stage: Stage) -> None:
    pieces = [("stdout", "Epoch 1/3\r"), ("stderr", "ä ☃"), ("stdout", "half a li"), ("stdout", "")]
    events = [(1.0, an_event("output", stream=stream, text=text)) for stream, text in pieces]
    stage.run(*events, (2.0, DONE), ends_at_s=3.0)
    assert stage.view.outputs == pieces


def test_a_loss_that_is_no_number_is_warned_of_once(stage: Stage) -> None:
    stage.run(
        (1.0, an_epoch(1, math.inf)),
        (2.0, an_epoch(2, math.nan)),
        (3.0, an_epoch(3, math.nan)),
        (4.0, DONE),
        ends_at_s=5.0,
    )
    assert len(stage.view.warnings) == 1
    assert "the loss is inf" in stage.view.warnings[0]
    assert [event.kind for event in stage.book.record.events] == ["warning"]


def test_a_record_with_a_loss_that_is_no_number_stays_readable(stage: Stage) -> None:
    ended = stage.run((1.0, an_epoch(1, math.nan)), (2.0, DONE), ends_at_s=3.0)
    assert math.isnan(ended.metrics["loss"])
    record = load_record(dump_record(stage.book.record), "run.json")
    assert record.events == stage.book.record.events


def test_an_error_of_the_script_is_the_result_and_the_first_one_counts(stage: Stage) -> None:
    ended = stage.run(
        (1.0, an_event("error", rank=1, kind="script", text="ValueError: first\n")),
        (1.0, an_event("error", rank=0, kind="script", text="ValueError: second\n")),
        ends_at_s=2.0,
        error=RuntimeError("a worker failed"),
    )
    assert ended.end == "failed"
    assert isinstance(ended.error, ScriptFailedError)
    assert (ended.error.rank, str(ended.error)) == (1, "ValueError: first\n")


def test_a_refused_script_is_no_failure_of_its_own(stage: Stage) -> None:
    refused = an_event("error", rank=0, kind="refused", text="a generator cannot be shared")
    ended = stage.run((1.0, refused), ends_at_s=2.0)
    assert ended.end == "failed"
    assert isinstance(ended.error, ScriptError)
    assert str(ended.error) == "a generator cannot be shared"


def test_a_storage_that_failed_keeps_its_exit_code(stage: Stage) -> None:
    full = an_event("error", rank=0, kind="storage", text="the disk is full")
    ended = stage.run((1.0, full), ends_at_s=2.0)
    assert isinstance(ended.error, StorageError)
    assert ended.error.exit_code == 4


def test_workers_that_die_without_reason_are_told(stage: Stage) -> None:
    cause = RuntimeError("noise\nThe actor died unexpectedly")
    ended = stage.run(ends_at_s=5.0, error=cause)
    assert ended.end == "failed"
    assert isinstance(ended.error, TrainingFailedError)
    assert "RuntimeError: The actor died unexpectedly" in str(ended.error)


def test_workers_that_leave_without_an_error_did_not_finish_either(stage: Stage) -> None:
    ended = stage.run(ends_at_s=5.0)
    assert isinstance(ended.error, TrainingFailedError)
    assert "no reason given" in str(ended.error)


def test_events_that_arrive_after_the_workers_left_still_count(stage: Stage) -> None:
    ended = stage.run((5.0, DONE), ends_at_s=5.0)
    assert ended.end == "done"


def test_model_files_and_metrics_are_handed_on(stage: Stage) -> None:
    ended = stage.run(
        (1.0, an_epoch(1, 0.5)),
        (2.0, an_event("artifacts", path="artifacts.zip", files=1, bytes=9)),
        (2.0, an_event("model", path="model.keras", bytes=9)),
        (2.0, DONE),
        ends_at_s=3.0,
    )
    assert ended.files == {"artifacts": "artifacts.zip", "model": "model.keras"}
    assert ended.metrics == {"loss": 0.5}


# ---- the record


def test_a_segment_holds_its_steps_cost_and_times(stage: Stage) -> None:
    durations_s = [0.1] * 8 + [0.2, 0.3]
    ended = stage.run(
        (1.0, an_event("first_step", fit=0)),
        (2.0, an_event("steps", durations_s=durations_s, total_steps=110)),
        (3.0, DONE),
        ends_at_s=10.0,
        steps_before=100,
    )
    assert ended.total_steps == 110
    segment = stage.segment
    assert (segment.steps, segment.end) == (10, "done")
    assert segment.cost_usd == approx(10.0, abs=0.3)
    assert segment.first_step_at is not None
    assert segment.ended is not None
    assert segment.step_s is not None
    assert segment.step_s.median == 0.1
    assert segment.step_s.p90 == approx(0.21)


def test_a_segment_without_steps_measured_none(stage: Stage) -> None:
    stage.run((1.0, DONE), ends_at_s=2.0, steps_before=7)
    assert (stage.segment.steps, stage.segment.step_s) == (0, None)


@given(st.lists(st.floats(1e-4, 1e3), min_size=2, max_size=40))
def test_the_ninetieth_percentile_lies_between_the_median_and_the_slowest(
    durations_s: list[float],
) -> None:
    stage = Stage()
    steps = an_event("steps", durations_s=durations_s, total_steps=len(durations_s))
    stage.run((0.1, steps), (0.1, DONE), ends_at_s=0.3)
    assert stage.segment.step_s is not None
    assert stage.segment.step_s.median == median(durations_s)
    rounding = 1 + 1e-12
    assert median(durations_s) <= stage.segment.step_s.p90 * rounding
    assert stage.segment.step_s.p90 <= max(durations_s) * rounding


def test_only_this_segments_money_is_its_cost(stage: Stage) -> None:
    stage.clock.sleep(40.0)
    stage.run((41.0, DONE), ends_at_s=50.0)
    assert stage.segment.cost_usd == approx(10.0, abs=0.3)


def test_the_record_is_saved_at_each_epoch_and_checkpoint(tmp_path: Path) -> None:
    store = RunStore(Storage.open(str(tmp_path)), RunIndex(tmp_path / "index"))
    stage = Stage(store)
    saved: list[tuple[int, int]] = []

    def look() -> None:
        record = store.load("brave-otter")
        saved.append((record.segments[-1].steps, len(record.checkpoints)))

    position = {"fit": 0, "epoch": 1, "step": 0, "total_steps": 10}
    stage.run(
        (1.0, an_event("steps", durations_s=[0.1] * 10, total_steps=10)),
        (1.0, an_epoch(1, 0.5)),
        (2.0, look),
        (3.0, an_event("checkpoint", position=position, path="c/1", bytes=5, took_s=0.1)),
        (4.0, look),
        (5.0, DONE),
        ends_at_s=6.0,
    )
    assert saved == [(10, 0), (10, 1)]
    assert store.load("brave-otter").checkpoints[0].position == position
    assert store.load("brave-otter").segments[-1].end == "done"


# ---- what is shown


def test_the_live_line_tells_position_loss_money_and_time_left(stage: Stage) -> None:
    stage.run(
        (1.0, an_event("fit", fit=0, epochs=3, steps=10)),
        (2.0, an_event("steps", durations_s=[0.5] * 4, total_steps=4)),
        (2.0, an_event("progress", fit=0, epoch=0, step=4, loss=0.9, total_steps=4)),
        (3.0, DONE),
        ends_at_s=4.0,
        allowance=Allowance(100.0, None),
    )
    (status,) = stage.view.statuses
    assert (status.epoch, status.epochs, status.step, status.steps) == (0, 3, 4, 10)
    assert (status.loss, status.step_s, status.budget_usd) == (0.9, 0.5, 100.0)
    assert status.eta_s == approx((30 - 4) * 0.5)
    assert status.cost_usd == approx(2.0, abs=0.3)


def test_the_time_left_counts_the_evaluations_to_come(stage: Stage) -> None:
    stage.run(
        (1.0, an_event("fit", fit=0, epochs=3, steps=10)),
        (2.0, an_event("steps", durations_s=[0.5] * 10, total_steps=10)),
        (2.0, an_epoch(1, 0.7, evaluation_s=2.0)),
        (3.0, DONE),
        ends_at_s=4.0,
    )
    (status,) = stage.view.statuses
    assert status.epoch_ended
    assert status.eta_s == approx(20 * 0.5 + 2 * 2.0)


def test_a_second_fit_starts_from_its_own_first_epoch(stage: Stage) -> None:
    stage.run(
        (1.0, an_event("fit", fit=0, epochs=3, steps=10)),
        (2.0, an_epoch(3, 0.7)),
        (3.0, an_event("fit", fit=1, epochs=2, steps=20)),
        (4.0, an_event("progress", fit=1, epoch=0, step=1, loss=0.6, total_steps=31)),
        (5.0, DONE),
        ends_at_s=6.0,
    )
    status = stage.view.statuses[-1]
    assert (status.fit, status.epoch, status.epochs, status.steps) == (1, 0, 2, 20)


def test_what_evaluations_and_checkpoints_took_is_kept_for_the_next_decision(
    stage: Stage,
) -> None:
    stage.run(
        (1.0, an_epoch(1, 0.9, evaluation_s=5.0)),
        (2.0, an_epoch(2, 0.8, evaluation_s=2.0, checkpoint_s=0.03)),
        (3.0, an_epoch(3, 0.7, evaluation_s=2.2, checkpoint_s=0.05)),
        (4.0, DONE),
        ends_at_s=5.0,
    )
    segment = stage.book.record.segments[-1]
    assert (segment.evaluation_s, segment.checkpoint_s) == (2.2, 0.05)


def test_what_was_not_seen_of_evaluations_and_checkpoints_is_not_known(stage: Stage) -> None:
    stage.run((1.0, an_epoch(1, 0.9)), (2.0, DONE), ends_at_s=3.0)
    segment = stage.book.record.segments[-1]
    assert segment.evaluation_s is None
    assert segment.checkpoint_s is None


# ---- workers that wait for nobody


def test_a_failure_of_one_of_many_independent_workers_is_told_and_borne(stage: Stage) -> None:
    (segment,) = stage.book.record.segments
    plan = replace(segment.plan, strategy="decentralized")
    stage.book.segment(replace(segment, plan=plan))
    ended = stage.run(
        (1.0, an_event("error", rank=2, kind="script", text="Traceback …\nOSError: no disk\n")),
        (2.0, an_event("drift", mean_staleness=1.5, oldest=4, n_dropped=0, n_transfers=1)),
        (3.0, DONE),
        ends_at_s=4.0,
    )
    assert ended.error is None
    assert stage.view.warnings == [
        "The worker of rank 2 failed, and the others go on without it: OSError: no disk"
    ]
    assert stage.segment.drift is not None and stage.segment.drift.oldest == 4


def test_how_the_loss_went_down_is_recorded(stage: Stage) -> None:
    stage.run(
        (1.0, an_event("steps", durations_s=[0.1], total_steps=10)),
        (2.0, an_epoch(1, 0.5)),
        (3.0, DONE),
        ends_at_s=4.0,
    )
    assert [(p.steps, p.loss) for p in stage.segment.curve] == [(10, 0.5)]
