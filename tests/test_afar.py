"""Runs that are sent to a cluster afar: handed over, watched, left, brought home."""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from launcher import afar, follow_job
from launcher.afar import (
    Sent,
    attach_afar,
    launch_afar,
    located,
    origin_afar,
    record_afar,
    stop_afar,
)
from launcher.budget import Upkeep
from launcher.command import Session
from launcher.config import Environment, Request, Terminal
from launcher.errors import ClusterError, RecordError, UsageError
from launcher.follow import Follower
from launcher.job_book import JobBook, JobPlace
from launcher.jobs import ORDERS, Jobs
from launcher.journal import Entry
from launcher.record import dump_record
from launcher.runs import RunIndex, open_store
from launcher.sites import Reach
from launcher.spawned import Orders
from launcher.stored import Shipped
from tests.fake_jobs import BROKEN, FakeJobs, begun, line, result
from tests.fakes import a_record, a_request

SHIPPED = Shipped(b"zip", "f" * 16, "train.py", "/project", "train.py", "fit", ("keras",))
UPKEEP = Upkeep(60.0, 0.5, 0.1)


@dataclass
class FakeSite:
    """A cluster that is reached at once; what it is told at the end is kept."""

    jobs: FakeJobs
    upkeep: Upkeep | None = None
    finished: list[bool] = field(default_factory=list)
    stays: str = ""

    def place(self, job: str, storage: str) -> JobPlace:
        return JobPlace(job, storage, address="http://far:8265")

    @contextmanager
    def ready(self, logs: Path, request: Request) -> Iterator[Reach]:
        yield Reach(self.jobs, self.upkeep, self._finish)

    def _finish(self, is_safe: bool) -> None:
        self.finished.append(is_safe)
        if self.stays:
            raise ClusterError(self.stays)

    @contextmanager
    def reached(self, logs: Path) -> Iterator[Jobs]:
        yield self.jobs


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Environment(home=tmp_path / "laptop", cwd=tmp_path), Terminal())


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return a_request(str(tmp_path / "laptop" / "launch"), budget_usd=5.0)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """The head's storage, with a run that is done."""
    folder = tmp_path / "head"
    run = folder / "runs" / "far"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "1.npz").write_bytes(b"state")
    (run / "model.keras").write_bytes(b"model")
    (run / "run.json").write_text(dump_record(a_record("far", str(folder))))
    return folder


def told(head: Path, *lines: str, code: int = 0, status: str = "done", text: str = "") -> list[str]:
    """What a driver says of a run that is kept in the head's storage."""
    record = json.loads((head / "runs" / "far" / "run.json").read_text()) | {"status": status}
    return [begun("far", str(head)), *lines, result(code, text, **record)]


def sent(request: Request, **changes: object) -> Sent:
    return replace(Sent(request, request.storage, SHIPPED), **changes)  # type: ignore[arg-type]


def home_of(session: Session) -> Path:
    return session.environment.home / "launch" / "runs" / "far"


def test_a_run_is_shown_here_and_its_results_come_home(
    session: Session, request_: Request, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [
        line("output", text="los geht's\n", stream="stdout"),
        line("print", text="done in 3 s\n"),
    ]
    site = FakeSite(FakeJobs([told(head, *said)]))
    assert launch_afar(session, site, sent(request_)) == 0
    out, err = capsys.readouterr()
    assert "los geht's\ndone in 3 s\n" in out
    assert "Ctrl-C stops the run at a checkpoint" in err
    assert f"brought home: {home_of(session)}/model.keras" in err
    assert (home_of(session) / "model.keras").read_bytes() == b"model"
    assert not (home_of(session) / "checkpoints").exists()
    assert site.finished == [True]
    store = open_store(request_.storage, RunIndex(session.environment.state_dir / "runs"), "far")
    assert store.load("far").run == "far"


def test_the_driver_there_gets_the_folder_and_what_the_cluster_has_cost(
    session: Session, request_: Request, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = FakeSite(FakeJobs([told(head)]), UPKEEP)
    launch_afar(session, site, sent(replace(request_, data=("/sets/mnist", "s3://b/set"))))
    assert "--data /sets/mnist is looked for on the cluster's head" in capsys.readouterr().err
    handed = site.jobs.submitted[0]
    orders: Orders = pickle.loads(handed.files[ORDERS])
    assert "-P -m launcher.job_driver" in handed.command
    assert (orders.shipped, orders.home) == (SHIPPED, None)
    assert (orders.request.storage, orders.request.upkeep) == ("", UPKEEP)


def test_a_storage_outside_of_all_machines_is_used_there(
    session: Session, request_: Request, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (head / "runs" / "far" / "run.json").write_text(dump_record(a_record("far", "s3://b/x")))
    lines = told(head)
    lines[0] = begun("far", "s3://b/x")
    site = FakeSite(FakeJobs([lines]))
    request = replace(request_, storage="s3://b/x")
    assert launch_afar(session, site, sent(request)) == 0
    orders: Orders = pickle.loads(site.jobs.submitted[0].files[ORDERS])
    assert orders.request.storage == "s3://b/x"
    assert (
        "the results are in s3://b/x. Bring them here: launch fetch far" in capsys.readouterr().err
    )
    assert (len(site.jobs.submitted), site.finished) == (1, [True])


def test_what_can_go_on_comes_home_with_its_states(
    session: Session, request_: Request, head: Path
) -> None:
    lines = told(head, code=5, status="budget")
    assert launch_afar(session, FakeSite(FakeJobs([lines])), sent(request_)) == 5
    assert (home_of(session) / "checkpoints" / "1.npz").read_bytes() == b"state"


def test_a_failing_script_shows_its_own_traceback(
    session: Session, request_: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    traceback = 'Traceback (most recent call last):\n  File "train.py", line 1\nValueError: no\n'
    record = json.loads(dump_record(a_record("far"))) | {"segments": [], "status": "failed"}
    jobs = FakeJobs([[begun("far"), result(1, traceback, **record)]])
    assert launch_afar(session, FakeSite(jobs), sent(request_)) == 1
    assert capsys.readouterr().err.endswith(traceback)
    assert len(jobs.submitted) == 1  # it has left nothing to fetch
    assert JobBook(session.environment.state_dir / "jobs").find("far") is None


def test_results_that_do_not_come_home_keep_the_cluster_up(
    session: Session, request_: Request, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home_of(session).mkdir(parents=True)
    (home_of(session) / "model.keras").write_bytes(b"another one")
    site = FakeSite(FakeJobs([told(head)]))
    assert launch_afar(session, site, sent(request_)) == 0
    assert "the results are not home: " in capsys.readouterr().err
    assert site.finished == [False]


def test_a_head_that_is_this_machine_has_nothing_to_bring(
    session: Session, request_: Request, head: Path
) -> None:
    site = FakeSite(FakeJobs([told(head)]))
    assert launch_afar(session, site, sent(request_, home=str(head))) == 0
    assert (len(site.jobs.submitted), site.finished) == (1, [True])


def test_a_refusal_there_is_the_end(
    session: Session, request_: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = FakeJobs([[result(3, "launch: The cheapest plan costs $9.\n")]])
    assert launch_afar(session, FakeSite(jobs), sent(request_)) == 3
    assert "The cheapest plan costs $9." in capsys.readouterr().err


def test_a_detached_run_is_left_once_it_trains(
    session: Session, request_: Request, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = FakeSite(FakeJobs([[begun("far", str(head)), line("training", step=1)]]))
    assert launch_afar(session, site, sent(replace(request_, detach=True))) == 0
    assert "far goes on without this terminal" in capsys.readouterr().err
    assert site.finished == []
    assert JobBook(session.environment.state_dir / "jobs").find("far") is not None


class Impatient(Follower):
    """Someone presses Ctrl-C so often while the run trains."""

    presses = 1

    def until(self, *kinds: str) -> Entry:
        if kinds == ("result",) and type(self).presses > 0:
            type(self).presses -= 1
            raise KeyboardInterrupt
        return super().until(*kinds)


@pytest.mark.parametrize(("presses", "code"), [(1, 130), (2, 130)])
def test_ctrl_c_stops_the_run_and_again_leaves_it(
    session: Session,
    request_: Request,
    head: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    presses: int,
    code: int,
) -> None:
    monkeypatch.setattr(afar, "Follower", Impatient)
    monkeypatch.setattr(Impatient, "presses", presses)
    site = FakeSite(FakeJobs([told(head, code=130, status="interrupted")]))
    assert launch_afar(session, site, sent(request_)) == code
    assert session.has_ended
    assert site.jobs.stopped == ["job-0"]
    is_left = presses == 2
    assert ("far is left to itself. See how it ends" in capsys.readouterr().err) == is_left
    assert site.finished == ([] if is_left else [True])


def test_a_run_that_stopped_can_go_on_here_and_there(
    session: Session, request_: Request, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((head / "runs" / "far" / "run.json").read_text())
    stopped = record | {"status": "budget", "checkpoints": [{"path": "checkpoints/1.npz"}]}
    site = FakeSite(FakeJobs([[begun("far", str(head)), result(5, "", **stopped)]]))
    assert launch_afar(session, site, sent(request_)) == 5
    told_last = capsys.readouterr().err.splitlines()[-1]
    assert told_last == (
        "launch: launch resume far goes on here; there, with --address http://far:8265"
    )


def test_a_head_that_is_lost_leaves_the_run_to_itself(
    session: Session, request_: Request, head: Path
) -> None:
    jobs = FakeJobs([[begun("far", str(head)), ClusterError("gone.")]])
    site = FakeSite(jobs)
    with pytest.raises(ClusterError, match=r"gone\. The run goes on there .*launch attach far"):
        launch_afar(session, site, sent(request_))
    assert site.finished == [False]


def test_a_run_is_attached_to_from_where_it_was_sent(
    session: Session, request_: Request, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(head, line("output", text="epoch 2\n", stream="stdout"))
    site = FakeSite(FakeJobs([[begun("far", str(head)), line("training", step=1)], lines]))
    launch_afar(session, site, sent(replace(request_, detach=True)))
    assert attach_afar(session, "far", site, request_.storage, is_json=False) == 0
    assert "epoch 2" in capsys.readouterr().out
    assert (home_of(session) / "model.keras").is_file()


def test_a_run_is_found_by_what_the_jobs_there_say(session: Session, head: Path) -> None:
    jobs = FakeJobs([told(head)])
    jobs.submit("launcher.job_driver", None, "run")
    site = FakeSite(jobs)
    assert located(session, "far", site, jobs).storage == str(head)
    with origin_afar(session, "far", site, head) as origin:
        assert {each.key for each in origin.found()} >= {"model.keras", "run.json"}
    with pytest.raises(RecordError, match="No run named 'near' was sent to that cluster"):
        located(session, "near", site, jobs)


def test_the_record_of_a_run_there_comes_alone_before_it_goes_on(
    session: Session, request_: Request, head: Path
) -> None:
    jobs = FakeJobs([told(head)])
    jobs.submit("launcher.job_driver", None, "run")
    store = open_store(request_.storage, RunIndex(session.environment.state_dir / "runs"))
    record_afar(session, "far", FakeSite(jobs), store)
    assert store.load("far").run == "far"
    assert not (home_of(session) / "model.keras").exists()


def test_a_driver_that_does_not_start_leaves_nothing_to_keep_a_cluster_up_for(
    session: Session, request_: Request
) -> None:
    site = FakeSite(FakeJobs([["python: No module named launcher\n"]]))
    with pytest.raises(ClusterError, match="did not start the driver"):
        launch_afar(session, site, sent(request_))
    assert site.finished == [True]


def test_a_head_that_is_lost_before_the_run_has_a_name_may_train_it(
    session: Session, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_job, "PATIENCE_S", -1.0)
    site = FakeSite(FakeJobs([[BROKEN]]))
    said = r"may go on there: launch attach RUN --address http://far:8265"
    with pytest.raises(ClusterError, match=said):
        launch_afar(session, site, sent(request_))
    assert site.finished == [False]


def test_a_cluster_that_stays_up_does_not_hide_what_went_wrong_before(
    session: Session, request_: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    site = FakeSite(FakeJobs([["python: No module named launcher\n"]]), stays="w is still rented")
    with pytest.raises(ClusterError, match="did not start the driver"):
        launch_afar(session, site, sent(request_))
    assert "w is still rented" in capsys.readouterr().err


def test_a_run_goes_on_though_its_place_cannot_be_noted(
    session: Session, request_: Request, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (session.environment.state_dir / "jobs").parent.mkdir(parents=True)
    (session.environment.state_dir / "jobs").write_text("no folder")
    assert launch_afar(session, FakeSite(FakeJobs([told(head)])), sent(request_)) == 0
    err = capsys.readouterr().err
    assert "remembers runs afar, cannot be written" in err
    assert "Until then: launch attach far --address http://far:8265" in err


def test_a_run_that_is_over_cannot_be_stopped(session: Session, head: Path) -> None:
    jobs = FakeJobs([told(head)])
    jobs.submit("launcher.job_driver", None, "run")
    with pytest.raises(UsageError, match="far is not running any more"):
        stop_afar(session, "far", FakeSite(jobs))
    assert BROKEN.exit_code == 4
