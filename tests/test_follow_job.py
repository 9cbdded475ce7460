"""Runs that are followed by what their job says."""

import threading
import time
from collections.abc import Callable

import pytest

from launcher.errors import ClusterError
from launcher.follow_job import SILENT, Begun, JobFollowed, JobLog, begun_run
from launcher.jobs import DRIVER
from launcher.journal import Entry
from tests.fake_jobs import BROKEN, FakeJobs, begun, line, result
from tests.fakes import soon

LINES = [line("stage", text="a"), line("line", text="größer"), result()]


def followed(jobs: FakeJobs) -> JobFollowed:
    job = jobs.submit(DRIVER, None, "run")
    log = JobLog(jobs, job, wait=lambda _: time.sleep(0.001))
    return JobFollowed(jobs, job, log)


def all_of(driver: JobFollowed, until: Callable[[list[Entry]], bool]) -> list[Entry]:
    found: list[Entry] = []

    def is_done() -> bool:
        found.extend(driver.entries())
        return until(found)

    assert soon(is_done)
    return found


def test_a_run_is_followed_by_what_its_job_says() -> None:
    driver = followed(FakeJobs([["Running entrypoint for job 1: x\n", *LINES]]))
    found = all_of(driver, lambda entries: len(entries) == 3)
    assert [entry.kind for entry in found] == ["stage", "line", "result"]
    assert found[1].text == "größer"
    assert soon(lambda: not driver.is_alive())


def test_a_broken_line_is_taken_up_where_it_broke() -> None:
    whole = "".join(LINES)
    middle = whole.index("größer") + 3  # in the middle of an entry
    jobs = FakeJobs([[whole[:middle], BROKEN], [BROKEN], [whole[:10], whole[10:]]])
    found = all_of(followed(jobs), lambda entries: len(entries) == 3)
    assert [entry.text for entry in found[:2]] == ["a", "größer"]


def test_a_head_that_is_out_of_reach_is_told_of_once_and_so_is_its_return() -> None:
    whole = [*LINES[:1], BROKEN]
    jobs = FakeJobs([whole, [BROKEN], [BROKEN], LINES])
    may_go_on = threading.Event()
    job = jobs.submit(DRIVER, None, "run")
    log = JobLog(jobs, job, wait=lambda _: may_go_on.wait(600.0))
    driver = JobFollowed(jobs, job, log)
    found = all_of(driver, lambda entries: len(entries) == 2)
    assert [entry.text for entry in found] == ["a", SILENT]
    assert driver.entries() == []
    may_go_on.set()
    found = all_of(driver, lambda entries: any(entry.kind == "result" for entry in entries))
    assert SILENT not in [entry.text for entry in found]


def test_a_driver_that_does_not_start_is_an_error_with_its_last_words() -> None:
    said = ["Running entrypoint for job 1: x\n", "python: No module named launcher\n"]
    driver = followed(FakeJobs([said]))
    with pytest.raises(ClusterError, match=r"did not start .*No module named launcher\. Is the"):
        soon(lambda: bool(driver.entries()))


def test_a_job_that_never_ran_tells_what_its_server_says() -> None:
    driver = followed(FakeJobs([[]], message="Failed to set up runtime environment."))
    with pytest.raises(ClusterError, match=r"driver: Failed to set up runtime environment\. Is"):
        soon(lambda: bool(driver.entries()))


def test_a_refusal_ends_it() -> None:
    driver = followed(FakeJobs([[ClusterError("no such job")]]))
    with pytest.raises(ClusterError, match="no such job"):
        soon(lambda: bool(driver.entries()))


def test_an_answer_is_left_beside_the_drivers_journal() -> None:
    jobs = FakeJobs([[line("question", index=2)]])
    driver = followed(jobs)
    driver.answer(2, "yes; rm -rf x\n")
    command = jobs.submitted[-1].command
    assert "'yes; rm -rf x' >job-driver-job-0.log.answer-2.part && mv" in command


def test_which_run_a_job_drives_is_in_what_it_says() -> None:
    jobs = FakeJobs([[begun("far", "/x")[:20], begun("far", "/x")[20:]]])
    assert begun_run(jobs, jobs.submit(DRIVER, None, "run")) == Begun("far", "/x")
    none = FakeJobs([[result(4)]])
    assert begun_run(none, none.submit(DRIVER, None, "run")) is None
