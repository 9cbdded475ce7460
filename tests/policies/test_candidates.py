import pytest

from policies.candidates import ceiling, pools, worker_counts
from policies.schema import Limits, Work
from tests.policies.cases import node, situation, workload


def rooms(nodes, **limits):
    return [(pool.room, pool.gpus_per_worker) for pool in pools(nodes, Limits(**limits))]


def test_a_cluster_has_one_worker_per_node():
    assert rooms([node("a"), node("b", cpus=16.0)]) == [((1, 1), 0.0)]


def test_a_lone_machine_has_room_for_a_worker_per_cpu():
    assert rooms([node("a", cpus=2.0)]) == [((2,), 0.0)]
    assert rooms([node("a", cpus=0.45)]) == [((1,), 0.0)]


def test_cpus_per_worker_sets_the_room():
    nodes = [node("a", cpus=8.0), node("b", cpus=2.0), node("c", cpus=1.0)]
    assert rooms(nodes, cpus_per_worker=2.0) == [((4, 1), 0.0)]
    assert rooms([node("a", cpus=2.0)], cpus_per_worker=0.5) == [((4,), 0.0)]


def test_gpu_nodes_and_others_are_never_mixed():
    nodes = [node("a", gpus=4.0, kind="p4"), node("b")]
    assert rooms(nodes) == [((4,), 1.0), ((1,), 0.0)]
    assert rooms(nodes, gpus_per_worker=2.0) == [((2,), 2.0)]
    assert rooms(nodes, gpus_per_worker=0.0) == [((1, 1), 0.0)]


def test_a_fixed_n_beyond_the_nodes_shares_their_cores():
    nodes = [node("a", cpus=4.0), node("b", cpus=2.0)]
    assert rooms(nodes, workers=2) == [((1, 1), 0.0)]
    assert rooms(nodes, workers=5) == [((4, 2), 0.0)]


def test_nodes_without_free_cpus_take_no_worker():
    assert rooms([node("a", cpus=0.0)]) == []
    assert rooms([node("a", cpus=1.0)], cpus_per_worker=2.0) == []


def test_all_workers_of_a_plan_get_the_common_minimum():
    (pool,) = pools([node("a", cpus=8.0), node("b", cpus=3.0)], Limits())
    assert pool.options({"a": 1, "b": 1}).cpus_per_worker == 3.0
    assert pool.options({"a": 1}).cpus_per_worker == 8.0
    assert pool.options({"b": 2}).cpus_per_worker == 1.0
    (fractional,) = pools([node("a", cpus=0.45)], Limits())
    assert fractional.options({"a": 1}).cpus_per_worker == 0.45


@pytest.mark.parametrize(
    ("changes", "n", "why"),
    [
        ({}, 3, "the cluster's 3 nodes have room for 3"),
        ({"limits": Limits(max_workers=2)}, 2, "--max-workers is 2"),
        ({"limits": Limits(cpus_per_worker=1.0)}, 12, "room for 12"),
        ({"work": Work(10, 1, 2)}, 2, "a batch of 2 rows"),
        ({"load": workload(max_workers=1, max_workers_reason="one file")}, 1, "one file"),
        ({"load": workload(max_workers=2)}, 2, "the data can feed 2"),
    ],
)
def test_the_ceiling_says_what_keeps_n_from_growing(changes, n, why):
    case = situation([node(x) for x in "abc"], **changes)
    found = ceiling(case, pools(case.nodes, case.limits))
    assert found.n_workers == n
    assert why in found.reason


def test_counts_are_dense_at_first_and_end_with_the_largest():
    assert worker_counts(0) == ()
    assert worker_counts(1) == (1,)
    assert worker_counts(12) == tuple(range(1, 13))
    many = worker_counts(1000)
    assert many[:5] == (1, 2, 3, 4, 6)
    assert many[-1] == 1000
    assert len(many) < 25
