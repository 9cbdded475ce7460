"""What the shipped sweep teaches before a user's first run, and how much of it is believed."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from policies.features import N_FEATURES, NOISE, OWN
from policies.one_thread import one_thread
from policies.robust import Groups, Prior, robust_fit, standard
from policies.rows import Rows, sweep_rows
from policies.schema import Experience

# So much of each weight's variance stays open, whatever the sweep says: another cluster is
# another machine, network and operating system.
OPEN: Final = 0.3


def prior_after(experience: Sequence[Experience]) -> Prior | None:
    """What is believed of the weights after a sweep on another cluster; None without usable rows.

    Its scripts have deviations of their own, as a user's script has one; without them rows of
    eight scripts would count as if each were another. Its own cluster's deviation cannot be told
    from what holds everywhere: so the weights' means are taken, and their variances never fall
    below `OPEN` of what they were before.
    """
    rows = sweep_rows(experience)
    if not rows.experience:
        return None
    groups = Groups(rows.group, rows.plan_std)
    with one_thread():
        found = robust_fit(_with_scripts(rows), rows.log_ratio, rows.weight, NOISE, groups=groups)
    learned = found.covariance[:N_FEATURES, :N_FEATURES]
    before = standard(N_FEATURES)
    covariance = OPEN * before.covariance + (1.0 - OPEN) * learned
    return Prior(found.weights[:N_FEATURES], covariance)


def _with_scripts(rows: Rows) -> np.ndarray:
    """The shared features, and each script's own ones in columns of its own."""
    scripts = sorted({e.workload.fingerprint for e in rows.experience})
    own = np.zeros((len(rows.experience), len(scripts), len(OWN)))
    for i, e in enumerate(rows.experience):
        own[i, scripts.index(e.workload.fingerprint)] = rows.shared[i, list(OWN)]
    shared = rows.shared.copy()
    shared[:, list(OWN)] = 0.0
    return np.column_stack([shared, own.reshape(len(own), -1)])
