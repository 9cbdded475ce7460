import csv
import io
import math

import numpy as np
import pytest

from policies.cost_model import step_parts
from policies.data import PAYLOAD_SHARE
from policies.data.sweep import (
    FILE,
    experience_of,
    read_cells,
    shipped_prior,
    sweep_cells,
    workloads_of,
)
from policies.features import features
from policies.links import links_between
from policies.residual import learn
from policies.robust import standard
from policies.rows import prior_of
from policies.warmth import OPEN, prior_after
from tests.policies.cases import experience, lab, plan_on, workload
from tests.policies.sweeps import Truth, cells_of, row, sweep_csv, text_of

SLOW_EXCHANGE = Truth((1.0, 1.5, 1.5, 1.5))
NEW = workload(c0_s=0.01, c1_s=1e-4, cpus=0.45, payload=900_000, kinds=("lab",), batch=128)
FAR = lab(NEW, 128, 0.010)


def correction(prior, case=FAR, names="ab", seen=()):
    links = links_between(case.nodes, case.network)
    parts = step_parts(plan_on(names, 0.45), case.nodes, links, case.workload, 128)
    return learn(case, seen, prior).step(parts)


@pytest.fixture(scope="module")
def slow():
    return prior_after(experience_of(cells_of(SLOW_EXCHANGE)))


def test_cells_of_one_worker_become_the_speed_of_their_workload():
    load = workloads_of(cells_of())["wide_mlp"]
    assert load.payload_bytes == 4 * 1_900_000
    by_cpus = {speed.cpus: speed for speed in load.node_kinds}
    assert set(by_cpus) == {0.2, 0.45, 0.6}
    assert by_cpus[0.45].c0_s == pytest.approx(0.012)
    assert by_cpus[0.45].c1_s == pytest.approx(1.5e-4)
    assert by_cpus[0.2].c1_s == pytest.approx(1.5e-4 * 0.45 / 0.2)


def test_gradients_that_are_rows_of_a_table_count_what_they_send_at_each_batch():
    table = [dict(each) for each in csv.DictReader(io.StringIO(sweep_csv()))]
    for each in table:
        is_wide = each["workload"] == "wide_mlp"
        each["payload_bytes"] = 1000 * int(each["batch"]) if is_wide else ""
        each["n_slices"] = int(is_wide)
    found = experience_of(read_cells(text_of(table)))
    sent = {(e.workload.payload_bytes, e.workload.n_slices, e.global_batch) for e in found}
    assert {each for each in sent if each[1]} == {(128_000, 1, 128), (256_000, 1, 256)}
    assert {each[0] for each in sent if not each[1]} == {4 * 14_000}


def test_a_speed_is_never_below_zero():
    times_ms = {32: 5.0, 64: 4.0, 128: 3.0}
    rows = [
        row("tiny_mlp", b, 1, ("allreduce", ""), "0.45", 0.5, 1000, t) for b, t in times_ms.items()
    ]
    (speed,) = workloads_of(read_cells(text_of(rows)))["tiny_mlp"].node_kinds
    assert speed.c1_s == 0.0
    assert 0.003 < speed.c0_s < 0.005


def test_cells_of_more_workers_are_what_a_step_took():
    cells = [cell for cell in cells_of() if cell.n > 1]
    found = experience_of(cells_of())
    assert len(found) == len(cells) == 64
    e, cell = found[-1], cells[-1]
    assert (e.step_s, e.steps, e.global_batch) == (cell.mean_s, 20, cell.batch)
    assert e.plan.strategy == "direct" and e.plan.options.algorithm == "one_shot"
    assert {node.cpus for node in e.nodes} == {0.45}
    assert {link.bandwidth_bytes_per_s for link in e.network.links} == {1.25e8 * PAYLOAD_SHARE}


def test_cells_of_a_workload_that_never_ran_alone_are_left_out():
    cells = cells_of()
    assert experience_of([c for c in cells if c.n > 1]) == ()
    assert experience_of([c for c in cells if c.n > 1 or c.cpus == (0.2,)]) == ()


def test_what_was_not_timed_is_left_out():
    text = text_of([row("tiny_mlp", 32, 1, ("allreduce", ""), "0.45", 0.5, 1000, 0.0)])
    assert read_cells(text) == ()


def test_the_shipped_sweep_is_used_where_it_is_there():
    assert (shipped_prior() is None) == (not sweep_cells())


def test_the_columns_are_those_of_the_sweep():
    header = sweep_csv().splitlines()[0]
    assert header.startswith("workload,batch,n,strategy,algorithm,cpus,rtt_ms,rate_mbit,run")
    assert FILE == "sweep.csv"


def test_a_sweep_that_agrees_with_the_prior_changes_no_mean():
    prior = prior_after(experience_of(cells_of()))
    assert correction(prior).mean == pytest.approx(0.0, abs=0.02)
    assert correction(prior).std < correction(None).std


def test_what_the_sweep_taught_carries_over_to_another_model_and_network(slow):
    exchange = prior_parts("ab").exchange_s / prior_parts("ab").total_s
    truth = math.log1p(0.5 * exchange)
    assert 0.6 * truth < correction(slow).mean < 1.2 * truth
    assert correction(slow, names="a").mean == pytest.approx(0.0, abs=0.03)


def prior_parts(names, case=FAR):
    links = links_between(case.nodes, case.network)
    return step_parts(plan_on(names, 0.45), case.nodes, links, case.workload, 128)


def test_the_sweep_never_closes_what_another_cluster_leaves_open(slow):
    before = standard(len(slow.mean)).covariance
    for _ in range(20):
        x = np.random.default_rng(1).normal(size=len(slow.mean))
        assert x @ slow.covariance @ x >= OPEN * (x @ before @ x) - 1e-9


def test_runs_of_this_cluster_weigh_more_than_the_sweep(slow):
    """The sweep says that exchanges take half as long again; here they take as long as said."""
    step_s = prior_parts("ab").total_s
    runs = [experience(FAR, "ab", step_s, run=f"run-{i}") for i in range(4)]
    before, after = correction(slow).mean, correction(slow, seen=runs).mean
    assert abs(after) < 0.35 * before


def test_rows_of_one_workload_are_not_taken_for_rows_of_many():
    """Both workloads are off by something of their own, which no other script shares."""
    sure = prior_after(experience_of(cells_of(Truth(noise=0.03))))
    unsure = prior_after(experience_of(cells_of(Truth(noise=0.03, by_workload=0.2))))
    off = abs(correction(unsure).mean)
    assert off < 2.0 * correction(unsure).std
    assert correction(sure).std > 0.05


def test_the_prior_of_no_rows_is_none():
    assert prior_after(()) is None


def test_priors_carry_over_as_shares_without_a_unit():
    e = experience_of(cells_of())[0]
    parts = prior_of(e)
    assert np.abs(features(parts, own=False)).max() < 1.0
