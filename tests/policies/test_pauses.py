import math
from dataclasses import replace

import pytest

from policies.cost_model import checkpoint_s, evaluation_s, step_parts
from policies.forecast import forecast
from policies.links import links_between
from policies.pauses import learn_pauses
from policies.residual import COLD, learn
from policies.rows import rows_of
from policies.schema import Fit, Work
from tests.policies.cases import experience, network, node, plan_on, situation, workload

LOAD = workload(fits=(Fit(256, 100, 10, validation_steps=40),))
CASE = situation([node(x) for x in "ab"], network("ab"), Work(1_000, 10, 256, 40), load=LOAD)


def learned(*seen):
    return learn_pauses(rows_of(seen, "script-a", CASE.nodes, COLD), "script-a", CASE.nodes)


def run(**measured):
    return experience(CASE, "ab", 0.1, **measured)


def prior_s(names="ab"):
    links = links_between(CASE.nodes, CASE.network)
    parts = step_parts(plan_on(names), CASE.nodes, links, LOAD, 256)
    return evaluation_s(parts, Work(0, 1.0, 256, 40))


def time_of(*seen):
    links = links_between(CASE.nodes, CASE.network)
    return forecast(plan_on("ab"), CASE, links, learn(CASE, seen)).time


def test_before_any_run_what_is_assumed_stands_and_is_wide():
    found = learned()
    assert found.evaluation.mean == found.checkpoint.mean == 0.0
    assert found.evaluation.std > 0.4
    assert found.checkpoint.std > 0.6


def test_evaluations_of_the_script_move_what_is_said_of_the_next():
    once = learned(run(evaluation_s=2.0 * prior_s()))
    often = learned(*[run(evaluation_s=2.0 * prior_s())] * 4)
    assert 0.0 < once.evaluation.mean < often.evaluation.mean < math.log(2.0)
    assert often.evaluation.mean == pytest.approx(math.log(2.0), abs=0.15)
    assert often.evaluation.std < learned().evaluation.std
    assert often.checkpoint == learned().checkpoint


def test_checkpoints_of_another_script_tell_less():
    own = run(checkpoint_s=3.0 * checkpoint_s(LOAD.payload_bytes))
    other = replace(own, workload=replace(LOAD, fingerprint="script-b"))
    assert 0.0 < learned(other).checkpoint.mean < learned(own).checkpoint.mean


def test_checkpoints_of_another_cluster_tell_less():
    here = run(checkpoint_s=3.0 * checkpoint_s(LOAD.payload_bytes))
    there = replace(here, nodes=tuple(replace(n, ip="10.7.0.1") for n in here.nodes))
    assert 0.0 < learned(there).checkpoint.mean < learned(here).checkpoint.mean


def test_runs_without_evaluation_tell_nothing_of_it():
    none = replace(run(evaluation_s=1.0), workload=replace(LOAD, fits=(Fit(256, 100, 10),)))
    found = learned(none, run(evaluation_s=0.0), run(checkpoint_s=0.0))
    assert (found.evaluation, found.checkpoint) == (learned().evaluation, learned().checkpoint)


def test_a_job_takes_as_much_longer_as_its_evaluations_did():
    slow = [run(evaluation_s=3.0 * prior_s())] * 5
    usual = [run(evaluation_s=prior_s())] * 5
    assert time_of(*slow).mean - time_of(*usual).mean == pytest.approx(20.0 * prior_s(), rel=0.25)


def test_costly_checkpoints_make_a_job_longer():
    each_s = checkpoint_s(LOAD.payload_bytes)
    costly, usual = ([run(checkpoint_s=factor * each_s)] * 5 for factor in (10.0, 1.0))
    assert time_of(*costly).mean > time_of(*usual).mean + 9.0 * each_s
