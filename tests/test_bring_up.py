"""Clusters brought up: who has joined, who is started by hand, who is named."""

import json
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launcher.bring_up import bring_up, in_steps, still_running, take_down
from launcher.cluster_file import ClusterFile, Preparation, SshAccess
from launcher.errors import ClusterError, UsageError
from launcher.head import MARK, complaint
from launcher.machines import Ended, RealMachines, login_shell, ssh_words
from launcher.planned_types import PlannedType
from launcher.pricing import Price
from launcher.rented import MARK as RENTED

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
    rented: list[list[str]] = field(default_factory=list)  # the answers, the last one for good

    def here(self, module: str, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
        if module == "launcher.rented":
            names = self.rented.pop(0) if len(self.rented) > 1 else (self.rented or [[]])[0]
            found = [
                {"name": n, "address": n, "node_type": "cpu", "is_head": False, "since": None}
                for n in names
            ]
            return Ended(0, (RENTED + json.dumps(found),))
        self.calls.append(tuple(words))
        if words[-1].endswith("ray status"):
            failure = "cpu: InsufficientInstanceCapacity (latest_attempt: 12:00:00)"
            return Ended(0, ("Healthy:", "Recent failures:", failure, "Resources", "------"))
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

    def copy(self, address: str, source: str, place: str, timeout_s: float) -> Ended:
        self.calls.append((address, f"{source} to {place}"))
        return self.answers.get(address, Ended(0, ()))


def a_cloud_file(**changes: Any) -> ClusterFile:
    price = Price(0.5, "label")
    types = (PlannedType("head", 0, 0, 1, price, is_head=True), PlannedType("cpu", 8, 0, 2, price))
    return a_file(provider="aws", head=None, workers=(), types=types, **changes)


def no_sleep(seconds: float) -> None:
    pass


def test_a_cluster_is_up_when_all_have_joined() -> None:
    machines, said = FakeMachines(["a", "b", "c"]), list[str]()
    nodes = bring_up(a_file(), machines, said.append)
    assert [(node.address, node.cpus, node.price.usd_per_h) for node in nodes] == [
        ("a", 2.0, 0.4),
        ("b", 2.0, 0.4),
        ("c", 2.0, 0.4),
    ]
    assert said == ["ray up c.yaml", "3 of 3 nodes have joined"]
    assert [call[0] for call in machines.calls] == ["a", "up", "exec"]


def test_a_head_that_cannot_be_logged_in_to_is_told_before_ray_tries_for_long() -> None:
    denied = "root@a: Permission denied (publickey)."
    machines = FakeMachines([], {"a": Ended(255, (denied,))})
    with pytest.raises(
        ClusterError, match=r"over ssh: root@a: Permission denied \(publickey\)\. I"
    ):
        bring_up(a_file(), machines, print)
    assert [call[0] for call in machines.calls] == ["a"]


def test_missing_nodes_are_started_over_ssh() -> None:
    machines, said = FakeMachines(["a", "c"]), list[str]()
    nodes = bring_up(a_file(), machines, said.append)
    assert [node.address for node in nodes] == ["a", "c", "b"]
    assert "b not there: starting over ssh" in said
    started = in_steps(a_file().worker_start_commands, a_file())
    assert [call for call in machines.calls if call[0] == "b"] == [("b", started)]


def test_a_missing_node_is_prepared_as_the_file_says_before_ray_starts_there() -> None:
    preparation = Preparation(("first",), (("~/x", "."),), ("install",))
    file, machines = a_file(preparation=preparation), FakeMachines(["a", "c"])
    bring_up(file, machines, print)
    calls = [call[1] for call in machines.calls if call[0] == "b"]
    assert [in_steps(("first",), file), ". to ~/x", in_steps(("install",), file)] == calls[:3]
    assert len(calls) == 4


@pytest.mark.parametrize("command", ["echo started;", "echo started # at last", "echo started &"])
def test_a_step_may_end_as_any_line_of_a_shell(command: str) -> None:
    steps = in_steps((command, "wait", "echo then"), a_file())
    done = subprocess.run(["bash", "-c", steps], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["started", "then"]


def test_a_step_that_fails_is_the_last() -> None:
    steps = in_steps(("false", "echo then"), a_file())
    done = subprocess.run(["bash", "-c", steps], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_node_that_cannot_be_prepared_is_named_with_the_reason() -> None:
    machines = FakeMachines(["a", "c"], {"b": Ended(1, ("No space left on device",))})
    file = a_file(preparation=Preparation(then=("install",)))
    with pytest.raises(ClusterError, match=r"could not start b \(No space left on device\)"):
        bring_up(file, machines, print)


def test_what_is_to_be_copied_must_be_here_before_anything_is_rented(tmp_path: Path) -> None:
    machines = FakeMachines([])
    lost = a_file(preparation=Preparation(mounts=(("~/x", str(tmp_path / "no")),)))
    with pytest.raises(
        UsageError, match=r"c\.yaml copies .*no to ~/x, but there is no .*no\. Such"
    ):
        bring_up(lost, machines, print)
    assert machines.calls == []


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


def test_what_is_rented_and_its_price_are_told_before_and_who_is_missing_after() -> None:
    machines, said = FakeMachines(["a"], rented=[["a", "b"]]), list[str]()
    with pytest.raises(
        ClusterError,
        match=r"1 of 3 nodes have joined; b \(cpu\) rented, but not joined; the autoscaler says: "
        r"cpu: Insufficient.*00\)\. Run launch up c\.yaml again; launch down gives all",
    ):
        bring_up(a_cloud_file(), machines, said.append)
    assert said[0] == "renting 1 head ($0.50/h), 2 cpu ($0.50/h each): $1.50/h in all"


def test_what_ray_up_is_at_is_told() -> None:
    @dataclass
    class Talking(FakeMachines):
        def here(self, module: str, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
            if words[0] == "up":
                for line in ("Launched a new head node", "[2/7] Processing file mounts", "x"):
                    heard(line)
            return super().here(module, words, heard)

    said = list[str]()
    bring_up(a_file(), Talking(["a", "b", "c"]), said.append)
    assert said[1:3] == ["launched a new head node", "head, step 2 of 7: Processing file mounts"]


def test_a_failure_of_ray_up_tells_what_costs_money_all_the_same() -> None:
    machines = FakeMachines([], codes={"up": 1}, rented=[["i-1"]])
    with pytest.raises(ClusterError, match=r"Error: no key\. i-1 \(cpu\) up and costing money: la"):
        bring_up(a_cloud_file(), machines, print)


def test_a_cloud_is_down_when_nothing_is_rented_any_more() -> None:
    machines, said = FakeMachines([], rented=[["i-1", "i-2"], ["i-2"], []]), list[str]()
    take_down(a_cloud_file(), machines, said.append, lambda: 0.0, no_sleep)
    assert said[1:] == ["2 machines are still there", "1 machine is still there"]


def test_machines_that_stay_rented_are_named() -> None:
    times = iter((0.0, 100.0, 200.0))
    with pytest.raises(ClusterError, match=r"i-1 \(cpu\) is still rented 180 s after `ray down`"):
        take_down(
            a_cloud_file(), FakeMachines([], rented=[["i-1"]]), print, lambda: next(times), no_sleep
        )


def test_machines_on_which_ray_runs_are_told() -> None:
    machines = FakeMachines([], {"b": Ended(1, ("a raylet is left: process 7",))})
    assert still_running(a_file(), machines) == ("b",)


def test_a_failure_of_ray_is_told_in_its_own_words() -> None:
    machines = FakeMachines([], codes={"up": 1, "down": 1})
    with pytest.raises(ClusterError, match=r"`ray up c\.yaml` failed: Error: no key"):
        bring_up(a_file(), machines, print)
    with pytest.raises(ClusterError, match=r"`ray down c\.yaml` failed: Error: no key"):
        take_down(a_cloud_file(), machines, print)


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


@pytest.mark.parametrize(
    ("place", "there", "is_plain"),
    [("~/my größe", "my größe", False), ("/opt/x", "/opt/x", True), ("~", ".", True)],
)
def test_files_are_copied_to_places_as_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, there: str, is_plain: bool
) -> None:
    ran: list[list[str]] = []

    def run(words: list[str], **_: Any) -> Any:
        ran.append(words)
        return subprocess.CompletedProcess(words, 0, "")

    monkeypatch.setattr(subprocess, "run", run)
    machines = RealMachines(SshAccess("me", None, None), (), tmp_path / "log")
    machines.copy("b", str(tmp_path), place, 1.0)
    made, copied = ran
    assert shlex.quote(f"mkdir -p {shlex.quote(there)}")[1:-1] in made[-1]
    assert copied[-2:] == [f"{tmp_path}/", f"me@b:{there}/"]
    assert ("--protect-args" in copied) != is_plain


def test_what_lies_in_the_folder_of_the_call_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "this.py").write_text("print('mine')")
    monkeypatch.chdir(tmp_path)
    machines = RealMachines(SshAccess("me", None, None), (), tmp_path / "log")
    ended = machines.here("this", [], lambda _: None)
    assert "mine" not in ended.said


def test_what_ray_echoes_of_our_own_programs_is_no_complaint() -> None:
    assert complaint(Ended(1, ("ssh: connection failed", "except OSError:"))) == (
        "ssh: connection failed"
    )
    assert complaint(Ended(1, ("except OSError:",))) == "except OSError:"
    assert complaint(Ended(1, ("one", "two"))) == "two"
