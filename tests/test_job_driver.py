"""The driver of a run that was sent from afar, as far as it needs no cluster."""

import sys
from pathlib import Path

import pytest

from launcher import job_driver
from launcher.journal import JournalReader, read_bytes


def test_orders_of_another_version_are_refused_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "job-driver-1.log"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["job_driver", "0.0.1"])
    monkeypatch.setattr(job_driver, "own_log", lambda: log)
    assert job_driver.main() == 4
    *_, result = JournalReader(lambda offset: read_bytes(log, offset)).entries()
    assert (result.kind, result.detail["exit_code"]) == ("result", 4)
    assert "this machine 0.0.1. Install the same version in both." in result.text
