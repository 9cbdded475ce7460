"""The commands for clusters, as far as they need no cluster."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cluster_book import ClusterBook, Entry
from tests.command_line import Launch, command_line


@pytest.fixture
def launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Launch]:
    """Runs a command line in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with command_line(capsys) as call:
        yield call


def test_without_clusters_nothing_is_up(launch: Launch) -> None:
    code, out, _ = launch("status")
    assert (code, out) == (0, "No cluster that was brought up from here is up.\n")
    assert json.loads(launch("status", "--json")[1]) == []


def test_a_cluster_whose_file_is_gone_is_told_with_what_it_costs(
    launch: Launch, tmp_path: Path
) -> None:
    entry = Entry("mine", str(tmp_path / "gone.yaml"), str(tmp_path), "aws", 0.78, 0.0)
    ClusterBook(tmp_path / "home" / ".launch" / "clusters").write(entry)
    code, _, err = launch("status")
    assert code == 0
    assert "mine, up since 1970-01-0" in err
    assert "at $0.78/h or more: The cluster file" in err


@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_a_file_that_is_not_there_is_refused(launch: Launch, command: str) -> None:
    code, _, err = launch(command, "no.yaml")
    assert code == 2
    assert "no.yaml cannot be read: No such file or directory" in err


@pytest.mark.parametrize(
    ("idle", "said"),
    [("soon", "--idle-down"), ("5s", "--idle-down 5s is too short: give at least 10s")],
)
def test_a_senseless_time_to_go_down_is_refused(launch: Launch, idle: str, said: str) -> None:
    code, _, err = launch("up", "no.yaml", "--idle-down", idle)
    assert code == 2
    assert said in err


def test_what_prices_rest_on_is_shown(launch: Launch) -> None:
    code, out, _ = launch("prices")
    assert code == 0
    assert "list prices of AWS, Google Cloud and Azure as of 20" in out


def test_prices_of_a_cloud_that_cannot_be_asked_are_refused(launch: Launch) -> None:
    code, _, err = launch("prices", "refresh", "--cloud", "azure")
    assert code == 2
    assert "--cloud azure is not known. Choose aws or gcp." in err


def test_fetching_prices_without_credentials_is_one_clear_line(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    code, _, err = launch("prices", "refresh")
    assert code == 4
    assert "AWS does not tell its prices: Unable to locate credentials. Check your" in err
