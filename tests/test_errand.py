import threading

from launcher.errand import Errand, Outcome
from launcher.errors import ClusterError
from tests.fakes import FakeClock


def finished(errand: Errand[int]) -> Outcome[int]:
    errand._future.exception(timeout=60)  # waits for it
    outcome = errand.outcome()
    assert outcome is not None
    return outcome


def test_an_errand_brings_its_result() -> None:
    assert finished(Errand(lambda: 3, 10.0, FakeClock())) == Outcome(3)


def test_an_errand_that_fails_brings_the_reason() -> None:
    def fail() -> int:
        raise ClusterError("it lacks\n a module")

    assert finished(Errand(fail, 10.0, FakeClock())) == Outcome(None, "it lacks a module")


def test_an_errand_without_words_brings_the_name_of_its_error() -> None:
    def fail() -> int:
        raise ZeroDivisionError

    assert finished(Errand(fail, 10.0, FakeClock())) == Outcome(None, "ZeroDivisionError")


def test_an_errand_that_takes_too_long_counts_as_failed() -> None:
    clock, done = FakeClock(), threading.Event()
    errand = Errand(done.wait, 10.0, clock)
    assert errand.outcome() is None
    clock.sleep(11.0)
    assert errand.outcome() == Outcome(None, "it took more than 10 s")
    done.set()
