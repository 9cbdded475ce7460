"""`scripts/lab`: a lab that stands while people use it, and one clear line for what is wrong."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import __main__ as command_line
from tests.lab.__main__ import main
from tests.lab.host import ROOT
from tests.lab.requirement import missing
from tests.lab.standing import look


def lab(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "tests.lab", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "COLUMNS": "120"},
    )


PATIENT = """
import signal, time
n_times = 0
def count(*_):
    global n_times
    n_times += 1
signal.signal(signal.SIGINT, count)
print("ready", flush=True)
while not n_times:
    time.sleep(0.01)
time.sleep(0.5)  # a second signal would have come by now
print("interrupted once" if n_times == 1 else n_times)
"""


def interrupted_on_a_terminal() -> str:
    """What a command says whose user presses Ctrl-C."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        words = [sys.executable, "-P", "-m", "tests.lab", "run", "h1", "python", "-c", PATIENT]
        os.execve(words[0], words, {**os.environ, "PYTHONPATH": str(ROOT)})
    said = b""
    while b"\n" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # the end of a terminal
        while chunk := os.read(terminal, 1000):
            said += chunk
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    return said.decode()


@pytest.mark.lab
def test_a_lab_stands_until_it_is_taken_down(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    if look() is not None:
        pytest.skip("a lab of yours is up: scripts/lab down")
    up = ("up", "--hosts", "2", "--rtt", "5ms", "--cpu", "0.4", "--ray-cpus", "none")
    try:
        started = lab(*up, cwd=tmp_path)
        assert started.returncode == 0, started.stderr
        assert "A lab of 2 hosts is up" in lab(*up).stderr
        assert lab("run", "h2", "sh", "-c", "hostname; pwd", cwd=tmp_path).stdout == (
            f"h2\n{tmp_path}\n"
        )
        assert "without /tmp" in lab("run", "h1", "ls", cwd=Path("/tmp")).stderr
        assert interrupted_on_a_terminal() == "ready\r\n^Cinterrupted once\r\n"
        assert lab("set", "h1>h2", "--rtt", "80ms", "--rate", "100mbit").returncode == 0
        assert lab("cpu", "h2", "0.2").returncode == lab("nic", "h2", "1gbit").returncode == 0
        assert lab("crash", "h1").returncode == 0
        words = [line.split() for line in lab("status").stdout.splitlines()]
        assert ["h1>h2", "40", "ms", "–", "–", "100", "Mbit/s", "cut"] in words
        assert ["h2", "10.99.0.2", "0.2", "1000", "Mbit/s", "–"] in [line[:6] for line in words]
        assert ["h1", "10.99.0.1", "crashed"] in [line[:3] for line in words]
    finally:
        down = lab("down")
    assert down.returncode == 0, down.stderr
    assert look() is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("up --hosts 0", "--hosts '0' is not a number of hosts from 1 to 64."),
        ("up --hosts 2 --cpu 1,1,1", "--cpu 1,1,1 has 3 values for 2 hosts. Give one for each"),
        ("up --rtt 5", "--rtt '5' is not a delay of up to 60 s. Write for example --rtt 20ms."),
        ("up --rate 5MB", "--rate '5MB' is not a rate. Write for example --rate 100mbit"),
        ("up --loss 100%", "--loss '100%' is not a share of packets. Write for example 1%."),
        ("up --price cheap", "--price 'cheap' is not a price of a node."),
        ("set h1-h2", "Nothing to set. Give --rtt, --jitter, --loss or --rate."),
        ("run h1", "What is to run on h1?"),
        ("halt", "No such command 'halt'."),
    ],
)
def test_bad_input_is_one_clear_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.lab.__main__.missing", lambda: None)
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lab: {said}")
    assert error.count("\n") == 1


def test_without_root_the_reason_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["up"]) == 4
    assert "No lab here: the lab needs root" in capsys.readouterr().err


def test_the_launcher_gets_its_words_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[object] = []

    def become(standing: object, host: str, command: object) -> None:
        got.append((standing, host, command))
        raise SystemExit(0)

    monkeypatch.setattr(command_line, "find", lambda: "the lab")
    monkeypatch.setattr(command_line, "_become", become)
    words = ["launch", "train.py", "--budget", "5", "--", "--epochs", "3"]
    with pytest.raises(SystemExit):
        command_line.main(words)
    assert got == [("the lab", "h1", words)]
