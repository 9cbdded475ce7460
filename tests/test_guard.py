import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from launcher.errors import StorageError, TakenOverError
from launcher.guard import Guard, interrupt_main_thread

SOON_S = 60.0


def guarded(
    beat: Callable[[], None] = lambda: None, is_asked: Callable[[], bool] = lambda: False
) -> tuple[Guard, threading.Event]:
    stopped = threading.Event()
    return Guard(beat, is_asked, stopped.set, every_s=0.005), stopped


def test_it_beats_while_the_driver_is_busy() -> None:
    beats = threading.Semaphore(0)
    guard, stopped = guarded(beats.release)
    with guard:
        assert all(beats.acquire(timeout=SOON_S) for _ in range(3))
    assert not stopped.is_set()


def test_a_request_to_stop_is_passed_on_once() -> None:
    asked = threading.Event()
    guard, stopped = guarded(is_asked=asked.is_set)
    with guard:
        assert not stopped.wait(0.02)
        asked.set()
        assert stopped.wait(SOON_S)


def test_a_driver_whose_run_was_taken_over_is_stopped() -> None:
    def beat() -> None:
        raise TakenOverError("brave-otter", "eve@far:7")

    guard, stopped = guarded(beat)
    with guard:
        assert stopped.wait(SOON_S)


def test_storage_that_fails_is_looked_at_again() -> None:
    looks = threading.Semaphore(0)

    def is_asked() -> bool:
        looks.release()
        raise StorageError("gone")

    guard, stopped = guarded(is_asked=is_asked)
    with guard:
        assert all(looks.acquire(timeout=SOON_S) for _ in range(3))
    assert not stopped.is_set()


@pytest.fixture
def terminated() -> Iterator[threading.Event]:
    """Set when this process gets SIGTERM, which it then survives."""
    got = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: got.set())
    yield got
    signal.signal(signal.SIGTERM, before)


def test_the_main_thread_is_interrupted_as_by_sigterm(terminated: threading.Event) -> None:
    threading.Thread(target=interrupt_main_thread).start()
    assert terminated.wait(SOON_S)


def test_a_process_that_takes_no_sigterm_is_left_alone() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        interrupt_main_thread()
    finally:
        signal.signal(signal.SIGTERM, before)
