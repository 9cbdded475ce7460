"""What is proposed next, and which trials are stopped."""

from collections.abc import Sequence

import pytest

from launcher.search_space import Value
from launcher.searching import Ended, Search
from launcher.space_file import read_space
from policies.proposals import Shown

SPACE = read_space(
    "kind: [a, b]\nx: {float: [0, 1], default: 0.5}\n"
    "rate: {float: [1e-4, 1], log: true}\nsize: {int: [1, 9], step: 2, when: {kind: b}}\n",
    "space.yaml",
)


def a_search(searcher: str = "tpe", mode: str = "min", epochs: int | None = 9) -> Search:
    return Search(SPACE, searcher, 3, mode, epochs)  # type: ignore[arg-type]


def searched(search: Search, n: int) -> list[dict[str, Value]]:
    found = []
    for number in range(n):
        params = search.ask(number)
        search.tell(number, (float(params["x"]) - 0.2) ** 2, is_whole=True)
        found.append(params)
    return found


def test_the_first_trial_has_the_defaults() -> None:
    assert a_search().ask(0)["x"] == 0.5


@pytest.mark.parametrize("searcher", ["tpe", "random", "lstm"])
def test_every_proposal_is_of_the_space_and_the_same_for_a_seed(searcher: str) -> None:
    found = searched(a_search(searcher), 12)
    for params in found:
        assert params.keys() == {each.name for each in SPACE.active(params)}
        assert all(each.has(params[each.name]) for each in SPACE.active(params))
    assert found == searched(a_search(searcher), 12)
    assert {params["kind"] for params in found} == {"a", "b"}


@pytest.mark.parametrize("mode", ["min", "max"])
def test_two_of_three_trials_are_stopped_at_a_rung(mode: str) -> None:
    search, sign = a_search(mode=mode), 1 if mode == "min" else -1
    stopped = []
    for number in range(9):
        search.ask(number)
        value = sign * (0.5 + (number * 7 % 9) / 10)
        if search.report(number, 1, value):
            stopped.append(number)
            search.tell(number, value, is_whole=False)
    assert 5 <= len(stopped) <= 7
    assert 0 not in stopped


def test_a_trial_that_is_no_number_is_stopped() -> None:
    search = a_search()
    search.ask(0)
    assert search.report(0, 1, float("nan"))
    search.tell(0, float("nan"), is_whole=False)


def test_nothing_is_stopped_where_a_trial_has_one_epoch() -> None:
    search = a_search(epochs=1)
    for number in range(6):
        search.ask(number)
        assert not search.report(number, 1, float(number))


@pytest.mark.parametrize("searcher", ["tpe", "random", "lstm"])
def test_a_replayed_search_goes_on_as_if_it_had_never_stopped(searcher: str) -> None:
    def told(search: Search, numbers: Sequence[int]) -> list[Ended]:
        found = []
        for number in numbers:
            params = search.ask(number)
            values = ((1, float(params["x"])), (2, float(params["rate"])))
            stops = [search.report(number, *each) for each in values]
            search.tell(number, values[-1][1], is_whole=not any(stops))
            found.append(Ended(number, params, values, values[-1][1], not any(stops)))
        return found

    one, other = a_search(searcher), a_search(searcher)
    before = told(one, range(4))
    other.replay(before)
    assert one.ask(9) == other.ask(9)
    assert one.report(9, 1, 0.3) == other.report(9, 1, 0.3)


def test_a_proposer_sees_what_trials_showed_and_is_followed() -> None:
    seen: list[Sequence[Shown]] = []

    def propose(shown: Sequence[Shown]) -> tuple[float, ...]:
        seen.append(shown)
        return (0.9, 0.25, 0.0, 1.0)

    search = Search(SPACE, "random", 3, "max", None, propose)
    first = search.ask(0)
    search.tell(0, 0.7, is_whole=True)
    assert search.ask(1) == {"kind": "b", "x": 0.25, "rate": pytest.approx(1e-4), "size": 9}
    assert [(each.point, each.loss) for each in seen[0]] == [(SPACE.encode(first), -0.7)]
