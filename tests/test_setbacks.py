from launcher.setbacks import Setbacks


def noted(*steps: int) -> Setbacks:
    setbacks = Setbacks()
    for step in steps:
        setbacks.count(step)
    return setbacks


def test_the_third_failure_at_the_same_place_is_enough() -> None:
    assert not noted(100, 100).is_enough
    assert noted(100, 100, 100).is_enough


def test_a_later_checkpoint_starts_the_count_anew() -> None:
    assert not noted(100, 100, 200).is_enough
    assert not noted(0, 10, 20, 30, 40, 50).is_enough
    assert noted(0, 10, 20, 20, 20).is_enough


def test_a_checkpoint_that_became_unreadable_is_no_progress() -> None:
    assert noted(100, 50, 50).is_enough
