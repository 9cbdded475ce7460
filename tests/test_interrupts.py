import os
import pty
import signal
import sys
from collections.abc import Iterator

import pytest

from launcher.interrupts import Interrupts


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_at_first_and_is_counted_while_training(
    number: signal.Signals,
) -> None:
    interrupts = Interrupts()
    with interrupts.handled():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        with interrupts.counted():
            signal.raise_signal(number)
    assert interrupts.count == 2


def test_what_nohup_ignores_stays_ignored(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts = Interrupts()
    with interrupts.handled():
        os.kill(os.getpid(), signal.SIGHUP)
    assert interrupts.count == 0


LOSES_ITS_TERMINAL = """
import signal, sys
from launcher.interrupts import Interrupts
interrupts = Interrupts()
with interrupts.handled(), interrupts.counted():
    print("ready", flush=True)
    while not interrupts.count:
        signal.sigtimedwait([], 0.01)
    print("still here", file=sys.stderr, flush=True)
sys.exit(3)
"""


def test_a_terminal_that_is_gone_can_be_written_to() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", LOSES_ITS_TERMINAL])
    assert os.read(terminal, 100).startswith(b"ready")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)]
    with Interrupts().handled():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)] == before
