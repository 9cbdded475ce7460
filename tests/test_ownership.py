import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import TakenOverError, UsageError
from launcher.ownership import (
    CLOCK_SKEW_S,
    SILENT_LATE_S,
    SILENT_S,
    Claim,
    Driver,
    Ownership,
    Watch,
    highest_term,
    shown_status,
    this_driver,
)
from launcher.process import Process, process
from launcher.record import RunRecord
from launcher.runs import RunIndex, RunStore
from launcher.storage import Storage
from tests.fakes import NOW, FakeClock, a_record

FAR = Driver(Process("eve", "far", 7, "another machine"))
RUN = "brave-otter"


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Storage.open(str(tmp_path / "launch")), RunIndex(tmp_path / "index"))


def running(driver: Driver = FAR, **changes: object) -> RunRecord:
    record = replace(a_record(), status="running", exit_code=None, owner=str(driver))
    return replace(record, **changes)  # type: ignore[arg-type]


def claimed(store: RunStore, driver: Driver = FAR, **changes: object) -> RunRecord:
    """A running run that a driver holds."""
    record = running(driver, **changes)
    assert store.ownership(RUN).take(record.term, driver)
    store.save(record)
    return record


def watch(clock: FakeClock, *, skew_s: float = 0.0) -> Watch:
    """Looks by a clock that moves by its own sleeps; `skew_s` before that of the driver."""
    return Watch(clock, clock.sleep, lambda: NOW + timedelta(seconds=clock.now_s + skew_s))


# ---- claims


def test_the_highest_term_is_the_one_in_force(store: RunStore) -> None:
    ownership = store.ownership(RUN)
    assert (ownership.holder(), ownership.reached()) == (None, 0)
    for term in (1, 2, 10):
        assert ownership.take(term, FAR)
    assert not ownership.take(10, this_driver())
    assert ownership.holder() == Claim(10, FAR)


def test_claims_that_are_being_decided_are_reached_but_not_held() -> None:
    names = ("owner", "owner.claims", "owner.2", "owner.3.claims", "owner.txt", "run.json")
    assert highest_term(names, held=True) == 2
    assert highest_term(names, held=False) == 3


@pytest.mark.parametrize("content", [b"", b"me@host:1 0123\n", b"{}", b'{"driver": 3}'])
def test_a_claim_that_cannot_be_read_is_someones(store: RunStore, content: bytes) -> None:
    store.storage.write(f"runs/{RUN}/owner", content)
    claim = store.holder(RUN)
    assert claim == Claim(1)
    assert claim.owner == "someone"


def test_a_claim_keeps_no_more_than_who_and_where(store: RunStore) -> None:
    store.ownership(RUN).take(1, FAR)
    content = json.loads(store.folder(RUN).read("owner"))
    assert set(content) == {"owner", "token", "driver"}
    assert content["owner"] == "eve@far:7"


def test_a_driver_of_an_earlier_term_writes_nothing_more(store: RunStore) -> None:
    record = claimed(store)
    store.ownership(RUN).take(2, this_driver())
    with pytest.raises(TakenOverError, match=r"brave-otter has been taken over by .*: launch att"):
        store.save(replace(record, status="failed"))
    assert store.load(RUN) == record


def test_a_request_to_stop_is_for_one_driver_only(store: RunStore) -> None:
    ownership = store.ownership(RUN)
    ownership.ask_to_stop(2)
    assert [ownership.is_asked_to_stop(term) for term in (1, 2, 3)] == [False, True, False]


# ---- taking over


def test_a_run_that_stopped_is_taken_over_at_once(store: RunStore) -> None:
    record = claimed(store, status="budget")
    clock = FakeClock()
    taken = store.take_over(record, this_driver(), watch(clock))
    assert (taken.term, taken.owner, clock.now_s) == (2, str(this_driver()), 0.0)


def test_a_run_of_a_living_process_here_is_refused_at_once(store: RunStore) -> None:
    mine = this_driver()
    record = claimed(store, mine)
    clock = FakeClock()
    with pytest.raises(UsageError, match=rf"still running \(owner {mine}\).*launch stop brave-ot"):
        store.take_over(record, this_driver(), watch(clock))
    assert clock.now_s == 0.0


def test_a_run_of_an_ended_process_here_is_taken_over_at_once(store: RunStore) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        gone = Driver(process(child.pid))
        child.kill()
    record = claimed(store, gone)
    clock = FakeClock()
    assert store.take_over(record, this_driver(), watch(clock)).term == 2
    assert clock.now_s == 0.0


def test_a_run_of_a_suspended_process_here_is_left_to_it(store: RunStore) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        asleep = Driver(process(child.pid))
        record = claimed(store, asleep)
        asleep.process.signal(19)
        with pytest.raises(UsageError, match=f"kill -CONT {child.pid}"):
            while asleep.process.is_alive:  # until the signal has arrived
                with pytest.raises(UsageError) as refused:
                    store.take_over(record, this_driver(), watch(FakeClock()))
                if "suspended" in str(refused.value):
                    raise refused.value
        child.kill()


@pytest.mark.parametrize("skew_s", [-3600.0, 0.0, 3600.0])
def test_a_driver_elsewhere_that_beats_is_not_lost_whatever_the_clocks_say(
    store: RunStore, skew_s: float
) -> None:
    record = claimed(store)
    clock = FakeClock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now_s >= 10:
            store.save(record.beaten(NOW + timedelta(seconds=clock.now_s)))

    look = replace(watch(clock, skew_s=skew_s), sleep=sleep)
    with pytest.raises(UsageError, match=r"still running \(owner eve@far:7\)"):
        store.take_over(record, this_driver(), look)
    assert clock.now_s == pytest.approx(10)
    assert store.ownership(RUN).reached() == 1


@pytest.mark.parametrize(
    ("skew_s", "takes_s"), [(-3600.0, SILENT_S), (0.0, SILENT_S), (3600.0, SILENT_LATE_S)]
)
def test_a_driver_elsewhere_that_is_silent_is_lost_whatever_the_clocks_say(
    store: RunStore, skew_s: float, takes_s: float
) -> None:
    record = claimed(store)
    clock = FakeClock()
    said: list[str] = []
    look = replace(watch(clock, skew_s=skew_s), say=said.append)
    assert store.take_over(record, this_driver(), look).term == 2
    assert clock.now_s == pytest.approx(takes_s)
    assert said == [f"looking for up to {takes_s:.0f} s whether {RUN} is still driven by eve@far:7"]


def test_who_claimed_but_has_not_written_yet_is_watched_as_well(store: RunStore) -> None:
    record = claimed(store, status="budget")
    store.ownership(RUN).take(2, FAR)
    clock = FakeClock()
    assert store.take_over(record, this_driver(), watch(clock)).term == 3
    assert clock.now_s == pytest.approx(SILENT_S)


def test_of_two_who_resume_one_is_told_that_the_other_was_faster(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = claimed(store, status="interrupted")
    reached = Ownership.reached

    def slow(self: Ownership) -> int:
        found = reached(self)
        self.take(found + 1, FAR)  # between the look and the claim
        return found

    monkeypatch.setattr(Ownership, "reached", slow)
    with pytest.raises(UsageError, match="has just been resumed by someone else"):
        store.take_over(record, this_driver(), watch(FakeClock()))


def resuming(store: RunStore, driver: Driver, won: list[int]) -> Iterator[None]:
    """Resume and write three times, in steps between which others have their turn."""
    record = store.load(RUN)
    yield
    term = max(store.ownership(RUN).reached(), record.term) + 1
    yield
    if not store.ownership(RUN).take(term, driver):
        return
    won.append(term)
    mine = replace(record, term=term, owner=str(driver))
    for _ in range(3):
        yield
        try:
            store.save(mine)
        except TakenOverError:
            return
        # Nobody with a later term has written yet: what is there is ours.
        assert store.load(RUN).owner == str(driver)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2), max_size=30))
def test_every_term_has_one_winner_and_a_later_one_silences_the_earlier(
    tmp_path_factory: pytest.TempPathFactory, turns: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("storage")
    store = RunStore(Storage.open(str(folder)), RunIndex(folder / "index"))
    claimed(store, status="budget")
    won: list[int] = []
    drivers = [Driver(Process("eve", f"host{n}", n)) for n in range(3)]
    waiting = [resuming(store, driver, won) for driver in drivers]
    for turn in [*turns, *[n for n in range(3) for _ in range(8)]]:
        next(waiting[turn], None)
    assert sorted(won) == list(range(2, 2 + len(won)))  # none twice, none left out
    assert won
    last = store.load(RUN)
    assert last.term == max(won)
    assert last.owner == store.holder(RUN).owner  # type: ignore[union-attr]


# ---- shown


def test_a_running_run_is_shown_as_detached_if_it_is() -> None:
    claim = Claim(1, FAR)
    assert shown_status(running(), claim, NOW) == "running"
    assert shown_status(running(detached=True), claim, NOW) == "detached"
    assert shown_status(replace(a_record(), detached=True), claim, NOW) == "done"


def test_a_run_elsewhere_is_lost_when_no_clock_could_explain_its_silence() -> None:
    late = NOW + timedelta(seconds=SILENT_S + CLOCK_SKEW_S - 1)
    for claim in (Claim(1, FAR), None):
        assert shown_status(running(), claim, late) == "running"
        assert shown_status(running(), claim, late + timedelta(seconds=2)) == "lost"
        assert shown_status(running(), claim, NOW - timedelta(hours=1)) == "running"


def test_a_run_of_this_machine_is_lost_as_soon_as_its_process_is_gone() -> None:
    mine = this_driver()
    late = NOW + timedelta(hours=3)
    assert shown_status(running(mine), Claim(1, mine), late) == "running"
    gone = Driver(replace(mine.process, started="1"))
    assert shown_status(running(gone), Claim(1, gone), NOW) == "lost"
