from launcher.roster import seconds_left_by_node


def test_a_notice_tells_the_seconds_that_are_left() -> None:
    left = seconds_left_by_node({"a": 1_030_000, "b": 0, "c": 990_000}, now_s=1000.0)
    assert left == {"a": 30.0, "b": None, "c": 0.0}
