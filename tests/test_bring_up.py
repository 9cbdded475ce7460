"""Clusters brought up: who has joined, who is started by hand, who is named."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launcher.bring_up import MARK, bring_up, start_command, take_down
from launcher.cluster_file import ClusterFile, SshAccess
from launcher.errors import ClusterError
from launcher.machines import Ended, RealMachines, login_shell, ssh_words

PRICE = {"launch/price-usd-per-hour": "0.4"}


def a_file(**changes: Any) -> ClusterFile:
    values: dict[str, Any] = {
        "path": Path("c.yaml"),
        "provider": "local",
        "head": "a",
        "workers": ("b", "c"),
        "n_nodes": 3,
        "has_docker": False,
        "has_setup": False,
        "ssh": SshAccess("me", None, None),
        "head_start_commands": ("ray stop", "ray start --head"),
        "worker_start_commands": ("/opt/ray stop", "/opt/ray start --address=$RAY_HEAD_IP:6379;"),
    }
    return ClusterFile(**{**values, **changes})


@dataclass
class FakeMachines:
    """Answers as told: a cluster of `up` machines, to which those that can be started are added."""

    up: list[str]
    answers: dict[str, Ended] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def ray(self, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
        self.calls.append(tuple(words))
        if words[0] != "exec":
            return Ended(self.codes.get(words[0], 0), ("noise", "Error: no key", "the end"))
        nodes = [[address, {"CPU": 2.0}, PRICE] for address in self.up]
        lacking = [address for address in ("a", "b", "c") if address not in self.up]
        lines = (
            f"Running `{words[-1]}`",
            MARK + json.dumps({"joined": len(nodes)}),
            "Shared connection to a closed.",
            MARK + json.dumps({"nodes": nodes, "lacking": lacking}),
        )
        if not nodes:
            lines = ("bash: python: command not found",)
        for line in lines:
            heard(line)
        return Ended(0, lines)

    def on(self, address: str, command: str, timeout_s: float) -> Ended:
        self.calls.append((address, command))
        ended = self.answers.get(address, Ended(0, ()))
        if ended.code == 0 and "start" in command and not ended.said:
            self.up.append(address)
        return ended


def test_a_cluster_is_up_when_all_have_joined() -> None:
    machines, said = FakeMachines(["a", "b", "c"]), list[str]()
    nodes = bring_up(a_file(), machines, said.append)
    assert [(node.address, node.cpus, node.price.usd_per_h) for node in nodes] == [
        ("a", 2.0, 0.4),
        ("b", 2.0, 0.4),
        ("c", 2.0, 0.4),
    ]
    assert said == ["ray up c.yaml", "3 of 3 nodes have joined"]
    assert [call[0] for call in machines.calls] == ["up", "exec"]


def test_missing_nodes_are_started_over_ssh() -> None:
    machines, said = FakeMachines(["a", "c"]), list[str]()
    nodes = bring_up(a_file(), machines, said.append)
    assert [node.address for node in nodes] == ["a", "c", "b"]
    assert "b not there: starting over ssh" in said
    assert [call for call in machines.calls if call[0] == "b"] == [("b", start_command(a_file()))]


def test_nodes_that_cannot_be_started_are_named_with_the_reason() -> None:
    answers = {"b": Ended(255, ("ssh: connect to host b port 22: Connection refused",))}
    with pytest.raises(
        ClusterError,
        match=r"2 of 3 nodes are up; could not start b \(ssh: .* refused\)\. Put it right and run "
        r"launch up c\.yaml again",
    ) as caught:
        bring_up(a_file(), FakeMachines(["a"], answers), print)
    assert caught.value.exit_code == 4


def test_a_node_that_starts_but_does_not_join_is_named() -> None:
    answers = {"b": Ended(0, ("Ray runtime started.",))}
    with pytest.raises(ClusterError, match=r"could not start b \(started, but it did not join\)"):
        bring_up(a_file(), FakeMachines(["a", "c"], answers), print)


def test_missing_machines_of_a_cloud_are_not_started_by_hand() -> None:
    machines = FakeMachines(["a"])
    with pytest.raises(ClusterError, match=r"1 of 3 nodes have joined\. See why with `ray exec"):
        bring_up(a_file(provider="aws", head=None, workers=()), machines, print)
    assert len(machines.calls) == 2


def test_a_failure_of_ray_is_told_in_its_own_words() -> None:
    machines = FakeMachines([], codes={"up": 1, "down": 1})
    with pytest.raises(ClusterError, match=r"`ray up c\.yaml` failed: Error: no key"):
        bring_up(a_file(), machines, print)
    with pytest.raises(ClusterError, match=r"`ray down c\.yaml` failed: Error: no key"):
        take_down(a_file(provider="aws", head=None, workers=()), machines, print)


def test_a_head_that_does_not_answer_is_told() -> None:
    with pytest.raises(ClusterError, match=r"does not tell which nodes have joined: bash: python"):
        bring_up(a_file(), FakeMachines([]), print)


def test_ray_is_ended_on_every_machine_that_the_file_names() -> None:
    machines = FakeMachines(["a"])
    take_down(a_file(), machines, print)
    ended = {call[0]: call[1].split(";")[0] for call in machines.calls[1:]}
    assert ended == {"a": "ray stop", "b": "/opt/ray stop", "c": "/opt/ray stop"}


def test_a_machine_on_which_ray_is_left_is_named() -> None:
    answers = {"c": Ended(1, ("a raylet is left: process 12",))}
    with pytest.raises(ClusterError, match=r"still run on c \(a raylet is left: process 12\)"):
        take_down(a_file(), FakeMachines(["a"], answers), print)


def test_ssh_goes_as_the_file_says() -> None:
    words = ssh_words(SshAccess("me", "~/k", "ssh gate -W %h:%p"), "b")
    assert words[0] == "ssh"
    assert words[-1] == "me@b"
    assert str(Path("~/k").expanduser()) in words
    assert "ProxyCommand=ssh gate -W %h:%p" in words
    assert login_shell("a 'b'") == """bash --login -c -i 'source ~/.bashrc; a '"'"'b'"'"''"""


def test_a_machine_that_cannot_be_reached_ends_with_the_reason(tmp_path: Path) -> None:
    machines = RealMachines(SshAccess("me", None, "false"), (), tmp_path / "log")
    ended = machines.on("192.0.2.1", "true", 20)
    assert ended.code != 0
    assert ended.reason
