"""How far the prior's errors reach, by the evidence of a sweep: what intervals are made of."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final

import numpy as np
from scipy.special import stdtrit

from policies.arrays import Bools, Floats, Ints
from policies.features import N_FEATURES, OWN, OWN_COMPUTING
from policies.robust import Groups, Posterior, Prior, Regression, exact
from policies.rows import Rows
from policies.schema import Experience

ROUNDS: Final = 25
# Rounds end when no scale changes by more than this part of itself.
SETTLED: Final = 0.01
# Scales that are as assumed count as so many observations, so that few rows leave them there.
ASSUMED_ROWS: Final = 2.0
# A normal row's square counts so much of itself where rows beyond one deviation count less.
COUNTED: Final = 0.73
# Intervals are held against scripts and networks that were left out where there are so many of
# them, with so many rows.
LEAST_LEFT_OUT: Final = 3
LEAST_ROWS: Final = 40
Z90: Final = 1.6449
MIN_STRETCH, MAX_STRETCH = 0.5, 3.0


@dataclass(frozen=True, slots=True)
class Scales:
    """How many times as large as assumed deviations are.

    Those of noise, of one setting alone, of weights that all scripts share, of one script's
    computing and of its exchange.
    """

    noise: float = 1.0
    alone: float = 1.0
    shared: float = 1.0
    computing: float = 1.0
    exchanging: float = 1.0

    def times(self, factor: float) -> "Scales":
        """All of them so many times as large."""
        return Scales(*(factor * x for x in astuple(self)))


@dataclass(frozen=True, slots=True)
class Swept:
    """Rows of a sweep, with columns of its own for each of its scripts.

    Attributes:
        rows: R of them.
        columns: the `N_FEATURES` shared features, then the `OWN` ones of each script,
            shape `(R, D)`.
        kind: of each column, a number in the order of `KINDS`, shape `(D,)`.
    """

    rows: Rows
    columns: Floats
    kind: Ints

    def regression(self, scales: Scales, at: Bools | slice = slice(None)) -> Regression:
        """Of some of the rows, deviations as large as `scales` say."""
        deviation = np.array([getattr(scales, name) for name in KINDS])[self.kind]
        prior = Prior(np.zeros(len(deviation)), np.diag(deviation**2))
        groups = Groups(self.rows.group[at], scales.alone * self.rows.plan_std[at])
        x, y = self.columns[at], self.rows.log_ratio[at]
        return Regression.of(x, y, scales.noise * self.rows.noise, prior, groups)

    def posterior(self, scales: Scales, used: Floats, at: Bools | slice = slice(None)) -> Posterior:
        """Of the columns' weights after some of the rows, each of which counts `used`."""
        regression = self.regression(scales, at)
        fit = exact(regression.products(used[at]), len(used[at]), 1.0)
        return regression.posterior(used[at], replace(fit, scale=1.0))


KINDS: Final = ("shared", "computing", "exchanging")


def swept(rows: Rows) -> Swept:
    """With columns for each script, as a user's script has deviations of its own."""
    scripts = sorted({e.workload.fingerprint for e in rows.experience})
    names = np.array([e.workload.fingerprint for e in rows.experience])
    own = [rows.own * (names == script)[:, None] for script in scripts]
    shared = rows.shared.copy()
    shared[:, list(OWN)] = 0.0
    kinds = [KINDS.index("computing" if i in OWN_COMPUTING else "exchanging") for i in OWN]
    kind = np.array([0] * N_FEATURES + kinds * len(scripts), dtype=np.int64)
    return Swept(rows, np.column_stack([shared, *own]), kind)


def estimated(found: Swept) -> tuple[Scales, Floats]:
    """The scales at which the rows are likeliest, and what each row counts, shape `(R,)`.

    By MacKay's fixed point (1992, "Bayesian interpolation"): the square of a scale is the sum of
    squares of what it scales over the number of those that the rows determine. Rows that lie
    strangely far off count less, as in `robust_fit`.
    """
    scales, weight = Scales(), found.rows.weight
    used = weight * 1e-6
    for number in range(ROUNDS):
        posterior = found.posterior(scales, used)
        used = weight * found.regression(scales).trust(posterior, weight, used)
        if number < 2:
            continue
        before, scales = scales, _next(found, scales, posterior, used)
        ratios = zip(astuple(scales), astuple(before), strict=True)
        if max(abs(x / y - 1.0) for x, y in ratios) < SETTLED:
            break
    return scales, used


def _next(found: Swept, scales: Scales, posterior: Posterior, used: Floats) -> Scales:
    """One step of the fixed point."""
    free, scaled, n_known = np.diag(posterior.covariance), {}, 0.0
    for i, name in enumerate(KINDS):
        at, scale = found.kind == i, float(getattr(scales, name))
        known = float((1.0 - free[at] / scale**2).sum())
        scaled[name] = _scale(float((posterior.weights[at] ** 2).sum()), known)
        n_known += known
    mean, known_alone = _alone(posterior)
    scaled["alone"] = _scale(scales.alone**2 * float((mean**2).sum()), known_alone)
    rows, loading = found.rows, scales.alone * found.rows.plan_std
    left = rows.log_ratio - found.columns @ posterior.weights - loading * mean[rows.group]
    n_rows = float((used > 0.5 * rows.weight).sum())
    squares = float((used * left**2).sum()) / rows.noise**2 / COUNTED
    return Scales(_scale(squares, n_rows - n_known - known_alone), **scaled)


def _alone(posterior: Posterior) -> tuple[Floats, float]:
    """Deviations of the groups, shape `(G,)`, and how many of them the rows determine."""
    of = posterior.deviations
    assert of is not None  # as the rows have groups
    variance = of.variance + np.einsum("ij,ij->i", of.slope @ posterior.covariance, of.slope)
    return of.pull - of.slope @ posterior.weights, float((1.0 - np.minimum(variance, 1.0)).sum())


def _scale(squares: float, n_known: float) -> float:
    return float(np.sqrt((squares + ASSUMED_ROWS) / (max(n_known, 0.0) + ASSUMED_ROWS)))


def stretch_of(found: Swept, scales: Scales, used: Floats) -> float:
    """How many times as wide intervals must be for 90 % of what is left out to lie in them.

    Each script is left out in turn, and each network, and its steps are predicted from the others
    as those of a script that was never seen: what these scales make of rows that do not quite obey
    the model's law. Few scripts tell little of how far scripts differ, so that a new one's
    deviation has the tails of Student's t (Gelman and others 2013, Bayesian Data Analysis, ch. 3).
    """
    off = [
        _off(found, scales, used, np.array([key(e) == each for e in found.rows.experience]))
        for key in (_script, _network)
        for each in _several(found.rows.experience, key)
    ]
    every = np.concatenate(off) if off else np.zeros(0)
    if len(every) < LEAST_ROWS:
        return 1.0
    n_scripts = len({_script(e) for e in found.rows.experience})
    tails = float(stdtrit(max(n_scripts - 1, LEAST_LEFT_OUT - 1), 0.95)) / Z90
    factor = tails * float(np.quantile(every, 0.9)) / Z90
    return min(max(factor, MIN_STRETCH), MAX_STRETCH)


def _script(e: Experience) -> Hashable:
    return e.workload.fingerprint


def _network(e: Experience) -> Hashable:
    link = e.network.links[0] if e.network is not None and e.network.links else None
    return None if link is None else (link.rtt_s, link.bandwidth_bytes_per_s)


def _several(
    experience: Sequence[Experience], key: Callable[[Experience], Hashable]
) -> tuple[Hashable, ...]:
    """All values of a key, if there are enough to leave one out."""
    values = tuple(dict.fromkeys(key(e) for e in experience))
    return values if len(values) >= LEAST_LEFT_OUT else ()


def _off(found: Swept, scales: Scales, used: Floats, out: Bools) -> Floats:
    """How many deviations off each row is that is left out, shape `(L,)`."""
    posterior = found.posterior(scales, used, ~out)
    rows, x = found.rows, found.columns[out, :N_FEATURES]
    own = rows.own[out] * own_scales(scales)
    weights, covariance = posterior.weights[:N_FEATURES], posterior.covariance
    variance = np.einsum("ij,ij->i", x @ covariance[:N_FEATURES, :N_FEATURES], x)
    variance += (own**2).sum(axis=1) + (scales.alone * rows.plan_std[out]) ** 2
    variance += (scales.noise * rows.noise) ** 2 / rows.weight[out]
    off: Floats = np.abs(rows.log_ratio[out] - x @ weights) / np.sqrt(variance)
    return off


def own_scales(scales: Scales) -> Floats:
    """Of the weights in `OWN`, in their order."""
    return np.array([scales.computing if i in OWN_COMPUTING else scales.exchanging for i in OWN])
