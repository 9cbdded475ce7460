"""Which nodes meet, and who is to blame where they cannot."""

from collections.abc import Iterable, Sequence
from itertools import permutations

import pytest

from launcher.connectivity import MEET_ALL, peers, port_problems
from launcher.problem import Problem
from launcher.worker.checkup import Contact


def problems(nodes: Sequence[str], blocked: Iterable[str], driver: str = "a") -> list[Problem]:
    """Everyone meets everyone; `ab` means that a cannot connect to b."""
    cut = {tuple(pair) for pair in blocked}
    contacts: dict[str, list[Contact]] = {node: [] for node in nodes}
    for src, dst in permutations(nodes, 2):
        error = "no connection in 2 s" if (src, dst) in cut else None
        contacts[src].append(Contact(dst, 0.0, 0.001, error))
    ips = {node: f"10.0.0.{i}" for i, node in enumerate(nodes, 1)}
    return list(port_problems(contacts, ips, driver))


def unfit(nodes: str, *blocked: str, driver: str = "a") -> list[str]:
    return [p.node for p in problems(nodes, blocked, driver) if p.level == "fail"]


def test_few_nodes_all_meet() -> None:
    assert peers(1, 4) == (0, 2, 3)
    assert peers(0, 1) == ()


@pytest.mark.parametrize("n", [MEET_ALL + 1, 100, 1000])
def test_many_nodes_meet_in_n_log_n_connections(n: int) -> None:
    met = [peers(i, n) for i in range(n)]
    assert sum(map(len, met)) <= n * n.bit_length()
    assert all(i not in mine and len(set(mine)) == len(mine) for i, mine in enumerate(met))
    reached = [sum(i in mine for mine in met) for i in range(n)]
    assert min(reached) == max(reached) == len(met[0])


def test_open_nodes_have_no_problem() -> None:
    assert problems("abc", []) == []


def test_a_node_that_nobody_reaches_is_unfit_and_the_line_says_why() -> None:
    (problem,) = problems("abc", ["ac", "bc"])
    assert (problem.node, problem.check, problem.level) == ("c", "ports", "fail")
    assert problem.text.startswith(
        "is cut off from 2 of 2 nodes (no connection in 2 s from 10.0.0.1 to 10.0.0.3): open all"
    )


def test_a_node_that_reaches_nobody_is_unfit_too() -> None:
    assert unfit("abc", "ca", "cb") == ["c"]


def test_one_blocked_path_among_many_is_a_warning() -> None:
    (problem,) = problems("abc", ["bc"])
    assert (problem.node, problem.level) == ("b", "warn")


def test_of_two_nodes_apart_the_drivers_stays() -> None:
    assert unfit("ab", "ab") == ["b"]
    assert unfit("ab", "ab", driver="b") == ["a"]


def test_of_two_islands_the_drivers_stays() -> None:
    assert sorted(unfit("abcd", "ac", "ad", "bc", "bd")) == ["c", "d"]
    assert sorted(unfit("abcd", "ac", "ad", "bc", "bd", driver="d")) == ["a", "b"]


def test_the_driver_is_to_blame_if_only_it_is_cut_off() -> None:
    assert unfit("abc", "ba", "ca") == ["a"]


def test_what_is_left_reaches_each_other() -> None:
    nodes = "abcdef"
    for blocked in (["bc", "bd", "be", "cf"], ["ab", "bc", "cd", "de", "ef"], ["ef", "fd"]):
        gone = set(unfit(nodes, *blocked))
        left = [pair for pair in blocked if not gone & set(pair)]
        for node in set(nodes) - gone:
            n_left = len(nodes) - len(gone) - 1
            assert sum(node in pair for pair in left) <= n_left / 2
