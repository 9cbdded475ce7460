import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.constants import CONSTANTS
from policies.forecast import startup_time
from policies.recommend import recommend
from policies.residual import learn
from policies.schema import Plan, PlanOptions, Work
from policies.startup import startup_parts
from tests.policies.cases import experience, lab, network, node, plan_on, situation, workload

HOSTS = lab()
# Four whole cores, a script of 35 ms a step on one of them.
LOAD = workload(cpus=1.0, payload=1_000_000)
NEAR = situation([node(x, cpus=1.0) for x in "abcd"], network("abcd"), load=LOAD)


def predicted_s(case, n, seen=()):
    parts = startup_parts(plan_on("abcd"[:n], 0.45), case.nodes, case.workload)
    return startup_time(parts, learn(case, seen))


def starts(case, seconds_by_n, factors=(1.0,)):
    """Runs that took so long to start, a few times each."""
    return [
        experience(case, "abcd"[:n], 0.1, startup_s=s * f, run=f"r{n}-{i}")
        for n, s in seconds_by_n.items()
        for i, f in enumerate(factors)
    ]


def test_start_up_grows_with_workers_and_with_scarce_cpus():
    load, nodes = workload(), [node("a"), node("b")]
    one = startup_parts(plan_on("a"), nodes, load)
    assert one.total_s == pytest.approx(CONSTANTS.train_s + CONSTANTS.process_s + load.setup_s)
    assert startup_parts(plan_on("ab"), nodes, load).total_s > one.total_s
    half = startup_parts(Plan(1, ("a",), "allreduce", PlanOptions(0.5)), nodes, load)
    assert half.process_s == pytest.approx(2 * CONSTANTS.process_s)
    assert half.train_s == pytest.approx(2 * CONSTANTS.train_s)


def test_a_measured_process_start_takes_the_place_of_the_assumed_one():
    """A quota that Ray does not know of: one CPU by name, a fifth of one in truth."""
    load = workload(cpus=1.0, startup_s=5 * CONSTANTS.process_s)
    nodes = [node("a", cpus=1.0)]
    parts = startup_parts(plan_on("a", 1.0), nodes, load)
    assert parts.process_s == 5 * CONSTANTS.process_s
    assert parts.train_s == pytest.approx(5 * CONSTANTS.train_s)
    half = startup_parts(plan_on("a", 0.5), nodes, load)
    assert half.process_s == pytest.approx(10 * CONSTANTS.process_s)
    fast = startup_parts(plan_on("a", 1.0), nodes, replace(load, startup_s=3.0))
    assert fast.train_s == pytest.approx(CONSTANTS.train_s)


def test_a_measured_process_start_makes_the_prediction_surer():
    measured = replace(HOSTS, workload=replace(HOSTS.workload, startup_s=10.0))
    assert predicted_s(measured, 1).sigma < predicted_s(HOSTS, 1).sigma


def test_without_experience_the_prior_stands():
    parts = startup_parts(plan_on("ab", 0.45), HOSTS.nodes, HOSTS.workload)
    assert math.exp(predicted_s(HOSTS, 2).mu) == pytest.approx(parts.total_s)


def test_after_few_runs_one_worker_and_four_are_both_right():
    truth_s = {1: 25.0, 4: 55.0}
    seen = starts(HOSTS, truth_s, (0.95, 1.0, 1.06))
    for n, seconds in truth_s.items():
        assert predicted_s(HOSTS, n, seen).mean == pytest.approx(seconds, rel=0.12)
    between = [predicted_s(HOSTS, n, seen).mean for n in (1, 2, 3, 4)]
    assert between == sorted(between)
    assert 30.0 < between[1] < 50.0


def test_runs_of_one_worker_tell_less_of_four():
    seen = starts(HOSTS, {1: 50.0}, (0.95, 1.0, 1.0, 1.05))
    assert predicted_s(HOSTS, 1, seen).mean == pytest.approx(50.0, rel=0.1)
    assert predicted_s(HOSTS, 4, seen).mean > predicted_s(HOSTS, 4).mean
    assert predicted_s(HOSTS, 4, seen).sigma > predicted_s(HOSTS, 1, seen).sigma


def test_one_slow_start_moves_the_next_little():
    seen = starts(HOSTS, {2: 350.0})
    moved = predicted_s(HOSTS, 2, seen).mu - predicted_s(HOSTS, 2).mu
    assert 0.0 < moved < 0.35


def test_runs_of_other_scripts_count_less():
    own = starts(HOSTS, {1: 50.0}, (1.0, 1.0))
    others = [replace(e, workload=replace(e.workload, fingerprint="other")) for e in own]
    assert (
        predicted_s(HOSTS, 1).mu < predicted_s(HOSTS, 1, others).mu < predicted_s(HOSTS, 1, own).mu
    )


def test_a_short_job_does_not_pay_for_four_starts_and_a_long_one_does():
    chosen = {}
    for steps in (10, 20_000):
        case = replace(NEAR, work=Work(steps, 1, 256))
        chosen[steps] = recommend(case, (), 0).chosen.n_workers
    assert chosen == {10: 1, 20_000: 4}


def test_slow_starts_of_many_workers_are_learned_and_counted():
    """Four workers that take two minutes to start have to earn them."""
    case = replace(NEAR, work=Work(2000, 1, 256))
    assert recommend(case, (), 0).chosen.n_workers == 4
    seen = starts(case, {1: 16.0, 4: 130.0}, (0.97, 1.0, 1.0, 1.03))
    assert recommend(case, seen, 0).chosen.n_workers < 4


@given(st.integers(1, 4), st.floats(10.0, 90.0), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_more_runs_of_a_plan_come_ever_nearer_to_what_they_took(n, seconds, n_runs):
    def off(runs):
        return abs(math.log(seconds) - predicted_s(HOSTS, n, starts(HOSTS, {n: seconds}, runs)).mu)

    assert off(np.ones(n_runs + 4)) <= off(np.ones(n_runs)) + 0.02
