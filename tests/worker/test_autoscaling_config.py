from pathlib import Path

import pytest
import yaml

from launcher.worker import autoscaling_config
from launcher.worker.autoscaling_config import autoscaling_words, shareable

ADDRESS = "10.0.0.1:6379"
WORDS = {"max_workers": 3, "available_node_types": {"cpu": {"resources": {"CPU": 2}}}}
AZURE = {"azure_arm_parameters": {"vmSize": "Standard_D2s_v3", "adminPassword": "hush"}}


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the system shows of processes; there is no file that `ray up` left."""
    monkeypatch.setattr(autoscaling_config, "BOOTSTRAP", tmp_path / "none.yaml")
    return tmp_path / "proc"


def process(proc: Path, pid: int, *words: str) -> Path:
    folder = proc / str(pid)
    (folder / "cwd").mkdir(parents=True)
    (folder / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
    return folder


def monitor(proc: Path, pid: int, *words: str, address: str = ADDRESS) -> Path:
    python = ("/usr/bin/python", "-u", "/x/ray/autoscaler/v2/monitor.py", "--logs-dir=/tmp")
    return process(proc, pid, *python, f"--gcs-address={address}", *words)


def test_the_file_that_the_running_autoscaler_was_given_is_read(proc: Path, tmp_path: Path):
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({**WORDS, "auth": {"ssh_user": "ubuntu"}}))
    process(proc, 7, "sleep", "5")
    monitor(proc, 8, "--autoscaling-config=/other.yaml", address="10.0.0.1:7000")
    monitor(proc, 9, f"--autoscaling-config={file}")
    assert autoscaling_words(ADDRESS, proc) == shareable(WORDS)


def test_a_relative_path_is_that_of_the_autoscaler(proc: Path):
    folder = monitor(proc, 9, "--autoscaling-config=own.yaml")
    (folder / "cwd" / "own.yaml").write_text(yaml.safe_dump(WORDS))
    assert autoscaling_words(ADDRESS, proc) == shareable(WORDS)


def test_a_tilde_is_the_home_folder(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(WORDS))
    monitor(proc, 9, "--autoscaling-config=~/own.yaml")
    assert autoscaling_words(ADDRESS, proc) == shareable(WORDS)


def test_an_autoscaler_without_a_configuration_starts_nothing(proc: Path, tmp_path: Path):
    monitor(proc, 9)
    (tmp_path / "none.yaml").write_text(yaml.safe_dump(WORDS))
    assert autoscaling_words(ADDRESS, proc) is None


def test_where_no_autoscaler_is_seen_the_file_of_ray_up_counts(proc: Path, tmp_path: Path):
    assert autoscaling_words(ADDRESS, proc) is None
    (tmp_path / "none.yaml").write_text(yaml.safe_dump(WORDS))
    assert autoscaling_words(ADDRESS, proc) == shareable(WORDS)


@pytest.mark.parametrize("text", ["a: [", "- a list"])
def test_a_file_that_makes_no_sense_is_none(proc: Path, tmp_path: Path, text: str):
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    monitor(proc, 9, f"--autoscaling-config={file}")
    assert autoscaling_words(ADDRESS, proc) is None


def test_of_a_machine_only_its_type_is_told():
    found = shareable({"available_node_types": {"a": {"node_config": AZURE}, "b": None}})
    types = found["available_node_types"]
    assert types == {"a": {"node_config": {"azure_arm_parameters": {"vmSize": "Standard_D2s_v3"}}}}
