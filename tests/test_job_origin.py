"""Files of a run that come through jobs on a cluster's head."""

from pathlib import Path

import pytest

from launcher.errors import DataError
from launcher.fetch import Fetching
from launcher.job_files import BLOCK_BYTES
from launcher.job_origin import JobOrigin
from launcher.worker.staging.manifest import DataFile
from launcher.worker.staging.origin import DataMissingError
from tests.fake_jobs import FakeJobs

MODEL = bytes(range(256)) * (BLOCK_BYTES // 100)


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """The head's storage."""
    folder = tmp_path / "head" / "runs" / "far"
    for name, content in (
        ("model.keras", MODEL),
        ("run.json", b"{}"),
        ("artifacts/logs/größe.csv", b"1,2"),
        ("artifacts/empty", b""),
        ("owner", b"x"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return tmp_path / "head"


def test_all_that_is_due_comes_in_two_jobs(far: Path, tmp_path: Path) -> None:
    jobs, home = FakeJobs(), tmp_path / "home"
    origin = JobOrigin(jobs, str(far), "far")
    found = Fetching(origin, home, announce=origin.announce).fetched()
    assert (home / "model.keras").read_bytes() == MODEL
    assert (home / "artifacts" / "logs" / "größe.csv").read_bytes() == b"1,2"
    assert (home / "artifacts" / "empty").read_bytes() == b""
    assert not (home / "owner").exists()
    assert len(found.new) == 4
    assert len(jobs.submitted) == 2

    again = Fetching(origin, home, announce=origin.announce).fetched()
    assert again.new == ()
    assert len(jobs.submitted) == 3


def test_a_fetch_goes_on_in_the_middle_of_a_file(far: Path) -> None:
    origin = JobOrigin(FakeJobs(), str(far), "far")
    (model,) = (f for f in origin.found() if f.key == "model.keras")
    file = DataFile(model.key, 0, model.key, model.size, model.version)
    reader = origin.open(file, BLOCK_BYTES + 7)
    assert reader.offset == BLOCK_BYTES + 7
    pieces = list(iter(lambda: reader.read(1000), b""))
    assert b"".join(pieces) == MODEL[BLOCK_BYTES + 7 :]


def test_what_the_head_cannot_read_is_told_here(far: Path) -> None:
    missing = JobOrigin(FakeJobs(), str(far), "other")
    with pytest.raises(DataMissingError, match="There is no"):
        missing.found()


def test_a_head_that_answers_nothing_is_told(far: Path) -> None:
    origin = JobOrigin(_Silent(), str(far), "far")
    with pytest.raises(DataError, match="does not list the run's files"):
        origin.found()


class _Silent(FakeJobs):
    def said(self, job: str):  # type: ignore[no-untyped-def]
        yield "Traceback (most recent call last):\n"
