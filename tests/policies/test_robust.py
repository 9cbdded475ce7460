"""The regression against the same worked out with a column for every group."""

import numpy as np
import pytest

from policies.robust import Groups, Prior, before_any_row, robust_fit, standard

RNG = np.random.default_rng(3)
NOISE = 0.1
X = RNG.normal(size=(12, 3)) * 0.2
GROUP = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3])
LOADING = RNG.uniform(0.02, 0.1, size=12)
Y = X @ np.array([0.5, -1.0, 0.3]) + LOADING * np.array([1.0, -0.5, 0.2, 0.8])[GROUP]
WEIGHT = RNG.uniform(0.3, 1.0, size=12)
NEW = np.array([0.1, 0.2, -0.1])


def columns():
    """Features with one more column for each group."""
    whole = np.zeros((12, 7))
    whole[:, :3] = X
    whole[np.arange(12), 3 + GROUP] = LOADING
    return whole


def plainly(noise_variance, prior):
    """Mean and covariance of weights and deviations, no row taken for disturbed."""
    scale = noise_variance / NOISE**2
    precision = np.eye(7) / scale
    precision[:3, :3] = np.linalg.inv(prior.covariance)
    start = precision @ np.concatenate([prior.mean, np.zeros(4)])
    x, used = columns(), WEIGHT / noise_variance
    covariance = np.linalg.inv(precision + x.T @ (used[:, None] * x))
    return covariance @ (start + x.T @ (used * Y)), covariance


@pytest.fixture(scope="module", params=["standard", "another"])
def both(request):
    prior = standard(3)
    if request.param == "another":
        root = RNG.normal(size=(3, 3))
        prior = Prior(np.array([0.4, -0.2, 0.1]), root @ root.T + 0.1 * np.eye(3))
    found = robust_fit(X, Y, WEIGHT, NOISE, prior=prior, groups=Groups(GROUP, LOADING))
    return found, *plainly(found.noise_variance, prior)


def test_deviations_of_groups_are_integrated_out_exactly(both):
    found, mean, covariance = both
    assert found.weights == pytest.approx(mean[:3], abs=1e-4)
    assert found.covariance == pytest.approx(covariance[:3, :3], abs=1e-4)


@pytest.mark.parametrize("group", [0, 3])
def test_a_row_of_a_known_group_is_predicted_with_its_deviation(both, group):
    found, mean, covariance = both
    x = np.concatenate([NEW, 0.08 * np.eye(4)[group]])
    assert found.mean(NEW, group, 0.08) == pytest.approx(x @ mean, abs=1e-4)
    expected = x @ covariance @ x + found.noise_variance
    assert found.variance(NEW, group, 0.08) == pytest.approx(expected, rel=1e-3)


def test_a_row_of_no_known_group_is_as_wide_as_a_deviation(both):
    found, mean, covariance = both
    assert found.mean(NEW, None, 0.08) == pytest.approx(NEW @ mean[:3], abs=1e-4)
    expected = NEW @ covariance[:3, :3] @ NEW + 0.08**2 + found.noise_variance
    assert found.variance(NEW, None, 0.08) == pytest.approx(expected, rel=1e-3)


def test_surprises_in_one_feature_leave_the_others_as_wide_as_they_were():
    """Only the first feature was seen, and its rows lie three prior deviations off."""
    x = np.tile([0.1, 0.0], (8, 1))
    found = robust_fit(x, np.full(8, 0.3), np.ones(8), NOISE)
    assert found.covariance[1, 1] == pytest.approx(1.0, abs=1e-6)
    assert found.covariance[0, 0] < 0.6


def test_before_any_row_the_prior_stands():
    found = before_any_row(standard(2), NOISE)
    assert found.mean(np.ones(2)) == 0.0
    assert found.variance(np.ones(2)) == pytest.approx(2.0 + NOISE**2)
