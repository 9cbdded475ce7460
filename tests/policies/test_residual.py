import math
from dataclasses import replace

import numpy as np
import pytest

from policies.cost_model import step_time_s
from policies.features import N_COMPUTING, features
from policies.forecast import forecast
from policies.links import links_between
from policies.residual import learn
from policies.rows import MOST, relevant
from tests.policies.cases import experience, network, node, plan_on, situation, workload

ABCD = situation([node(x) for x in "abcd"], network("abcd", 0.005))


def predicted(case, names, seen=()):
    links = links_between(case.nodes, case.network)
    return forecast(plan_on(names), case, links, learn(case, seen)).step


def width(step):
    return step.interval().high / step.interval().low


def test_without_experience_the_prior_stands():
    step = predicted(ABCD, "ab")
    assert math.exp(step.mu) == pytest.approx(step_time_s(plan_on("ab"), ABCD))


def test_one_measured_worker_is_tight_and_more_workers_are_wider():
    one, four = predicted(ABCD, "a").interval(), predicted(ABCD, "abcd")
    assert 0.12 < one.high / one.mean - 1 < 0.18
    assert 0.12 < 1 - one.low / one.mean < 0.18
    assert width(four) > width(predicted(ABCD, "a"))
    near = situation(ABCD.nodes, network("abcd", 0.0002), load=workload(payload=100_000))
    assert 1.3 < width(predicted(near, "ab")) < 1.25 / 0.75


def test_assumed_links_and_speeds_are_wide():
    blind = replace(ABCD, network=None, workload=workload(payload=40_000_000))
    seen = replace(ABCD, workload=blind.workload)
    assert width(predicted(blind, "ab")) > 1.5 * width(predicted(seen, "ab"))
    strange = replace(ABCD, workload=workload(kinds=("other",)))
    assert width(predicted(strange, "a")) > 2 * width(predicted(ABCD, "a"))


def test_own_experience_moves_the_mean_and_narrows_the_interval():
    prior_s = step_time_s(plan_on("ab"), ABCD)
    seen = [experience(ABCD, "ab", 1.3 * prior_s) for _ in range(3)]
    before, after = predicted(ABCD, "ab"), predicted(ABCD, "ab", seen)
    assert before.mean < after.mean < 1.35 * prior_s
    assert width(after) < width(before)


def test_own_experience_weighs_more_than_that_of_another_script():
    prior_s = step_time_s(plan_on("ab"), ABCD)
    own = experience(ABCD, "ab", 1.3 * prior_s)
    other = replace(own, workload=replace(own.workload, fingerprint="script-b"))
    assert predicted(ABCD, "ab", [own]).mu > predicted(ABCD, "ab", [other]).mu
    assert predicted(ABCD, "ab", [other]).mu > predicted(ABCD, "ab").mu


def test_experience_of_two_workers_tells_of_three_but_less():
    prior_s = step_time_s(plan_on("ab"), ABCD)
    seen = [experience(ABCD, "ab", 1.3 * prior_s)] * 3
    moved = {
        names: predicted(ABCD, names, seen).mu - predicted(ABCD, names).mu
        for names in ("ab", "abc", "abcd")
    }
    assert moved["ab"] > 0.1
    assert moved["abc"] > 0.05
    assert width(predicted(ABCD, "abcd", seen)) > width(predicted(ABCD, "ab", seen))


def test_a_run_over_an_inferred_link_teaches_more_than_over_an_assumed_one():
    gaps = replace(
        ABCD.network, links=tuple(x for x in ABCD.network.links if {x.src, x.dst} != {"a", "b"})
    )
    step_s = 1.3 * step_time_s(plan_on("ab"), ABCD)
    moved = {}
    for name, net in (("measured", ABCD.network), ("inferred", gaps), ("assumed", None)):
        case = replace(ABCD, network=net)
        seen = experience(case, "ab", 1.3 * step_time_s(plan_on("ab"), case))
        moved[name] = predicted(ABCD, "ab", [seen]).mu - predicted(ABCD, "ab").mu
    assert moved["measured"] > moved["inferred"] > 2 * moved["assumed"] > 0
    assert step_time_s(plan_on("ab"), replace(ABCD, network=gaps)) == pytest.approx(step_s / 1.3)


def test_records_that_tell_too_little_are_passed_over():
    good = experience(ABCD, "ab", 0.1)
    useless = [
        replace(good, steps=0),
        replace(good, step_s=float("nan")),
        replace(good, step_s=0.0),
        replace(good, nodes=()),
        replace(good, workload=replace(good.workload, node_kinds=())),
        replace(good, startup_s=-1.0, steps=0),
    ]
    assert learn(ABCD, useless).n_rows == 0


def test_many_runs_of_one_other_script_are_not_taken_for_many_scripts():
    """Its exchanges may take longer by something of its own: no number of its runs tells."""
    runs = runs_at(0.005, n_runs=40)
    one, many = (
        [
            replace(e, workload=replace(e.workload, fingerprint=f"script-{i % n_scripts}"))
            for i, e in enumerate(runs)
        ]
        for n_scripts in (1, 8)
    )
    assert moved_by(one) < moved_by(many)
    assert predicted(ABCD, "ab", one).sigma > predicted(ABCD, "ab", many).sigma


def spoiled(e, **values):
    kinds = tuple(replace(kind, **values) for kind in e.workload.node_kinds)
    return replace(e, workload=replace(e.workload, node_kinds=kinds))


def test_records_that_make_no_sense_are_passed_over():
    good, nan = experience(ABCD, "ab", 0.1), float("nan")
    senseless = [
        spoiled(good, c0_s=nan),
        spoiled(good, c1_s=float("inf")),
        replace(good, workload=replace(good.workload, setup_s=nan), startup_s=9.0),
        replace(good, workload=replace(good.workload, setup_s=-99.0), startup_s=9.0),
        replace(good, plan=replace(good.plan, n_workers=0, nodes=())),
    ]
    assert learn(ABCD, [*senseless, good]).n_rows == 1


@pytest.mark.parametrize("rtt_s", [-0.1, float("inf"), float("nan")])
def test_a_round_trip_that_cannot_be_counts_as_not_measured(rtt_s):
    links = tuple(replace(link, rtt_s=rtt_s) for link in ABCD.network.links)
    case = replace(ABCD, network=replace(ABCD.network, links=links))
    found = links_between(case.nodes, case.network)
    assert np.isfinite(found.one_way_s).all() and not found.known.any()
    assert learn(case, [experience(case, "ab", 0.1)]).n_rows == 1


def test_order_of_experience_does_not_matter():
    prior_s = step_time_s(plan_on("ab"), ABCD)
    seen = [experience(ABCD, "ab", prior_s * f) for f in (0.9, 1.1, 1.4)]
    assert predicted(ABCD, "ab", seen).mu == pytest.approx(predicted(ABCD, "ab", seen[::-1]).mu)


def test_features_are_fractions_of_the_step():
    links = links_between(ABCD.nodes, ABCD.network)
    plan = plan_on("abcd")
    parts = forecast(plan, ABCD, links, learn(ABCD, [])).parts
    longer = replace(
        parts,
        compute_s=10 * parts.compute_s,
        latency_s=10 * parts.latency_s,
        transfer_s=10 * parts.transfer_s,
        software_s=10 * parts.software_s,
    )
    found, tenfold = features(parts, own=True), features(longer, own=True)
    assert found[:N_COMPUTING] == pytest.approx(tenfold[:N_COMPUTING])
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(tenfold))


def runs_at(rtt_s, names="ab", n_runs=12, factor=1.3):
    case = replace(ABCD, network=network("abcd", rtt_s))
    return [
        experience(case, names, factor * step_time_s(plan_on(names), case), run=f"run-{i}")
        for i in range(n_runs)
    ]


def test_far_from_the_data_the_interval_is_the_prior_s_own():
    """Runs of one worker tell nothing of an exchange; runs of `allreduce` nothing of `direct`'s."""
    far = replace(ABCD, network=network("abcd", 0.5), workload=workload(c0_s=1e-4, c1_s=1e-7))
    alone = runs_at(0.005, "a")
    before, after = predicted(far, "abcd"), predicted(far, "abcd", alone)
    assert after.mu == pytest.approx(before.mu, abs=0.01)
    assert after.sigma == pytest.approx(before.sigma, rel=0.02)


def test_intervals_widen_with_the_distance_from_the_data():
    seen = runs_at(0.005)
    cases = [
        ABCD,
        replace(ABCD, network=network("abcd", 0.03)),
        replace(ABCD, network=network("abcd", 0.3)),
    ]
    narrowed = [width(predicted(case, "ab", seen)) / width(predicted(case, "ab")) for case in cases]
    assert narrowed == sorted(narrowed)
    assert narrowed[0] < 0.9
    assert narrowed[-1] <= 1.0 + 1e-9


def test_what_was_learned_carries_over_where_all_times_are_the_same_shares():
    """A machine ten times as fast with ten times the network is the same without units."""
    tenfold = replace(
        ABCD,
        network=network("abcd", 0.0005, 1.25e9),
        workload=workload(c0_s=0.001, c1_s=0.00005, payload=4_000_000, fingerprint="script-b"),
    )
    moved = predicted(tenfold, "ab", runs_at(0.005)).mu - predicted(tenfold, "ab").mu
    assert moved > 0.05


def test_runs_of_another_cluster_weigh_less():
    here = runs_at(0.005, n_runs=3)
    there = [
        replace(e, nodes=tuple(replace(n, ip="10.9.0.1", kind=n.kind) for n in e.nodes))
        for e in here
    ]
    assert 0.0 < moved_by(there) < moved_by(here)


def moved_by(seen):
    return predicted(ABCD, "ab", seen).mu - predicted(ABCD, "ab").mu


def test_of_very_many_records_the_own_and_the_nearest_are_learned_from():
    prior_s = step_time_s(plan_on("ab"), ABCD)
    own = [
        experience(ABCD, "ab", 1.3 * prior_s, run=f"run-{i}", measured_at_s=float(i))
        for i in range(3)
    ]
    other = replace(
        own[0], workload=replace(own[0].workload, fingerprint="script-b"), measured_at_s=9.0
    )
    kept = relevant([*[other] * (MOST + 10), *own], "script-a", ABCD.nodes)
    assert len(kept) == MOST
    assert kept[:3] == own[::-1]
