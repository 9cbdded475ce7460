"""What a cluster that changed does to what was measured before, in simulated runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from policies.recommend import recommend
from policies.residual import learn
from tests.policies.cases import experience, lab
from tests.policies.worlds import World, drawn_runs, predicted

CASE = lab(rtt_s=0.020)
AS_SAID = World(np.ones(4), noise=0.05)
# A network that takes more than twice as long for the same payload, which no probe told.
SLOWER = World(np.array([1.0, 2.2, 2.2, 2.2]), noise=0.05)
DAY_S = 86_400.0


def runs(world, n_runs, seed, first_day=0.0, p_disturbed=0.0):
    """One a day; n and RTT are drawn."""
    rng = np.random.default_rng(seed)
    return [
        replace(e, run=f"day-{first_day + i:g}", measured_at_s=(first_day + i) * DAY_S)
        for i, e in enumerate(drawn_runs(world, rng, n_runs, p_disturbed))
    ]


def error(world, seen, names="abc"):
    return predicted(CASE, names, seen).mu - math.log(world.step_s(CASE, names))


OLD = runs(AS_SAID, 16, seed=1)
NEW = runs(SLOWER, 8, seed=2, first_day=16)


def test_a_change_is_noticed_and_what_came_before_loses_weight():
    change = learn(CASE, [*OLD, *NEW]).change
    assert change is not None
    assert 15 * DAY_S <= change.at_s <= 18 * DAY_S
    undated = [replace(e, measured_at_s=None) for e in (*OLD, *NEW)]
    assert abs(error(SLOWER, [*OLD, *NEW])) < 0.6 * abs(error(SLOWER, undated))


def test_after_a_change_old_records_do_little_harm():
    """Eight runs of the cluster as it is now say nearly the same with and without the old ones."""
    assert error(SLOWER, [*OLD, *NEW]) == pytest.approx(error(SLOWER, NEW), abs=0.08)


def test_a_cluster_that_stays_as_it_is_keeps_all_its_records():
    found = [learn(CASE, runs(AS_SAID, 24, seed)).change for seed in range(8)]
    assert found == [None] * 8


def test_disturbed_runs_are_no_change():
    found = [learn(CASE, runs(AS_SAID, 24, seed, p_disturbed=0.15)).change for seed in range(8)]
    assert found == [None] * 8


def test_one_or_two_strange_runs_are_no_change():
    for n_strange in (1, 2):
        assert learn(CASE, [*OLD, *NEW[:n_strange]]).change is None


def test_a_faster_cluster_is_noticed_too():
    found = learn(CASE, [*runs(SLOWER, 12, seed=3), *runs(AS_SAID, 8, 4, first_day=12)])
    assert found.change is not None
    assert found.change.n_before in range(9, 15)


def test_another_cluster_is_no_change_of_this_one():
    elsewhere = [
        replace(e, nodes=tuple(replace(n, ip="10.7.0.1", kind="c9") for n in e.nodes)) for e in NEW
    ]
    assert learn(CASE, [*OLD, *elsewhere]).change is None


def test_runs_without_a_date_tell_of_no_change():
    undated = [replace(e, measured_at_s=None) for e in (*OLD, *NEW)]
    assert learn(CASE, undated).change is None


def test_the_order_of_records_does_not_matter():
    assert learn(CASE, [*OLD, *NEW]).change.at_s == learn(CASE, [*NEW[::-1], *OLD]).change.at_s
    there, back = predicted(CASE, "ab", [*OLD, *NEW]), predicted(CASE, "ab", [*NEW[::-1], *OLD])
    assert back.mu == pytest.approx(there.mu, abs=1e-6)


def test_a_change_is_told_with_the_decision():
    notes = recommend(CASE, [*OLD, *NEW], 0).notes
    (note,) = [text for text in notes if "since" in text]
    assert note.startswith("Steps have taken otherwise here since 1970-01-1")
    assert not [text for text in recommend(CASE, OLD, 0).notes if "since" in text]


def test_a_run_counts_once_however_many_segments_it_has():
    strange = experience(CASE, "abc", 3.0 * AS_SAID.step_s(CASE, "abc"), run="one")
    segments = [replace(strange, measured_at_s=20 * DAY_S + i) for i in range(5)]
    assert learn(CASE, [*OLD, *segments]).change is None
