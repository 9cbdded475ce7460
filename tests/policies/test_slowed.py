from hypothesis import given
from hypothesis import strategies as st

from policies.slowed import slow_factors, slowed
from tests.policies.cases import node, workload


def test_a_node_that_fell_behind_the_others_is_slow() -> None:
    assert slow_factors({"a": 100, "b": 100, "c": 100}, {"a": 100, "b": 50, "c": 100}) == {"b": 2.0}


def test_nodes_that_all_became_slower_are_not() -> None:
    assert slow_factors({"a": 100, "b": 80, "c": 90}, {"a": 50, "b": 40, "c": 45}) == {}


def test_of_two_nodes_the_one_that_changed_is_slow() -> None:
    assert slow_factors({"a": 100, "b": 100}, {"a": 100, "b": 40}) == {"b": 2.5}


def test_a_node_that_was_not_measured_before_is_not_judged() -> None:
    assert slow_factors({}, {"a": 1.0}) == {}


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 10.0), max_size=6))
def test_nobody_is_slow_where_nothing_changed(speeds: dict[str, float]) -> None:
    assert slow_factors(speeds, speeds) == {}


def test_a_slow_node_becomes_a_kind_of_its_own() -> None:
    nodes, load = slowed([node("a"), node("b")], workload(c0_s=0.01, c1_s=0.001), {"b": 2.0})
    assert [each.kind for each in nodes] == ["c5", "c5, 2.0 × slower"]
    assert [(s.kind, s.c0_s, s.c1_s) for s in load.node_kinds] == [
        ("c5", 0.01, 0.001),
        ("c5, 2.0 × slower", 0.02, 0.002),
    ]


def test_a_node_of_a_kind_that_was_not_profiled_stays_as_it_is() -> None:
    nodes, load = slowed([node("a", kind="other")], workload(), {"a": 3.0})
    assert nodes == (node("a", kind="other"),)
    assert load == workload()
