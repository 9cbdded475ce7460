"""The search as a whole, with drivers that only seem to train."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from launcher.errors import BudgetTooSmallError, LauncherError, StorageError, UsageError
from launcher.fleet import Fleet, left_of
from launcher.interrupts import Interrupts
from launcher.searching import Search
from launcher.space_file import read_space
from launcher.tune_record import EpochValue, Trial, TuneBook, TuneRecord, new_tune_record
from launcher.tune_session import ended
from launcher.tuning import Around, Tuning
from policies.tuning import Width
from tests.fake_trials import USD_PER_EPOCH, FakeRuns, FakeTrials, Metrics, Said
from tests.fakes import NODE_IDS, NOW, FakeClock, a_node, a_request

SPACE_TEXT = "rate: {float: [0.001, 1.0], log: true}\nunits: 8\n"
WIDTHS = (Width(1, 90.0, 0.09), Width(2, 60.0, 0.12), Width(4, 50.0, 0.2))
LOCAL = Fleet("local", (), (), epochs=9)
CLUSTER = Fleet("10.0.0.4:6379", tuple(a_node(i) for i in range(4)), WIDTHS, epochs=9)


def loss(params: Mapping[str, str], epoch: int) -> dict[str, float]:
    """Smallest at a rate of 0.1, and smaller with each epoch."""
    return {"loss": 9.0, "val_loss": abs(float(params["rate"]) - 0.1) + 1 / epoch}


class Bench:
    """A search with its fakes."""

    def __init__(self, fleet: Fleet = LOCAL, metrics: Metrics = loss, **asked: Any) -> None:
        codes = asked.pop("codes", {})
        request = a_request(
            budget_usd=asked.pop("budget_usd", None), deadline_s=asked.pop("deadline_s", None)
        )
        self.clock = FakeClock()
        self.trials = FakeTrials(metrics, self.clock, codes=codes)
        self.fleet, self.view = fleet, Said()
        self.interrupts = Interrupts()
        self.n_saved, self.fails_at = 0, 0
        defaults = {"metric": None, "mode": "min", "searcher": "tpe", "n_trials": 9}
        self.book = TuneBook(
            new_tune_record(
                NOW,
                **{
                    "name": "tune-otter",
                    "request": request,
                    "script": "train.py",
                    "passes_variable": False,
                    "space_file": "space.yaml",
                    "space": SPACE_TEXT,
                    **defaults,
                    **asked,
                },
            ),
            self._save,
        )

    def _save(self, record: TuneRecord) -> None:
        self.n_saved += 1
        if self.n_saved == self.fails_at:
            raise StorageError("The disk is full.")

    def run(self) -> TuneRecord:
        space = read_space(SPACE_TEXT, "space.yaml")
        record = self.book.record
        search = Search(space, "tpe", 7, record.mode or "min", 9)
        search.replay(ended(trial) for trial in record.trials)
        around = Around(
            "",
            FakeRuns(self.trials),  # type: ignore[arg-type]
            self.trials,
            self.view,
            self.interrupts,
            self.clock,
            self.clock.sleep,
        )
        Tuning(self.book, search, self.fleet, space.fixed, around).run()
        return self.book.record


def test_trials_follow_one_another_and_the_best_one_is_found() -> None:
    bench = Bench(stops_early=False, n_trials=6)
    record = bench.run()
    assert record.status == "done"
    assert [trial.status for trial in record.trials] == ["done"] * 6
    assert bench.trials.most_at_once == 1
    best = record.best
    assert best is not None
    assert best.value == min(t.value for t in record.trials if t.value is not None)
    assert best.model == f"/models/{best.run}.keras"
    assert record.metric == "val_loss"
    assert [trial.epoch for trial in record.trials] == [9] * 6
    args = bench.trials.drivers[0].request.args
    assert args == ("--units", "8", "--rate", repr(record.trials[0].params["rate"]))


def test_what_will_not_win_is_stopped_early() -> None:
    record = Bench().run()
    stopped = [trial for trial in record.trials if trial.status == "stopped"]
    assert 4 <= len(stopped) <= 8
    assert {trial.epoch for trial in stopped} <= {1, 2, 3, 4}
    best = record.best
    assert best is not None
    assert best.status == "done"


def test_trials_share_the_nodes_without_sharing_a_node() -> None:
    bench = Bench(CLUSTER, stops_early=False, n_trials=8)
    record = bench.run()
    assert bench.trials.most_at_once == 4
    first = [driver.request.nodes for driver in bench.trials.drivers[:4]]
    assert sorted(nodes[0] for nodes in first) == sorted(NODE_IDS[:4])
    assert all(len(nodes) == 1 for nodes in first)
    assert {driver.request.address for driver in bench.trials.drivers} == {"10.0.0.4:6379"}
    assert len(record.trials) == 8


def test_a_trial_that_goes_on_alone_takes_the_nodes_that_others_leave() -> None:
    slow = replace(CLUSTER, widths=(Width(1, 900.0, 0.09), Width(2, 500.0, 0.1)))
    bench = Bench(slow, n_trials=4, max_at_once=4)  # all but the best two are stopped early
    record = bench.run()
    (wider, *_) = [driver for driver in bench.trials.drivers if len(driver.request.nodes) == 2]
    assert str(wider.request.name) in bench.trials.resumed
    trial = next(trial for trial in record.trials if trial.run == wider.request.name)
    assert trial.status == "done"
    assert [at.epoch for at in trial.values] == list(range(1, 10))
    used = [set(d.request.nodes) for d in bench.trials.drivers if not d.ended]
    assert used == []


def test_the_last_trial_gets_all_nodes() -> None:
    bench = Bench(CLUSTER, stops_early=False, n_trials=1)
    bench.run()
    assert len(bench.trials.drivers[0].request.nodes) == 4


@pytest.mark.parametrize("fleet", [LOCAL, CLUSTER])
def test_all_trials_together_keep_within_the_budget(fleet: Fleet) -> None:
    record = Bench(fleet, stops_early=False, n_trials=30, budget_usd=0.5).run()
    assert record.status == "budget"
    assert 0.3 < record.cost_usd <= 0.5
    best = record.best
    assert best is not None
    assert best.status == "done"


def test_a_search_ends_at_its_deadline() -> None:
    bench = Bench(stops_early=False, n_trials=30, deadline_s=200.0)
    record = bench.run()
    assert record.status == "deadline"
    assert len(record.trials) < 5
    assert bench.trials.drivers[1].request.deadline_s == pytest.approx(110.0, abs=2.0)


def test_a_budget_that_pays_for_no_trial_is_refused() -> None:
    bench = Bench(budget_usd=0.9 * USD_PER_EPOCH)
    with pytest.raises(BudgetTooSmallError, match="over the budget"):
        bench.run()
    assert bench.book.record.status == "failed"
    assert bench.book.record.trials == ()


def test_a_trial_that_is_refused_waits_for_what_others_give_back() -> None:
    bench = Bench(CLUSTER, stops_early=False, n_trials=3, codes={1: 3}, budget_usd=1.0)
    record = bench.run()
    assert record.status == "done"
    assert [trial.status for trial in record.trials] == ["done"] * 3
    names = [driver.request.name for driver in bench.trials.drivers]
    refused, again, *_ = (i for i, name in enumerate(names) if name == "tune-otter-001")
    assert (refused, bench.trials.drivers[again].code) == (1, None)
    assert all(driver.ended for driver in bench.trials.drivers[:again] if driver.code is not None)


def test_an_interrupt_pauses_the_trials_and_a_resumed_search_goes_on_with_them() -> None:
    bench = Bench(n_trials=5, stops_early=False)

    def interrupt(params: Mapping[str, str], epoch: int) -> Mapping[str, float]:
        if len(bench.trials.drivers) == 3 and epoch == 4:
            bench.interrupts.count = 1
        return loss(params, epoch)

    bench.trials.metrics = interrupt
    record = bench.run()
    assert record.status == "interrupted"
    assert [trial.status for trial in record.trials] == ["done", "done", "paused"]
    assert record.trials[2].epoch >= 4

    bench.interrupts = Interrupts()
    bench.trials.metrics = loss
    bench.book.write(status="running")
    record = bench.run()
    assert bench.trials.resumed == ["tune-otter-002"]
    assert [trial.status for trial in record.trials] == ["done"] * 5
    assert [at.epoch for at in record.trials[2].values] == list(range(1, 10))


def test_a_trial_that_fails_hinders_no_other() -> None:
    bench = Bench(codes={1: 1}, n_trials=4, stops_early=False)
    record = bench.run()
    assert [trial.status for trial in record.trials] == ["done", "failed", "done", "done"]
    assert record.trials[1].error == "launch: it says so"
    assert "trial 1 failed: launch: it says so" in bench.view.notes


@pytest.mark.parametrize(
    ("codes", "error", "message", "n"),
    [
        ({0: 2}, UsageError, "it says so", 1),
        ({0: 1, 1: 1, 2: 1}, LauncherError, "The first 3 trials failed", 3),
        ({1: 4}, LauncherError, "Trial 1 failed: it says so", 2),
    ],
)
def test_a_search_that_cannot_go_well_ends(
    codes: dict[int, int], error: type[LauncherError], message: str, n: int
) -> None:
    bench = Bench(codes=codes, n_trials=9, stops_early=False)
    with pytest.raises(error, match=message):
        bench.run()
    assert len(bench.book.record.trials) == n
    assert bench.book.record.status == "failed"


def test_a_search_of_few_trials_that_all_failed_has_failed() -> None:
    bench = Bench(codes={0: 1, 1: 1}, n_trials=2)
    with pytest.raises(LauncherError, match=r"2 of 2 failed, the last one by: launch: it says so"):
        bench.run()
    assert bench.book.record.status == "failed"


def test_a_search_whose_trials_all_diverge_says_what_to_do() -> None:
    bench = Bench(metrics=lambda params, epoch: {"val_loss": float("nan")}, n_trials=2)
    with pytest.raises(LauncherError, match=r"In no trial val_loss stayed a number.* smaller"):
        bench.run()


def test_no_trial_goes_on_when_the_search_has_ended_by_an_error() -> None:
    bench = Bench(CLUSTER)
    bench.fails_at = 7
    with pytest.raises(StorageError):
        bench.run()
    assert len(bench.trials.drivers) == 4
    assert all(driver.stopped for driver in bench.trials.drivers)


def test_a_metric_that_the_script_does_not_report_is_told_with_those_it_does() -> None:
    bench = Bench(metric="val_accuracy", mode="max")
    with pytest.raises(UsageError, match="reports no 'val_accuracy': it reports loss, val_loss"):
        bench.run()


def test_a_script_that_shows_no_epoch_cannot_be_tuned() -> None:
    bench = Bench()
    bench.trials.epochs = 0
    with pytest.raises(UsageError, match=r"train\.py ended without an epoch of model\.fit"):
        bench.run()


def test_without_validation_data_the_loss_counts_and_that_is_said() -> None:
    bench = Bench(metrics=lambda params, epoch: {"loss": 1 / epoch, "lr": 0.1}, n_trials=1)
    assert bench.run().metric == "loss"
    assert "going by loss" in bench.view.notes[0]


def test_a_trial_whose_loss_is_no_number_is_never_the_best() -> None:
    def metrics(params: Mapping[str, str], epoch: int) -> dict[str, float]:
        return {"val_loss": float("nan") if float(params["rate"]) > 0.02 else 1.0}

    record = Bench(metrics=metrics).run()
    best = record.best
    assert best is not None
    assert best.value == 1.0
    assert any(trial.value is None for trial in record.trials)


def test_a_running_trial_keeps_its_allotment_from_the_others() -> None:
    record = Bench(budget_usd=1.0).book.record
    trial = Trial(0, "tune-otter-000", {}, "running", allotment_usd=0.4, cost_usd=0.1)
    done = Trial(1, "tune-otter-001", {}, "done", allotment_usd=0.4, cost_usd=0.2)
    left = left_of(record.with_trial(trial).with_trial(done), 0.0)
    assert left.budget_usd == pytest.approx(0.4)
    assert left.n_trials == 7


def test_what_running_trials_may_spend_does_not_narrow_the_others() -> None:
    bench = Bench(CLUSTER, stops_early=False, n_trials=4, budget_usd=0.45)
    bench.run()
    assert bench.trials.most_at_once == 4


def test_trials_that_took_longer_than_predicted_make_the_rest_look_longer() -> None:
    record = Bench(CLUSTER, n_trials=8).book.record
    slow = Trial(
        0,
        "tune-otter-000",
        {},
        "done",
        values=(EpochValue(9, 1.0),),
        epochs=9,
        time_s=200.0,
        training_s=180.0,
        width_s=90.0,
    )
    before = CLUSTER.split(record, left_of(record, 0.0))
    after = CLUSTER.split(record.with_trial(slow), left_of(record, 0.0))
    assert before is not None
    assert after is not None
    assert after.time_s > 1.5 * before.time_s


def test_the_best_of_a_search_for_a_large_metric_is_the_largest() -> None:
    trials = [
        Trial(n, f"t-{n}", {}, status, values=(EpochValue(9, value),))  # type: ignore[arg-type]
        for n, (status, value) in enumerate([("done", 0.8), ("done", 0.9), ("stopped", 0.95)])
    ]
    record = replace(Bench(mode="max").book.record, trials=tuple(trials))
    best = record.best
    assert best is not None
    assert best.number == 1
