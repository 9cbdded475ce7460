from dataclasses import replace
from datetime import timedelta

import pytest

from launcher.past_runs import History, LeftOut
from launcher.record import DecisionRecord, Outcome, RunRecord, parse_timestamp, timestamp
from policies.past import PastRun
from tests.fakes import a_decision
from tests.pasts import BEFORE_S, STARTUP_S, a_trained


def past_of(record: RunRecord, *others: RunRecord) -> PastRun:
    found = History([record, *others]).past_run(record)
    assert isinstance(found, PastRun)
    return found


def test_a_run_is_known_with_what_it_took() -> None:
    record = a_trained("otter", 2)
    found = past_of(record)
    assert record.outcome is not None
    assert (found.time_s, found.cost_usd) == (record.outcome.time_s, record.outcome.cost_usd)
    assert found.situation.spent_s == BEFORE_S
    assert [x.startup_s for x in found.segments] == [STARTUP_S]
    assert (found.n_starts, found.moving_s, found.asked) == (1, 0.0, None)


def test_n_is_free_where_a_person_had_fixed_it() -> None:
    found = past_of(a_trained("otter", 2, asked=2))
    assert (found.asked, found.situation.limits.workers) == (2, None)


def test_only_what_was_measured_before_a_run_is_known_to_it() -> None:
    early, middle, late = (a_trained(name, 2, day=day) for day, name in enumerate("abc"))
    found = past_of(middle, early, late)
    assert [x.run for x in found.before] == ["a"]
    assert {x.run for x in History([early, middle, late]).segments} == {"a", "b", "c"}


def test_a_move_is_no_start_and_a_loss_is_one() -> None:
    record = a_trained("otter", 2)
    first = record.segments[0]
    assert first.ended is not None
    later = timestamp(parse_timestamp(first.ended) + timedelta(seconds=3))
    second = replace(first, started=later, first_step_at=None)
    moved = replace(record, segments=(replace(first, end="moved"), second))
    lost = replace(record, segments=(replace(first, end="failed"), second))
    assert (past_of(moved).n_starts, past_of(moved).moving_s) == (1, 3.0)
    assert (past_of(lost).n_starts, past_of(lost).moving_s) == (2, 0.0)


def left_out(**changes: object) -> RunRecord:
    return replace(a_trained("otter", 2), **changes)  # type: ignore[arg-type]


SEGMENT = a_trained("otter", 2).segments[0]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (left_out(status="running"), "has not ended"),
        (left_out(decisions=()), "before a decision"),
        (left_out(segments=()), "not trained"),
        (left_out(segments=(replace(SEGMENT, step_s=None),)), "before a step was timed"),
        (left_out(cluster=None), "before a step was timed"),
        (left_out(outcome=None), "lacks its cluster, its script or its outcome"),
        (left_out(outcome=Outcome(float("nan"), 1.0)), "a time of nan"),
        (left_out(outcome=Outcome(1.0, -2.0)), "a cost of -2"),
        (left_out(segments=(replace(SEGMENT, started="yesterday"),)), "makes no sense"),
        (
            left_out(segments=(replace(SEGMENT, plan=replace(SEGMENT.plan, nodes=("x", "y"))),)),
            "nodes that its record does not know",
        ),
    ],
)
def test_a_run_that_cannot_be_replayed_says_why(record: RunRecord, reason: str) -> None:
    good = a_trained("hare", 1)
    history = History([record, good])
    found = history.past_run(record)
    assert isinstance(found, LeftOut)
    assert reason in found.reason
    assert isinstance(history.past_run(good), PastRun)


def test_a_decision_of_an_older_record_has_all_the_work_before_it() -> None:
    record = replace(a_trained("otter", 2), decisions=(DecisionRecord(a_decision()),))
    assert past_of(record).situation.work.steps == 15_600
