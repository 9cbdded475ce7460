import pytest

from launcher.errors import ScriptError
from launcher.worker.channel import Channel
from launcher.worker.data_check import DataCheck
from tests.fakes import FakeKeeper

MAP = ("train.py:20: ds.map(flipped, num_parallel_calls=AUTOTUNE)",)


class Apart:
    """An engine whose ranks saw other data."""

    def check_data(self) -> None:
        raise ScriptError("Worker 1 saw other training data.")


class Alike:
    """An engine whose ranks saw the same data."""

    def check_data(self) -> None:
        pass


def test_other_data_are_an_error_that_names_its_likely_causes() -> None:
    silent = Channel(None)
    with pytest.raises(ScriptError, match=r"other training data\. Found in the script: a; b\."):
        DataCheck(Apart(), silent, hints=("a", "b")).check()
    with pytest.raises(ScriptError, match=r"other training data\.$"):
        DataCheck(Apart(), silent).check()


def test_draws_in_a_parallel_map_are_warned_of_once_and_no_error() -> None:
    keeper = FakeKeeper()
    channel = Channel(keeper, lambda answer: answer)
    DataCheck(Alike(), channel, parallel_draws=MAP).check()
    check = DataCheck(Apart(), channel, parallel_draws=MAP)
    check.check()
    check.check()
    channel.close()
    (warning,) = [detail["text"] for kind, detail in keeper.calls if kind == "warning"]
    assert f"cannot be told ({MAP[0]})" in warning
