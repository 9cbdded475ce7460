import pytest

from launcher.worker.positions import position_of

POSITION = {
    "fit": 0,
    "epoch": 2,
    "step": 30,
    "steps_by_rank": [230, 225, 260, 0],
    "epoch_steps": 50,
}


@pytest.mark.parametrize(
    ("rank", "step"),
    [(0, 30), (1, 25), (2, 49), (3, 30), (4, 30)],
    ids=["first", "behind", "ahead, in the next epoch", "was not there", "new"],
)
def test_every_rank_goes_on_where_it_was_in_the_first_ones_epoch(rank: int, step: int) -> None:
    assert position_of(POSITION, rank) == {**POSITION, "step": step}


def test_ranks_that_keep_in_step_have_one_position() -> None:
    position = {"fit": 0, "epoch": 2, "step": 30}
    assert position_of(position, 1) == position


def test_every_site_goes_on_where_it_was_in_its_own_data() -> None:
    position = {
        "fit": 0,
        "epoch": 2,
        "step": 30,
        "place_by_site": {"rome": [2, 30], "oslo": [7, 9]},
    }
    assert position_of(position, 0, "rome") == position
    assert position_of(position, 1, "oslo") == {**position, "epoch": 7, "step": 9}
    assert position_of(position, 2, "lima") == {**position, "step": 0}
