"""Cluster files: what they say of nodes, and what is refused."""

from pathlib import Path

import pytest

from launcher.cluster_file import ClusterFile, SshAccess, ray_command, read_cluster_file
from launcher.errors import UsageError

ROOT = Path(__file__).parents[1]
TYPES = "provider: {{type: aws}}\navailable_node_types:\n  {}"
LOCAL = "provider: {type: local, head_ip: a, worker_ips: [b, c]}\n"


def read(tmp_path: Path, text: str) -> ClusterFile:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_cluster_file(path)


def test_a_local_file_names_its_nodes(tmp_path: Path) -> None:
    file = read(tmp_path, LOCAL + "auth: {ssh_user: me, ssh_private_key: ~/.ssh/key}\n")
    assert file.is_local
    assert file.addresses == ("a", "b", "c")
    assert file.n_nodes == 3
    assert file.ssh == SshAccess("me", "~/.ssh/key", None)
    assert not file.has_setup


@pytest.mark.parametrize("limit", ["min_workers: 1", "max_workers: 1"])
def test_a_local_file_may_ask_for_fewer_nodes_than_it_names(tmp_path: Path, limit: str) -> None:
    assert read(tmp_path, LOCAL + limit).n_nodes == 2


def test_of_a_cloud_the_nodes_that_are_up_from_the_start_count() -> None:
    file = read_cluster_file(ROOT / "cluster.yaml")
    assert not file.is_local
    assert file.addresses == ()
    assert file.n_nodes == 3
    assert file.has_setup
    assert ray_command(file.head_start_commands) == "~/launch-env/bin/ray"


def test_nodes_that_are_prepared_first_take_longer(tmp_path: Path) -> None:
    assert read(tmp_path, LOCAL + "setup_commands: [pip install x]").has_setup


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ((), "ray"),
        (("ray stop", "ulimit -n 65536; ray start --head"), "ray"),
        (("conda activate x && /opt/env/bin/ray start --head",), "/opt/env/bin/ray"),
        (("echo array start",), "ray"),
    ],
)
def test_ray_is_called_as_the_file_calls_it(commands: tuple[str, ...], found: str) -> None:
    assert ray_command(commands) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("provider: {type: local", r"is no YAML \(line 1\)\. Correct it"),
        ("just words", "is no Ray cluster file: it has no provider"),
        ("provider: {region: x}", "has no provider type"),
        ("provider: {type: local, head_ip: a, worker_ips: b}", "without head_ip and a list of"),
        ("provider: {type: aws}\nauth: [x]", "auth must hold keys and values"),
        ("provider: {type: aws}\nmin_workers: -1", "min_workers is -1. Give a whole number"),
        (TYPES.format("cpu: [x]"), "cpu must hold keys and values"),
        (TYPES.format("cpu: {min_workers: two}"), "cpu: min_workers is two. Give a whole number"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    said = r"no\.yaml cannot be read: No such file or directory\. Check its path\..*cluster\.yaml"
    with pytest.raises(UsageError, match=said):
        read_cluster_file(tmp_path / "no.yaml")
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory\. Name a file in it\."):
        read_cluster_file(tmp_path)
