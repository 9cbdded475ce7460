"""Search spaces: what a file may say, and what is told where it is wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import UsageError
from launcher.search_space import UNUSED, Choice, Range, Space
from launcher.space_file import read_space

TEXT = """
data: digits
learning-rate: {float: [1e-4, 1e-1], log: true, default: 0.002}
filters: {int: [8, 64], step: 8}
optimizer: [adam, sgd]
momentum:
  float: [0.5, 0.99]
  when: {optimizer: sgd}
nesterov: {choice: [true, false], when: {optimizer: sgd, data: digits}}
"""


def a_space() -> Space:
    return read_space(TEXT, "space.yaml")


def test_a_file_describes_ranges_choices_conditions_and_what_is_fixed() -> None:
    space = a_space()
    rate, filters, optimizer, momentum, nesterov = space.parameters
    assert rate == Range("learning-rate", 1e-4, 0.1, log=True, default=0.002)
    assert filters == Range("filters", 8, 64, is_int=True, step=8)
    assert optimizer == Choice("optimizer", ("adam", "sgd"))
    assert [each.name for each in (*momentum.when, *nesterov.when)] == [
        "optimizer",
        "optimizer",
        "data",
    ]
    assert dict(space.fixed) == {"data": "digits"}
    assert space.defaults == {"learning-rate": 0.002}


def test_a_parameter_counts_only_where_its_condition_holds() -> None:
    space = a_space()
    assert "momentum" not in {p.name for p in space.active({"optimizer": "adam"})}
    assert "nesterov" in {p.name for p in space.active({"optimizer": "sgd"})}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {float: [0, 1]}\na: 3", r"s\.yaml:2: a stands here for the second time"),
        ("a:\n  float: [0, 1]\n  lgo: true", r"s\.yaml:3: a: 'lgo' is not known. There are float"),
        ("a: {log: true}", r"s\.yaml:1: a: give exactly one of float, int and choice"),
        ("a: {float: [0, 1], int: [0, 1]}", "exactly one of"),
        ("a: {float: 3}", r"a: float 3 should be \[lowest, highest\]"),
        ("a: {float: [2, 1]}", "a: 2 is not below 1"),
        ("a: {float: [x, 1]}", "a: 'x' is not a number"),
        ("a: {float: [0, .inf]}", "a: inf is not a finite number"),
        ("a: {int: [0, 1.5]}", "a: 1.5 is not a whole number"),
        ("a: {float: [0, 1], log: true}", "a: a log scale begins above 0, and this at 0"),
        ("a: {float: [1, 2], log: 3}", "a: log 3 should be true or false"),
        ("a: {float: [1, 2], log: true, step: 1}", "a: a log scale has no step"),
        ("a: {float: [1, 2], step: 5}", "a: step 5 should be above 0, at most 1"),
        ("a: {float: [1, 2], default: 5}", "a: default 5 is none of its values"),
        ("a: {choice: [x], default: z}", "a: default 'z' is none of its values"),
        ("a: {choice: 5}", "a: choice 5 should be a list of values"),
        ("a: []", r"a: choice \[\] should be a list of values"),
        ("a: [x, x]", "a: a value stands in .* twice"),
        ("a: [1, true]", "a: a value stands in .* twice"),
        ("a: !foo 3", r"s\.yaml:1: this cannot be read: could not determine a constructor"),
        ("a b: [1, 2]", r"s\.yaml:1: 'a b' cannot be a parameter's name"),
        ("1: [1, 2]", "1 cannot be a parameter's name"),
        ("a: {int: [8, 64], step: 8, default: 30}", "a: default 30 is none of its values"),
        ("a: [[1], 2]", r"a: \[1\] should be a text or a number"),
        ("a: {choice: [1, 2], log: true}", "a: a choice has no log"),
        ("a: {float: [0, 1], when: {b: 1}}", "a: when names 'b', which does not stand above"),
        ("b: [x, y]\na: {float: [0, 1], when: {b: z}}", r"s\.yaml:2: a: b is never 'z'"),
        ("a: {float: [0, 1], when: 3}", "a: when should be like"),
        ("a: 3", "there is nothing to tune"),
        ("- a", "a search space is a list of `name: …` lines"),
        ("", "a search space is a list"),
        ("a: {", r"s\.yaml:\d: this is no YAML"),
    ],
)
def test_a_mistake_is_told_with_its_line_key_and_value(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_space(text, "s.yaml")


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_every_point_of_the_unit_cube_is_a_configuration_of_the_space(point: list[float]) -> None:
    space = a_space()
    params = space.decode(point)
    assert all(each.has(params[each.name]) for each in space.active(params))
    assert params.keys() == {each.name for each in space.active(params)}
    again = space.decode(space.encode(params))
    assert again == {k: pytest.approx(v) if isinstance(v, float) else v for k, v in params.items()}


def test_steps_and_whole_numbers_are_kept() -> None:
    space = read_space("a: {int: [1, 8], step: 3}\nb: {float: [0, 1], step: 0.4}", "s.yaml")
    assert space.decode((1.0, 1.0)) == {"a": 7, "b": 0.8}
    assert isinstance(space.decode((0.0, 0.0))["a"], int)


def test_steps_that_do_not_divide_a_range_end_below_it() -> None:
    space = read_space("a: {int: [8, 63], step: 8}\nb: {float: [0.1, 1], step: 0.4}", "s.yaml")
    assert [each.high for each in space.parameters if isinstance(each, Range)] == [56, 0.9]


def test_what_does_not_count_lies_in_the_middle() -> None:
    assert a_space().encode({"learning-rate": 0.1, "filters": 8, "optimizer": "adam"})[3] == UNUSED
