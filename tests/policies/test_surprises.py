"""What disturbed runs and disturbed probes may do to predictions, and what they may not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.features import NOISE
from policies.robust import FREEDOM, robust_fit
from tests.policies.cases import experience, lab, workload
from tests.policies.worlds import disturbed, drawn_runs, drawn_world, predicted, score

# A digits CNN on three lab hosts at 20 ms, as it was met: steps of 51 ms (n = 2) and 73 ms (n = 3).
DIGITS = workload(c0_s=0.005, c1_s=0.0002, cpus=0.45, payload=340_000, kinds=("lab",), batch=128)
HOSTS = lab(DIGITS, 128, 0.020)
MISREAD = replace(HOSTS, network=disturbed(HOSTS.network, "b", "c"))


def width(step):
    return step.interval().high / step.interval().low


def holds(step, step_s):
    return step.interval().low <= step_s <= step.interval().high


def test_a_link_in_doubt_widens_what_uses_it_and_nothing_else():
    assert width(predicted(MISREAD, "abc")) > 1.3 * width(predicted(HOSTS, "abc"))
    assert width(predicted(MISREAD, "ab")) == pytest.approx(width(predicted(HOSTS, "ab")))


def test_a_badly_read_link_leaves_the_true_step_inside_the_interval():
    assert holds(predicted(MISREAD, "abc"), 0.080)


def test_a_run_over_a_link_in_doubt_teaches_less():
    before = predicted(HOSTS, "ab").mu
    sure = predicted(HOSTS, "ab", [experience(HOSTS, "abc", 0.060)]).mu
    unsure_s = 0.060 * math.exp(predicted(MISREAD, "abc").mu - predicted(HOSTS, "abc").mu)
    unsure = predicted(HOSTS, "ab", [experience(MISREAD, "abc", unsure_s)]).mu
    assert abs(unsure - before) < 0.75 * abs(sure - before)


def test_the_run_after_a_misread_probe_is_predicted_as_the_prior_did():
    seen = [experience(MISREAD, "abc", 0.073)]
    before, after = predicted(HOSTS, "ab"), predicted(HOSTS, "ab", seen)
    assert holds(after, 0.051)
    assert abs(after.mu - before.mu) < 0.25
    assert width(after) > 0.75 * width(before)


@given(
    st.sampled_from(["a", "ab", "abc", "abcd"]),
    st.sampled_from(["a", "ab", "abc", "abcd"]),
    st.floats(-3.0, 3.0),
    st.sampled_from([0.0005, 0.02, 0.05]),
)
@settings(max_examples=40, deadline=None)
def test_one_run_however_strange_leaves_other_predictions_within_their_interval(
    ran, other, log_factor, rtt_s
):
    case = lab(rtt_s=rtt_s)
    step_s = math.exp(predicted(case, ran).mu + log_factor)
    before = predicted(case, other)
    after = predicted(case, other, [experience(case, ran, step_s)])
    bound = (FREEDOM + 1) / (2 * math.sqrt(FREEDOM))
    assert abs(after.mu - before.mu) <= 1.1 * bound * before.sigma
    assert holds(before, math.exp(after.mu))


@given(st.integers(1, 3), st.sampled_from(["ab", "abc"]), st.floats(0.8, 1.25))
@settings(max_examples=15, deadline=None)
def test_a_few_runs_never_narrow_another_n_below_the_floor(n_runs, other, factor):
    ran = "abcd"
    step_s = factor * math.exp(predicted(HOSTS, ran).mu)
    after = predicted(HOSTS, other, [experience(HOSTS, ran, step_s)] * n_runs)
    assert after.interval().high / after.mean > 1.2
    assert after.mean / after.interval().low > 1.2


def test_a_few_runs_never_narrow_another_link_below_the_floor():
    near, far = lab(DIGITS, 128, 0.005), lab(DIGITS, 128, 0.050)
    seen = [experience(near, "ab", math.exp(predicted(near, "ab").mu))] * 3
    assert width(predicted(near, "ab", seen)) < width(predicted(far, "ab", seen))
    assert width(predicted(far, "ab", seen)) > 1.4


def test_runs_that_confirm_a_surprise_are_believed():
    step_s = 3.0 * math.exp(predicted(HOSTS, "ab").mu)
    moved = [
        predicted(HOSTS, "ab", [experience(HOSTS, "ab", step_s)] * n_runs).mu
        for n_runs in (1, 2, 6)
    ]
    assert moved == sorted(moved)
    assert math.exp(moved[0]) < 0.6 * step_s
    assert math.exp(moved[2]) == pytest.approx(step_s, rel=0.12)


def test_a_plan_that_is_always_far_slower_than_anything_foreseen_is_believed_the_third_time():
    """Computing dominates, so that no error of the exchange explains steps five times as long."""
    near = lab(rtt_s=0.0005)
    step_s = 5.0 * math.exp(predicted(near, "ab").mu)
    seen = [experience(near, "ab", step_s, run=f"run-{i}") for i in range(3)]
    assert math.exp(predicted(near, "ab", seen[:2]).mu) < 0.5 * step_s
    assert math.exp(predicted(near, "ab", seen).mu) == pytest.approx(step_s, rel=0.12)
    assert predicted(near, "a", seen).mu == pytest.approx(predicted(near, "a").mu, abs=0.1)
    once = [replace(e, run="run-0") for e in seen]
    assert math.exp(predicted(near, "ab", once).mu) < 0.5 * step_s


def test_one_disturbed_run_among_good_ones_is_passed_over():
    step_s = 1.1 * math.exp(predicted(HOSTS, "ab").mu)
    good = [experience(HOSTS, "ab", step_s)] * 4
    spoiled = [*good, experience(HOSTS, "ab", 4.0 * step_s)]
    clean, after = predicted(HOSTS, "ab", good), predicted(HOSTS, "ab", spoiled)
    assert after.mu == pytest.approx(clean.mu, abs=0.03)


def test_without_surprises_the_fit_is_the_plain_one():
    x = np.array([[0.2, 0.0], [0.2, 0.1], [0.0, 0.2]])
    y = np.array([0.05, 0.02, -0.04])
    found = robust_fit(x, y, np.ones(3), NOISE)
    precision = x.T @ x / found.noise_variance + np.eye(2)
    plain = np.linalg.solve(precision, x.T @ y / found.noise_variance)
    assert found.weights == pytest.approx(plain, abs=0.02)


def test_the_order_of_runs_does_not_matter_with_surprises():
    rng = np.random.default_rng(4)
    seen = drawn_runs(drawn_world(rng), rng, 10, 0.3)
    there, back = predicted(HOSTS, "ab", seen), predicted(HOSTS, "ab", seen[::-1])
    assert back.mu == pytest.approx(there.mu, abs=1e-6)
    assert back.sigma == pytest.approx(there.sigma, abs=1e-6)


@pytest.mark.parametrize("p_disturbed", [0.0, 0.1, 0.2])
def test_error_falls_with_experience_and_intervals_hold(p_disturbed):
    by_n_seen = {
        n_seen: score(n_seen, p_disturbed, np.random.default_rng(7), n_worlds=36)
        for n_seen in (0, 2, 12)
    }
    assert all(found.coverage >= 0.85 for found in by_n_seen.values())
    assert by_n_seen[12].error < 0.8 * by_n_seen[0].error
    assert by_n_seen[2].error < 1.02 * by_n_seen[0].error


def test_one_worker_is_held_by_its_interval_too():
    for n_seen in (0, 8):
        found = score(n_seen, 0.15, np.random.default_rng(8), n_worlds=44, names="a")
        assert found.coverage >= 0.85
