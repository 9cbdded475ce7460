"""Deviations of scripts other than the one that is asked about, so that none is taken for many."""

from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np

from policies.arrays import Floats
from policies.features import N_FEATURES, OWN
from policies.robust import Posterior, Prior
from policies.rows import Rows

# Scripts that have weights of their own, at most: those with most rows.
MOST: Final = 8


def with_others(rows: Rows, script: str, prior: Prior) -> tuple[Floats, Prior]:
    """Features with columns for the own weights of scripts that are not `script`, and their prior.

    A script's own deviation disturbs all its rows alike. Without a weight for it, a hundred runs of
    one other script would count as if each were of another.

    Returns:
        Shape `(R, N_FEATURES + k · len(OWN))` for k other scripts, and what is believed of all.
    """
    names = [e.workload.fingerprint for e in rows.experience]
    found = Counter(name for name in names if name != script).most_common(MOST)
    own = [rows.own * (np.array(names) == name)[:, None] for name, _ in found]
    n_own = len(own) * len(OWN)
    covariance = np.zeros((N_FEATURES + n_own,) * 2)
    covariance[:N_FEATURES, :N_FEATURES] = prior.covariance
    at = np.arange(N_FEATURES, N_FEATURES + n_own)
    covariance[at, at] = np.tile(np.diag(prior.covariance)[list(OWN)], len(own))
    mean = np.concatenate([prior.mean, np.zeros(n_own)])
    wider = replace(prior, mean=mean, covariance=covariance)
    return np.column_stack([rows.shared, *own]), wider


def without_others(posterior: Posterior) -> Posterior:
    """What the asked script's predictions rest on."""
    of = posterior.deviations
    return replace(
        posterior,
        weights=posterior.weights[:N_FEATURES],
        covariance=posterior.covariance[:N_FEATURES, :N_FEATURES],
        deviations=None if of is None else replace(of, slope=of.slope[:, :N_FEATURES]),
    )
