import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from launcher.process import Process, process


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_this_process_is_here_and_alive() -> None:
    mine = process()
    assert mine.pid == os.getpid()
    assert (mine.is_here, mine.is_alive, mine.is_stopped) == (True, True, False)
    assert str(mine) == f"{mine.user}@{mine.host}:{mine.pid}"


def test_an_ended_process_is_not_alive_even_before_its_parent_looks(
    child: "subprocess.Popen[bytes]",
) -> None:
    seen = process(child.pid)
    assert seen.is_alive
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not seen.is_alive


def test_a_later_process_of_the_same_number_is_another() -> None:
    assert not replace(process(), started="1").is_alive


def test_a_suspended_process_is_alive_and_stopped(child: "subprocess.Popen[bytes]") -> None:
    seen = process(child.pid)
    seen.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert (seen.is_alive, seen.is_stopped) == (True, True)


def test_nobody_else_gets_a_signal(child: "subprocess.Popen[bytes]") -> None:
    replace(process(child.pid), started="1").signal(signal.SIGKILL)
    assert process(child.pid).is_alive


@pytest.mark.parametrize("space", ["", "another machine"])
def test_a_process_of_another_machine_is_not_here(space: str) -> None:
    assert not Process("ada", "far", os.getpid(), space).is_here
