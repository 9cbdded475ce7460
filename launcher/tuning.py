"""The search: trials are proposed, started, compared, stopped early, within one budget.

Trials are asked for and told one by one (`launcher.searching`), not by Ray Tune's `Tuner`: that
holds a placement group of a fixed size for each trial, in which a run would have to find its nodes,
while a `launch` run picks, measures and moves among nodes by itself; and it knows no budget.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from launcher.config import Request
from launcher.errors import BudgetTooSmallError, ClusterError, LauncherError, UsageError
from launcher.errors import TrainingFailedError as FailedError
from launcher.fleet import Berth, Fleet, Wider, left_of
from launcher.followed_trial import REFUSED, End, FollowedTrial, finished, with_last
from launcher.interrupts import Interrupts
from launcher.runs import RunStore
from launcher.searching import Search
from launcher.trials import Trials, arguments
from launcher.tune_record import OPEN, Trial, TuneBook, TuneRecord, TuneStatus

logger = logging.getLogger(__name__)

POLL_S = 0.2
MAX_FAILURES = 3  # at the start, before any trial has shown a value


class TuneView(Protocol):
    """What a search shows."""

    def stage(self, text: str) -> None:
        """Say what is going on."""

    def note(self, text: str) -> None:
        """Say in a line what happened."""

    def changed(self, record: TuneRecord, doing: Mapping[int, str]) -> None:
        """Show all trials; `doing` tells what running ones are at, by number."""


@dataclass(frozen=True, slots=True)
class Around:
    """What a search happens in.

    Attributes:
        source: the script's text.
        runs: where the runs of its trials are kept.
        clock: monotonic, in seconds.
    """

    source: str
    runs: RunStore
    trials: Trials
    view: TuneView
    interrupts: Interrupts
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Tuning:
    """One stretch of a search.

    Args:
        fixed: parameters that are the same in every trial.
    """

    def __init__(
        self,
        book: TuneBook,
        search: Search,
        fleet: Fleet,
        fixed: Mapping[str, Any],
        around: Around,
    ) -> None:
        self._book, self._search, self._fleet = book, search, fleet
        self._fixed, self._around = fixed, around
        self._began_s = around.clock() - book.record.spent_s
        self._running: dict[int, FollowedTrial] = {}
        self._waiting = deque(t for t in book.record.trials if t.status in OPEN)
        self._end: TuneStatus | None = None  # why no trial is started any more
        self._wider: Wider | None = None  # what a trial is stopping for
        self._short: TuneStatus | None = None  # of what there was too little for the last trial
        self._failure: LauncherError | None = None

    def run(self) -> TuneStatus:
        """Blocks until no trial runs and none is to be started; how the search ended.

        Raises:
            LauncherError: it failed; what trials have shown is in the record.
        """
        try:
            with self._around.interrupts.counted():
                self._adopt()
                self._until_none_runs()
        except BaseException:  # such as a storage that fails: no trial goes on without a search
            self._pause_all()
            raise
        if self._failure is None and self._end is None:
            self._failure = self._without_best()
        end = "failed" if self._failure is not None else self._end or "done"
        begun = tuple(trial for trial in self._book.record.trials if self._has_begun(trial))
        self._book.write(status=end, spent_s=self._spent_s, trials=begun)
        if self._failure is not None:
            raise self._failure
        return end

    def _until_none_runs(self) -> None:
        while True:
            self._look_for_interrupts()
            self._start_what_fits()
            self._widen()
            if not self._running:
                return
            if not self._poll():
                self._around.sleep(POLL_S)

    def _has_begun(self, trial: Trial) -> bool:
        return trial.status != "paused" or bool(trial.values) or self._around.runs.has(trial.run)

    @property
    def _spent_s(self) -> float:
        return self._around.clock() - self._began_s

    # ------------------------------------------------------------------ starting

    def _adopt(self) -> None:
        """Follow trials of an earlier stretch whose drivers outlived the search's."""
        for trial in list(self._waiting):
            runs = self._around.runs
            claim = runs.holder(trial.run) if runs.has(trial.run) else None
            driver = None if claim is None else claim.driver
            followed = None if driver is None else self._around.trials.find(driver)
            if followed is not None:
                self._waiting.remove(trial)
                self._follow(trial, followed)
            else:
                self._book.trial(replace(trial, status="paused"))

    def _start_what_fits(self) -> None:
        while self._end is None and self._failure is None:
            record = self._book.record
            left = left_of(record, self._spent_s)
            if not left.n_trials and not self._waiting:
                return
            waiting = replace(left, n_trials=left.n_trials + len(self._waiting))
            is_late = left.deadline_s == 0.0
            berth = None if is_late else self._fleet.berth(record, waiting)
            if berth is None or self._short is not None:
                if not self._running:  # else it waits for what those give back
                    self._end = self._short or ("deadline" if is_late else "budget")
                return
            if self._waiting:
                self._again(self._waiting.popleft(), berth)
            else:
                self._launch(self._proposed(), berth)

    def _proposed(self) -> Trial:
        """The next configuration as a trial that has not begun."""
        record = self._book.record
        number = max((trial.number for trial in record.trials), default=-1) + 1
        params = self._search.ask(number)
        return Trial(number, f"{record.name}-{number:03d}", params, started_s=self._spent_s)

    def _launch(self, trial: Trial, berth: Berth) -> None:
        trial = self._berthed(trial, berth)
        self._book.trial(trial)  # before the act
        self._follow(trial, self._around.trials.start(self._request(trial)))

    def _widen(self) -> None:
        """Let a trial stop and go on with nodes that no other trial is going to need."""
        record = self._book.record
        is_starting = len(record.trials) < record.n_trials or self._waiting
        if is_starting or self._end is not None or self._failure is not None:
            return
        if any(each.order != "go on" for each in self._running.values()):
            return
        wider = self._fleet.to_widen(record)
        if wider is not None:
            number = wider.trial.number
            self._around.view.note(f"trial {number} goes on with {wider.n_nodes} nodes, now free")
            self._wider = wider
            self._running[number].stop("widen")

    def _go_on_wider(self, trial: Trial) -> None:
        """Go on with a trial that has stopped for that; as any other, if that cannot be paid."""
        assert self._wider is not None
        left = left_of(self._book.record, self._spent_s)
        one = replace(left, n_trials=1)
        berth = self._fleet.wide_berth(self._book.record, one, self._wider)
        self._wider = None
        if berth is None or self._end is not None or self._failure is not None:
            self._waiting.append(trial)
        else:
            self._again(trial, berth)

    def _again(self, trial: Trial, berth: Berth) -> None:
        """Go on with a trial that was paused or lost, or take its end if it has come to one."""
        runs = self._around.runs
        if not runs.has(trial.run):
            self._launch(trial, berth)
            return
        record = runs.load(trial.run)
        if record.status == "done":
            end = End("done", 0, "")
            self._settle(
                finished(with_last(trial, record, self._book.record.metric), record, end), end
            )
            return
        trial = self._berthed(replace(trial, cost_usd=record.cost_usd), berth)
        self._book.trial(trial)
        self._follow(trial, self._around.trials.go_on(trial.run, self._request(trial)))

    def _berthed(self, trial: Trial, berth: Berth) -> Trial:
        money = berth.allotment_usd
        return replace(
            trial,
            status="running",
            nodes=berth.nodes,
            allotment_usd=None if money is None else trial.cost_usd + money,
            width_s=berth.width_s,
        )

    def _follow(self, trial: Trial, followed: Any) -> None:
        around, record = self._around, self._book.record
        self._running[trial.number] = FollowedTrial(trial, followed, record.metric, around.clock)
        self._show()

    def _request(self, trial: Trial) -> Request:
        left = left_of(self._book.record, self._spent_s)
        money = trial.allotment_usd
        return replace(
            trial_request(self._book.record, {**self._fixed, **trial.params}, self._around.source),
            name=trial.run,
            budget_usd=None if money is None else money - trial.cost_usd,
            deadline_s=left.deadline_s,
            address=self._fleet.address,
            nodes=trial.nodes,
        )

    # ------------------------------------------------------------------ following

    def _poll(self) -> bool:
        """Take what the trials show; whether that was anything."""
        has_come = False
        for each in list(self._running.values()):
            before = each.trial
            try:
                has_come |= each.poll()
            except UsageError as error:
                self._fail(error)
            self._note_metric(each)
            self._report(each, before)
            if each.end is not None:
                del self._running[each.trial.number]
                self._settle(each.trial, each.end)
                if each.order == "widen" and each.trial.status == "paused":
                    self._go_on_wider(each.trial)
        if has_come:
            self._show()
        return has_come

    def _note_metric(self, each: FollowedTrial) -> None:
        if self._book.record.metric is None and each.metric is not None:
            self._book.write(metric=each.metric)
            if not each.metric.startswith("val_"):
                self._around.view.note(
                    f"going by {each.metric}: the script reports no val_loss. Data that it does "
                    "not train on tell more: give model.fit validation data"
                )

    def _report(self, each: FollowedTrial, before: Trial) -> None:
        """Tell the searcher of new epochs, and stop what will not win."""
        trial = each.trial
        new = trial.values[len(before.values) :]
        for at in new:
            is_last = trial.epochs is not None and at.epoch >= trial.epochs
            will_lose = self._search.report(trial.number, at.epoch, at.value)
            if will_lose and not is_last and self._book.record.stops_early:
                each.stop("stop early")
        if new and each.end is None:
            self._book.trial(trial)

    def _settle(self, trial: Trial, end: End) -> None:
        """Take in how a trial ended."""
        if end.status == REFUSED:
            self._refused(trial, end)
            return
        trial = replace(trial, time_s=max(trial.time_s, self._spent_s - trial.started_s))
        self._short = None
        self._book.trial(trial)
        self._book.write(spent_s=self._spent_s)
        if trial.status in OPEN:
            return
        self._search.tell(trial.number, trial.value, is_whole=trial.status == "done")
        if trial.status == "failed":
            self._failed(trial, end)
        elif trial.status == "done" and not trial.values:
            script = self._book.record.script
            self._fail(
                UsageError(
                    f"{script} ended without an epoch of model.fit that reports a metric, so its "
                    "trials cannot be compared. Let it train by model.fit."
                )
            )

    def _refused(self, trial: Trial, end: End) -> None:
        """What is left does not pay for this trial: none is started until another has ended."""
        record = self._book.record
        is_money = trial.allotment_usd is not None and "budget" in end.text
        self._short = "budget" if is_money or record.request.deadline_s is None else "deadline"
        trial = replace(trial, status="paused", error=None)
        self._book.trial(trial)
        self._waiting.appendleft(trial)
        if not self._running and all(other.value is None for other in record.trials):
            self._failure = BudgetTooSmallError(_of_launch(end.text))

    def _failed(self, trial: Trial, end: End) -> None:
        self._around.view.note(f"trial {trial.number} failed: {trial.error}")
        has_value = any(other.value is not None for other in self._book.record.trials)
        n_failed = sum(other.status == "failed" for other in self._book.record.trials)
        text = _of_launch(end.text)
        if end.code == ClusterError.exit_code:
            self._fail(ClusterError(f"Trial {trial.number} failed: {text}"))
        elif not has_value and end.code == UsageError.exit_code:
            self._fail(UsageError(text))
        elif not has_value and n_failed >= MAX_FAILURES:
            self._fail(
                FailedError(
                    f"The first {n_failed} trials failed, so the others hardly would do better. "
                    f"The last one said: {text}"
                )
            )

    # ------------------------------------------------------------------ ending

    def _without_best(self) -> LauncherError | None:
        """Why all trials together have shown nothing; None if one is the best."""
        record = self._book.record
        failed = [trial for trial in record.trials if trial.status == "failed"]
        if record.best is not None:
            return None
        if failed:
            return FailedError(
                f"No trial has a value: {len(failed)} of {len(record.trials)} failed, the last "
                f"one by: {failed[-1].error}"
            )
        return FailedError(
            f"In no trial {record.metric} stayed a number, so none is the best. Try other ranges: "
            "smaller learning rates, say."
        )

    def _fail(self, error: LauncherError) -> None:
        self._failure = self._failure or error
        self._pause_all()

    def _look_for_interrupts(self) -> None:
        if self._around.interrupts.count and self._end != "interrupted":
            self._end = "interrupted"
            self._around.view.stage("stopping all trials at a checkpoint")
            self._pause_all()
        if self._around.interrupts.count > 1:
            raise KeyboardInterrupt  # the trials' drivers stop by themselves

    def _pause_all(self) -> None:
        for each in self._running.values():
            each.stop("pause")

    def _show(self) -> None:
        doing = {number: each.doing for number, each in self._running.items()}
        record = self._book.record
        for each in self._running.values():
            record = record.with_trial(replace(each.trial, cost_usd=each.running_usd))
        self._around.view.changed(record, doing)


def trial_request(record: TuneRecord, params: Mapping[str, Any], source: str) -> Request:
    """What a trial asks of `launch`: the search's request, with its parameters."""
    request = replace(record.request, yes=True, json=False, ray_address=None)
    if record.passes_variable:
        return replace(request, params=json.dumps(params))
    return replace(request, args=(*request.args, *arguments(params, source)))


def _of_launch(text: str) -> str:
    """An error's text without the program's name in front."""
    return text.strip().removeprefix("launch: ")
