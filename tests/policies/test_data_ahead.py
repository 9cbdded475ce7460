"""Data that nodes lack take time and money, and plans on nodes that have them do not."""

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from policies.data_ahead import START_S, bringing_s, egress_usd, missing_bytes
from policies.schema import DataAhead, NodeData, Plan, PlanOptions

GB = 10**9


def a_plan(*nodes: str) -> Plan:
    return Plan(len(nodes), nodes, "direct", PlanOptions(cpus_per_worker=1))


def ahead(is_shared: bool = False) -> DataAhead:
    nodes = (NodeData("a", 0), NodeData("b", GB))
    return DataAhead(4 * GB, nodes, 1e8, "measured", is_shared, 0.09 / GB)


def test_a_node_of_two_workers_is_served_once() -> None:
    assert missing_bytes(a_plan("b", "b", "c"), ahead()) == (GB, 4 * GB)


def test_nothing_is_due_where_the_data_are() -> None:
    assert bringing_s(a_plan("a"), ahead()) == (0.0, 0.0)
    assert egress_usd(a_plan("a"), ahead()) == 0.0


def test_the_node_that_lacks_most_sets_the_time() -> None:
    mean_s, variance = bringing_s(a_plan("a", "b", "c"), ahead())
    assert mean_s == START_S + 40.0
    assert variance > 0.0


def test_one_way_for_all_takes_the_sum() -> None:
    assert bringing_s(a_plan("b", "c"), ahead(is_shared=True))[0] == START_S + 50.0


def test_egress_is_paid_for_each_node() -> None:
    assert egress_usd(a_plan("a", "b", "c"), ahead()) == approx(0.45)


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6), st.booleans())
def test_another_node_is_never_sooner_or_cheaper(nodes: list[str], is_shared: bool) -> None:
    data = ahead(is_shared)
    fewer, more = a_plan(*nodes), a_plan(*nodes, "z")
    assert bringing_s(fewer, data)[0] <= bringing_s(more, data)[0]
    assert egress_usd(fewer, data) < egress_usd(more, data)


def by_site() -> DataAhead:
    rome = DataAhead(GB, (NodeData("a", 0), NodeData("b", GB)), 1e8, "measured", False, 0.0)
    oslo = DataAhead(2 * GB, (NodeData("c", 2 * GB),), 1e7, "measured", False, 0.09 / GB)
    return DataAhead(2 * GB, (), 1e7, "measured", False, 0.09 / GB, (rome, oslo))


def test_every_node_lacks_only_what_is_its_sites() -> None:
    assert missing_bytes(a_plan("a", "b", "c"), by_site()) == (GB, 2 * GB)
    assert missing_bytes(a_plan("a", "b"), by_site()) == (GB,)


def test_sites_are_served_beside_each_other_each_over_its_own_way() -> None:
    assert bringing_s(a_plan("a", "b", "c"), by_site())[0] == approx(START_S + 200.0)
    assert bringing_s(a_plan("a", "b"), by_site())[0] == approx(START_S + 10.0)
    assert egress_usd(a_plan("b", "c"), by_site()) == approx(0.18)
