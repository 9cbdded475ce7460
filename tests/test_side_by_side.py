import threading

import pytest

from launcher.side_by_side import side_by_side


def test_results_come_in_the_order_of_the_tasks() -> None:
    first_may_end = threading.Event()

    def first() -> str:
        assert first_may_end.wait(60.0)
        return "first"

    def second() -> str:
        first_may_end.set()
        return "second"

    assert side_by_side([first, second]) == ["first", "second"]


def test_an_error_is_raised_while_others_still_run() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def last() -> None:
        may_end.wait(60.0)
        has_ended.set()

    def fail() -> None:
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        side_by_side([last, fail])
    assert not has_ended.is_set()
    may_end.set()


def test_nothing_to_do_gives_nothing() -> None:
    assert side_by_side([]) == []
