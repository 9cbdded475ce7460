from dataclasses import replace

import numpy as np

from policies.memo import KEPT, remembered
from policies.recommend import recommend
from policies.schema import Limits, Work
from tests.policies.cases import experience, network, node, situation

NAMES = [f"n{i:02}" for i in range(24)]


def test_what_was_found_last_is_not_computed_again():
    calls = []

    @remembered
    def doubled(values: tuple[int, ...]) -> int:
        calls.append(values)
        return 2 * sum(values)

    assert [doubled((1, 2)), doubled((1, 2)), doubled((3,)), doubled((1, 2))] == [6, 6, 6, 6]
    assert calls == [(1, 2), (3,)]
    for i in range(KEPT):
        doubled((10 + i,))
    assert doubled((1, 2)) == 6
    assert calls.count((1, 2)) == 2


def cluster(**changes):
    """24 nodes of two kinds of price on two sites."""
    rng = np.random.default_rng(5)
    nodes = [node(x, price=[0.1, 0.4][i % 2]) for i, x in enumerate(NAMES)]
    rtt_s = {(a, b): rng.uniform(0.001, 0.01) for a in NAMES for b in NAMES}
    net = network(NAMES, lambda a, b: rtt_s[a, b])
    return situation(nodes, net, Work(20_000, 10, 256), **changes)


def test_a_decision_is_the_same_on_a_map_that_is_known():
    case = cluster()
    first = recommend(case, (), 0)
    assert recommend(case, (), 0) == first
    assert recommend(replace(case, nodes=case.nodes[::-1]), (), 0) == first


def test_what_was_remembered_of_a_map_knows_nothing_of_experience_or_limits():
    case = cluster()
    usual = recommend(case, (), 0)
    slow_s = 5.0 * usual.candidate.prediction.step_s.mean
    seen = [
        replace(experience(case, usual.chosen.nodes, slow_s, run=f"run-{i}"), plan=usual.chosen)
        for i in range(4)
    ]
    assert recommend(case, seen, 0).chosen != usual.chosen
    assert recommend(case, (), 0) == usual
    alone_usd = usual.candidates[0].prediction.cost_usd.high
    poor = replace(case, limits=Limits(budget_usd=1.2 * alone_usd))
    assert recommend(poor, (), 0).chosen.n_workers < usual.chosen.n_workers


def test_a_network_that_was_measured_anew_is_a_new_map():
    case = cluster()
    usual = recommend(case, (), 0).chosen
    far = replace(case, network=network(NAMES, 0.3))
    assert recommend(far, (), 0).chosen.n_workers < usual.n_workers
