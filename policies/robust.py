"""Bayesian regression that takes a surprise for a disturbed measurement until others confirm it."""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from sklearn.linear_model import BayesianRidge

from policies.arrays import Floats, Ints

# Degrees of freedom of the Student-t that a row is drawn from, given all others: few, since one
# row in five to ten of a shared machine is disturbed.
FREEDOM: Final = 3.0
ROUNDS: Final = 12
# Rounds end when no row's weight changes by more than this.
SETTLED: Final = 1e-7
# Twice so many pseudo-observations are behind the variance of the noise, so that a few rows cannot
# move it far, and behind that of the weights, which none can.
HYPER_WEIGHT: Final = 15.0
FIXED: Final = 1e9


@dataclass(frozen=True, slots=True)
class Correction:
    """log(observed / prior): its mean and standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before any row: of the weights, their mean `(d,)`, covariance `(d, d)`.

    `noise` and `alone` say how many times as large as assumed the noise of rows is taken to be,
    and what belongs to a group alone.
    """

    mean: Floats
    covariance: Floats
    noise: float = 1.0
    alone: float = 1.0


@dataclass(frozen=True, slots=True)
class Groups:
    """Which rows share a deviation of their own, that no weight explains.

    A row's y has `loading` times the deviation of its group, which is N(0, 1) before any row.

    Attributes:
        of_row: the group of each row, numbers from 0, shape `(n,)`.
        loading: shape `(n,)`.
    """

    of_row: Ints
    loading: Floats


@dataclass(frozen=True, slots=True)
class Deviations:
    """Posterior of G groups' deviations: given the weights w, N(pull - slope · w, variance).

    `pull` and `variance` have shape `(G,)`, `slope` `(G, d)`.
    """

    pull: Floats
    slope: Floats
    variance: Floats


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean of the weights `(d,)`, their covariance `(d, d)`, and the variance of the noise."""

    weights: Floats
    covariance: Floats
    noise_variance: float
    deviations: Deviations | None = field(default=None)

    def mean(self, x: Floats, group: int | None = None, loading: float = 0.0) -> float:
        """Expected y at features `x`, shape `(d,)`, of a row of a group, if of one."""
        if group is None or self.deviations is None:
            return float(x @ self.weights)
        of = self.deviations
        rest = x - loading * of.slope[group]
        return float(rest @ self.weights + loading * of.pull[group])

    def variance(self, x: Floats, group: int | None = None, loading: float = 0.0) -> float:
        """Variance of a new y at features `x`, its noise included."""
        if group is None or self.deviations is None:
            return float(x @ self.covariance @ x) + loading**2 + self.noise_variance
        of = self.deviations
        rest = x - loading * of.slope[group]
        own = loading**2 * of.variance[group]
        return float(rest @ self.covariance @ rest + own) + self.noise_variance


def standard(n_features: int) -> Prior:
    """Weights ~ N(0, 1)."""
    return Prior(np.zeros(n_features), np.eye(n_features))


def before_any_row(prior: Prior, noise: float) -> Posterior:
    """The prior itself."""
    return Posterior(prior.mean, prior.covariance, noise**2)


def robust_fit(
    x: Floats,
    y: Floats,
    weight: Floats,
    noise: float,
    *,
    prior: Prior | None = None,
    groups: Groups | None = None,
) -> Posterior:
    """Regression of y on x with heavy-tailed rows.

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
        prior: of the weights; N(0, 1) by default.
        groups: rows with a deviation in common.
    """
    rows = Regression.of(x, y, noise, prior or standard(x.shape[1]), groups)
    used = _settled(rows, weight)
    return rows.posterior(used, _evident(rows.products(used), len(y)))


def _settled(rows: "Regression", weight: Floats) -> Floats:
    """The weight that each row keeps when surprises are taken for disturbed, shape `(n,)`."""
    used, scale = weight * 1e-6, 1.0
    for _ in range(ROUNDS):
        fit = exact(rows.products(used), len(weight), scale)
        posterior, scale = rows.posterior(used, fit), fit.scale
        trust = rows.trust(posterior, weight, used)
        change = np.abs(weight * trust - used).max()
        used = weight * trust
        if change < SETTLED:
            break
    return used


@dataclass(frozen=True, slots=True)
class Fit:
    """Posterior of standard normal weights on whitened rows, `scale` the variance of their noise.

    Shapes `(d,)` and `(d, d)`.
    """

    mean: Floats
    covariance: Floats
    scale: float


def _evident(products: Floats, n_rows: int) -> Fit:
    """By scikit-learn, with the noise's variance free to move a little to where the evidence is.

    The weights' variance stays: moved by what was seen of some, it would widen or narrow
    predictions that rest on others. Without an intercept of its own: scikit-learn would leave the
    intercept's uncertainty out. All that the fit depends on are the products and the number of
    rows, so at most d + 1 rows of the same products stand for all, the rest in the noise's own
    prior.

    Args:
        products: of all columns of whitened features and y, shape `(d + 1, d + 1)`.
        n_rows: of how many rows.
    """
    values, vectors = np.linalg.eigh(products)
    rank = min(n_rows, len(values))  # the others are zero
    values, vectors = values[-rank:], vectors[:, -rank:]
    rows = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    model = BayesianRidge(
        fit_intercept=False,
        alpha_1=HYPER_WEIGHT + 0.5 * (n_rows - len(rows)),
        alpha_2=HYPER_WEIGHT,
        lambda_1=FIXED,
        lambda_2=FIXED,
        alpha_init=1.0,
        lambda_init=1.0,
    ).fit(rows[:, :-1], rows[:, -1])
    return Fit(model.coef_, model.sigma_, 1.0 / float(model.alpha_))


def exact(products: Floats, n_rows: int, scale: float) -> Fit:
    """With the weights' variance as it was said to be, and the noise's from the last round.

    The next round's is where the evidence is (MacKay 1992), as scikit-learn finds it.
    """
    xx, xy, yy = products[:-1, :-1], products[:-1, -1], float(products[-1, -1])
    covariance = np.asarray(np.linalg.inv(xx / scale + np.eye(len(xx))), float)
    mean = covariance @ xy / scale
    n_free = n_rows - len(xx) + float(np.trace(covariance))
    rest = yy - 2.0 * float(mean @ xy) + float(mean @ xx @ mean)
    found = (max(rest, 0.0) + 2.0 * HYPER_WEIGHT) / (n_free + 2.0 * HYPER_WEIGHT)
    return Fit(mean, covariance, found)


@dataclass(frozen=True, slots=True)
class Regression:
    """Rows, the deviation of an undisturbed one's noise, and what is believed before them."""

    x: Floats
    y: Floats
    columns: Floats  # x for standard normal weights, and y less what is believed of it
    noise: float
    prior: Prior
    root: Floats
    groups: Groups | None

    @classmethod
    def of(
        cls, x: Floats, y: Floats, noise: float, prior: Prior, groups: Groups | None
    ) -> "Regression":
        """Rows with features `x` of shape `(n, d)`; see `robust_fit`."""
        root = np.asarray(np.linalg.cholesky(prior.covariance), float)
        columns = np.column_stack([x @ root, y - x @ prior.mean])
        return cls(x, y, columns, noise, prior, root, groups)

    def products(self, used: Floats) -> Floats:
        """Of all columns of whitened features and y, in sum over rows, shape `(d + 1, d + 1)`.

        Features are those of standard normal weights. Whitened, rows have independent noise of
        variance one: a group's rows have the covariance I + q qᵀ when each is divided by its
        noise, with q the loadings so divided, and the inverse of that is
        I - q qᵀ / (1 + |q|²) (Sherman and Morrison 1950).
        """
        precision = np.sqrt(used) / self.noise
        columns = self.columns * precision[:, None]
        found: Floats = columns.T @ columns
        if self.groups is None:
            return found
        group, q = self.groups.of_row, precision * self.groups.loading
        along = _sums(q[:, None] * columns, group)
        share = along / (1.0 + np.bincount(group, q * q))[:, None]
        found -= along.T @ share
        return found

    def posterior(self, used: Floats, fit: Fit) -> Posterior:
        """Of the weights themselves, and of the groups' deviations."""
        weights = self.prior.mean + self.root @ fit.mean
        covariance = self.root @ fit.covariance @ self.root.T
        found = Posterior(weights, covariance, fit.scale * self.noise**2)
        if self.groups is None:
            return found
        group, q = self.groups.of_row, self.groups.loading * used / self.noise**2
        variance = np.asarray(1.0 / (1.0 + np.bincount(group, q * self.groups.loading)), float)
        pull = np.asarray(variance * np.bincount(group, q * self.y), float)
        slope = variance[:, None] * _sums(q[:, None] * self.x, group)
        return replace(found, deviations=Deviations(pull, slope, fit.scale * variance))

    def trust(self, posterior: Posterior, weight: Floats, used: Floats) -> Floats:
        """How much of each row's weight to use, shape `(n,)`, from what the others say of it."""
        rest, said, own = self.x, np.zeros(len(self.y)), np.zeros(len(self.y))
        if self.groups is not None and posterior.deviations is not None:
            of, group, loading = posterior.deviations, self.groups.of_row, self.groups.loading
            rest = self.x - loading[:, None] * of.slope[group]
            said, own = loading * of.pull[group], loading**2 * of.variance[group]
        own = own + np.einsum("ij,ij->i", rest @ posterior.covariance, rest)
        left = 1.0 - np.minimum(own * used / posterior.noise_variance, 1.0 - 1e-9)
        signal = own / left
        error = (self.y - said - rest @ posterior.weights) / left
        noise = posterior.noise_variance / weight
        surprise = error**2 / (signal + noise)
        inflation = np.maximum(1.0, (FREEDOM + surprise) / (FREEDOM + 1.0))
        trust: Floats = noise / (inflation * (signal + noise) - signal)
        return trust


def _sums(rows: Floats, group: Ints) -> Floats:
    """The sum of each group's rows, shape `(G, k)`."""
    return np.stack([np.bincount(group, column) for column in rows.T], axis=1)
