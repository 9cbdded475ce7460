"""Bayesian regression that takes a surprise for a disturbed measurement until others confirm it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from sklearn.linear_model import BayesianRidge

from policies.arrays import Floats

# Degrees of freedom of the Student-t that a row is drawn from, given all others: few, since one
# row in five to ten of a shared machine is disturbed.
FREEDOM: Final = 3.0
ROUNDS: Final = 12
# Pseudo-observations behind the two variances, so that a few rows cannot move them far.
HYPER_WEIGHT: Final = 50.0


@dataclass(frozen=True, slots=True)
class Correction:
    """log(observed / prior): its mean and standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean of the weights `(d,)`, their covariance `(d, d)`, and the variance of the noise."""

    weights: Floats
    covariance: Floats
    noise_variance: float

    def mean(self, x: Floats) -> float:
        """Expected y at features `x`, shape `(d,)`."""
        return float(x @ self.weights)

    def variance(self, x: Floats) -> float:
        """Variance of a new y at features `x`, its noise included."""
        return float(x @ self.covariance @ x) + self.noise_variance


def before_any_row(n_features: int, noise: float) -> Posterior:
    """The prior: weights ~ N(0, 1)."""
    return Posterior(np.zeros(n_features), np.eye(n_features), noise**2)


def robust_fit(x: Floats, y: Floats, weight: Floats, noise: float) -> Posterior:
    """Regression of y on x with weights ~ N(0, 1) and heavy-tailed rows.

    Each round compares every row with what all other rows predict of it. A row that lies z
    deviations off gets the noise that makes its predictive variance (FREEDOM + z²) /
    (FREEDOM + 1) times as large: the re-weighting of a Student-t (Lange, Little and Taylor
    1989), applied to the prediction and not to the noise alone, as a single row that may move
    the weights would else explain itself. So one row alone moves no prediction by more than
    (FREEDOM + 1) / (2 √FREEDOM) = 1.15 of that prediction's prior deviation, the less the
    stranger it is; rows that confirm each other win their weight back.

    Args:
        x: features, shape `(n, d)`.
        y: shape `(n,)`.
        weight: of each row, in (0, 1]; its noise has the variance noise² / weight.
        noise: standard deviation of y of an undisturbed row of weight one.
    """
    trust = np.full(len(y), 1e-6)
    for _ in range(ROUNDS):
        posterior = _fit(x, y, weight * trust, noise)
        trust = _trust(posterior, x, y, weight, weight * trust)
    return _fit(x, y, weight * trust, noise)


def _trust(posterior: Posterior, x: Floats, y: Floats, weight: Floats, used: Floats) -> Floats:
    """How much of each row's weight to use, shape `(n,)`, from what the others say of it."""
    own = np.einsum("ij,jk,ik->i", x, posterior.covariance, x)
    left = 1.0 - np.minimum(own * used / posterior.noise_variance, 1.0 - 1e-9)
    signal = own / left
    error = (y - x @ posterior.weights) / left
    noise = posterior.noise_variance / weight
    surprise = error**2 / (signal + noise)
    inflation = np.maximum(1.0, (FREEDOM + surprise) / (FREEDOM + 1.0))
    trust: Floats = noise / (inflation * (signal + noise) - signal)
    return trust


def _fit(x: Floats, y: Floats, weight: Floats, noise: float) -> Posterior:
    """Both variances are free to move a little.

    Without an intercept of its own: scikit-learn would leave the intercept's uncertainty out.
    """
    model = BayesianRidge(
        fit_intercept=False,
        alpha_1=HYPER_WEIGHT,
        alpha_2=HYPER_WEIGHT * noise**2,
        lambda_1=HYPER_WEIGHT,
        lambda_2=HYPER_WEIGHT,
        alpha_init=1.0 / noise**2,
        lambda_init=1.0,
    ).fit(x, y, sample_weight=weight)
    return Posterior(model.coef_, model.sigma_, 1.0 / float(model.alpha_))
