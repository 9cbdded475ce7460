"""Whether the cluster has changed: what was measured before the change then counts for little."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Floats, Ints
from policies.robust import Prior, robust_fit
from policies.rows import Rows, is_here, machines_of
from policies.schema import Node

# What was measured before the change counts this much.
BEFORE: Final = 0.02
# A change is believed when it makes the measured times this much likelier (the logarithm of the
# Bayes factor): e³ = 20 to 1, since a change is rare. Without one, at most 2 in 100 simulated
# histories of 60 runs reach that, with a fifth of the runs disturbed.
BELIEVED: Final = 3.0
# Runs on either side, at least: one or two strange ones are disturbed rather than changed.
LEAST_RUNS: Final = 3
# Changes are looked for after the last 3, 4, 6, … runs.
GROWTH: Final = 1.35
# Beyond so many deviations a step tells of its own disturbance, not of the cluster.
CLIPPED: Final = 2.0


@dataclass(frozen=True, slots=True)
class Change:
    """The cluster has changed: before it, `n_before` segments on these machines were measured.

    `at_s` is when the first segment after it began, in seconds since 1970.
    """

    at_s: float
    n_before: int
    here: tuple[bool, ...]

    def weight_of(self, rows: Rows) -> Floats:
        """What each row counts, shape `(R,)`; rows of other clusters or without a date whole."""
        began_s = _began_s(rows)
        return np.where(np.array(self.here) & (began_s < self.at_s), BEFORE, 1.0)


def changed(rows: Rows, nodes: Sequence[Node], prior: Prior) -> Change | None:
    """The last change of the cluster that consists of `nodes`, if there was one.

    Two explanations are compared by their marginal likelihood: one set of weights for all that
    was measured on these machines, or one before and another after a moment (the detection of a
    changed regression of Chow 1960, in the Bayesian form of Barry and Hartigan 1993). Every
    moment with enough runs on either side is looked at, ever more sparsely into the past.
    """
    machines, began_s = machines_of(nodes), _began_s(rows)
    here = np.array([is_here(e, machines) for e in rows.experience]) & ~np.isnan(began_s)
    if here.sum() < 2 * LEAST_RUNS:
        return None
    at = np.flatnonzero(here)
    at = at[np.lexsort((rows.log_ratio[at], began_s[at]))]
    runs = [rows.experience[i].run for i in at]
    starts = _starts(runs)
    if not len(starts):
        return None
    x, y = _scaled(rows, prior, at, _lengths(runs))
    gain = _gains(x, y, starts)
    best = int(gain.argmax())
    if gain[best] < BELIEVED:
        return None
    first = int(starts[best])
    return Change(float(began_s[at[first]]), first, tuple(here.tolist()))


def _began_s(rows: Rows) -> Floats:
    """When each segment began, NaN where that is not known."""
    began_s: Floats = np.array([e.measured_at_s for e in rows.experience], dtype=float)
    return began_s


def _lengths(runs: Sequence[str]) -> Floats:
    """How many segments each one's run has, shape `(R,)`."""
    count = Counter(runs)
    return np.array([count[run] for run in runs], dtype=float)


def _starts(runs: Sequence[str]) -> Ints:
    """Places in time at which the last 3, 4, 6, … runs begin, with enough before them."""
    first_by_run: dict[str, int] = {}
    for i, run in enumerate(runs):
        first_by_run.setdefault(run, i)
    firsts = list(first_by_run.values())
    found, n_last = [], float(LEAST_RUNS)
    while round(n_last) <= len(firsts) - LEAST_RUNS:
        found.append(firsts[-round(n_last)])
        n_last = max(n_last * GROWTH, round(n_last) + 1.0)
    return np.array(list(dict.fromkeys(found)), dtype=np.int64)


def _scaled(rows: Rows, prior: Prior, at: Ints, lengths: Floats) -> tuple[Floats, Floats]:
    """Features for standard normal weights and y, both over each row's deviation of chance.

    A run counts once, however many segments it has: what disturbs one disturbs all.
    """
    std = np.sqrt(lengths * (rows.noise**2 / rows.weight[at] + rows.plan_std[at] ** 2))
    x, y = rows.shared[at], rows.log_ratio[at]
    together = robust_fit(x, y, rows.weight[at] / lengths, rows.noise, prior=prior)
    expected = x @ together.weights
    reach = CLIPPED * np.sqrt(std**2 + np.einsum("ij,ij->i", x @ together.covariance, x))
    clipped = np.clip(y, expected - reach, expected + reach)
    spread = max(1.0, float(np.sqrt(np.mean(((clipped - expected) / std) ** 2))))
    std *= spread
    whole: Floats = x @ np.linalg.cholesky(prior.covariance) / std[:, None]
    return whole, (clipped - x @ prior.mean) / std


def _gains(x: Floats, y: Floats, starts: Ints) -> Floats:
    """Log Bayes factors of a change before each of `starts` against none."""
    squares = np.cumsum(np.einsum("ij,ik->ijk", x, x), axis=0)
    products = np.cumsum(x * y[:, None], axis=0)
    before = _evidence(squares[starts - 1], products[starts - 1])
    after = _evidence(squares[-1] - squares[starts - 1], products[-1] - products[starts - 1])
    return before + after - _evidence(squares[-1:], products[-1:])


def _evidence(square: Floats, product: Floats) -> Floats:
    """Log marginal likelihood of rows with weights ~ N(0, 1) and noise of one, but for yᵀy.

    Args:
        square: xᵀx, shape `(K, d, d)`.
        product: xᵀy, shape `(K, d)`.
    """
    precision = square + np.eye(square.shape[-1])
    mean = np.linalg.solve(precision, product[..., None])[..., 0]
    explained = np.einsum("kd,kd->k", product, mean)
    found: Floats = 0.5 * (explained - np.linalg.slogdet(precision)[1])
    return found
