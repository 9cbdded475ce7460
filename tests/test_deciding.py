from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cluster import Cluster
from launcher.config import Request
from launcher.deciding import Decider, stops_s
from launcher.errors import BudgetTooSmallError
from launcher.prepare import Measured
from tests.fake_posts import a_stretch
from tests.fakes import (
    FakeScreen,
    a_decision,
    a_network,
    a_node,
    a_plan,
    a_record,
    a_request,
    a_workload,
)

UNSURE = replace(a_decision(), p_fits=0.4)


def decider(request: Request, screen: FakeScreen, folder: Path) -> Decider:
    return Decider(a_stretch(request, screen, folder))


def test_a_plan_that_surely_fits_needs_no_question(tmp_path: Path) -> None:
    decider(a_request(str(tmp_path)), FakeScreen(), tmp_path).confirm(a_decision())


def test_yes_answers_the_question(tmp_path: Path) -> None:
    decider(a_request(str(tmp_path), yes=True), FakeScreen(), tmp_path).confirm(UNSURE)


def test_without_a_terminal_an_unsure_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetTooSmallError, match=r"probability of 40%.*--yes.*raise --budget"):
        decider(a_request(str(tmp_path)), FakeScreen(), tmp_path).confirm(UNSURE)


@pytest.mark.parametrize("answer", [True, False])
def test_at_a_terminal_the_user_decides(tmp_path: Path, answer: bool) -> None:
    screen = FakeScreen(answer=answer)
    request = a_request(str(tmp_path), budget_usd=None, deadline_s=60.0, stdin_is_tty=True)
    if answer:
        decider(request, screen, tmp_path).confirm(UNSURE)
    else:
        with pytest.raises(BudgetTooSmallError, match="Not started: raise --deadline"):
            decider(request, screen, tmp_path).confirm(UNSURE)
    assert len(screen.questions) == 1
    assert "probably stop at the deadline" in screen.questions[0]


@pytest.mark.parametrize(("has_begun", "workers", "at_most"), [(False, 9, None), (True, None, 9)])
def test_a_run_that_has_begun_goes_on_with_as_many_workers_as_there_is_room_for(
    tmp_path: Path, has_begun: bool, workers: int | None, at_most: int | None
) -> None:
    screen = FakeScreen()
    stretch = a_stretch(a_request(str(tmp_path), workers=9, cpus_per_worker=8.0), screen, tmp_path)
    if not has_begun:
        stretch.book.write(replace(stretch.book.record, segments=()))
    cluster = Cluster("10.0.0.4:6379", False, (a_node(0), a_node(1)), "joined")
    measured = Measured(a_network(), a_workload(), profile_remembered=True)
    limits = Decider(stretch).situation(cluster, measured, {}).limits
    assert (limits.workers, limits.max_workers) == (workers, at_most)
    warned = ["9 workers cannot be had any more: going on with fewer."]
    assert screen.warnings == (warned if has_begun else [])


def test_each_stop_of_a_run_is_known_by_the_time_until_the_next_segment() -> None:
    record = a_record()
    (segment,) = record.segments
    first = replace(segment, ended="2026-11-30T12:01:00.000Z", end="failed")
    second = replace(
        segment,
        started="2026-11-30T12:01:06.500Z",
        ended="2026-11-30T12:05:00.000Z",
        end="moved",
    )
    third = replace(segment, started="2026-11-30T12:05:02.000Z", ended=None, end=None)
    assert stops_s(record) == ()
    assert stops_s(replace(record, segments=(first, second, third))) == (6.5, 2.0)


def test_a_pause_between_two_stretches_of_a_run_is_no_stop() -> None:
    record = a_record()
    (segment,) = record.segments
    later = replace(segment, started="2026-12-01T12:00:00.000Z")
    stopped = replace(segment, end="interrupted")
    assert stops_s(replace(record, segments=(stopped, later))) == ()


def test_what_was_measured_with_a_node_that_slowed_down_does_not_count(tmp_path: Path) -> None:
    screen = FakeScreen()
    made = decider(a_request(str(tmp_path)), screen, tmp_path)
    assert len(made.experience()) == 1
    assert made.experience(slow=["another"]) == made.experience()
    assert made.experience(slow=[a_plan(3).nodes[1]]) == []
