import math
from dataclasses import replace

import numpy as np
import pytest

from policies.cost_model import step_time_s
from policies.forecast import forecast
from policies.links import links_between
from policies.residual import features, learn
from tests.policies.cases import experience, lab, network, node, plan_on, situation, workload

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
    assert one.high / one.mean - 1 < 0.15
    assert 1 - one.low / one.mean < 0.15
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


def test_start_up_is_learned_too():
    slow = [experience(ABCD, "ab", 0.1, startup_s=60.0)] * 4
    assert learn(ABCD, slow).startup.mean > learn(ABCD, []).startup.mean == 0.0
    assert learn(ABCD, slow).startup.std < learn(ABCD, []).startup.std


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
    assert features(parts, own=True) == pytest.approx(features(longer, own=True))


def truth_s(case, names, rng_factors):
    """A world whose compute, latency and software differ from the prior by fixed factors."""
    links = links_between(case.nodes, case.network)
    parts = forecast(plan_on(names, 0.45), case, links, learn(case, [])).parts
    compute, latency, transfer, software = rng_factors
    return (
        compute * parts.compute_s
        + latency * parts.latency_s
        + transfer * parts.transfer_s
        + software * parts.software_s
    )


def test_error_shrinks_with_experience_and_intervals_hold_what_they_promise():
    rng = np.random.default_rng(3)
    error: dict[int, list[float]] = {0: [], 8: []}
    inside: dict[int, list[bool]] = {0: [], 8: []}
    for _ in range(25):
        factors = np.exp(rng.normal(0.0, [0.07, 0.25, 0.25, 0.3]))
        seen = []
        for i in range(8):
            case = lab(rtt_s=float(rng.choice([0.0005, 0.005, 0.02])))
            names = "abcd"[: int(rng.integers(1, 5))]
            noisy_s = truth_s(case, names, factors) * math.exp(rng.normal(0.0, 0.03))
            seen.append(experience(case, names, noisy_s, run=f"run-{i}"))
        for n_seen in (0, 8):
            for rtt_s in (0.002, 0.03):
                case = lab(rtt_s=rtt_s)
                links = links_between(case.nodes, case.network)
                learned = learn(case, seen[:n_seen])
                step = forecast(plan_on("abc", 0.45), case, links, learned).step
                real_s = truth_s(case, "abc", factors)
                error[n_seen].append(abs(math.log(real_s) - step.mu))
                inside[n_seen].append(step.interval().low <= real_s <= step.interval().high)
    assert np.mean(error[8]) < 0.6 * np.mean(error[0])
    assert np.mean(inside[0]) > 0.75
    assert np.mean(inside[8]) > 0.8
