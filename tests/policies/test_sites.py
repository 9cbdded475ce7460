import numpy as np

from policies.sites import sites_of


def distances(place_by_node, inside_s=0.0005):
    at = np.array(place_by_node, dtype=float)
    return np.abs(at[:, None] - at[None, :]) + inside_s


def as_sets(site):
    return {frozenset(np.flatnonzero(site == label).tolist()) for label in set(site.tolist())}


def test_two_sites_are_told_apart_whatever_the_order_of_their_nodes():
    (found,) = sites_of(distances([0.0, 0.05, 0.0, 0.05, 0.0]))
    assert as_sets(found) == {frozenset({0, 2, 4}), frozenset({1, 3})}


def test_nodes_all_alike_are_no_sites():
    assert sites_of(distances([0.0] * 4)) == ()
    assert sites_of(distances([0.0])) == ()
    assert sites_of(distances([0.0, 0.1])) == ()


def test_racks_and_regions_are_two_partitions():
    found = sites_of(distances([0.0, 0.0, 0.004, 0.004, 0.200, 0.200], 0.0002))
    assert len(found) == 2
    assert {len(as_sets(x)) for x in found} == {2, 3}


def test_the_longer_way_of_a_pair_counts():
    one_way_s = distances([0.0, 0.0, 0.0])
    one_way_s[0, 2] = one_way_s[1, 2] = 0.1
    (found,) = sites_of(one_way_s)
    assert as_sets(found) == {frozenset({0, 1}), frozenset({2})}
