"""What the shipped sweep teaches before a user's first run, and how much of it is believed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from policies.evidence import Scales, Swept, estimated, own_scales, stretch_of, swept
from policies.features import N_FEATURES, OWN
from policies.one_thread import one_thread
from policies.robust import Prior, standard
from policies.rows import sweep_rows
from policies.schema import Experience

# So much of each shared weight's assumed variance stays open on a cluster that is not the sweep's:
# another machine, network and operating system. No sweep on one cluster can tell how much.
OPEN: Final = 0.3


def prior_after(experience: Sequence[Experience]) -> Prior | None:
    """What is believed on another cluster than the sweep's; None without usable rows."""
    found = prior_at_home(experience)
    return None if found is None else opened(found)


def opened(home: Prior) -> Prior:
    """What is believed on another cluster by who knows a sweep's.

    `OPEN` of the shared weights' variance is open again. Noise and what belongs to one setting
    alone are as assumed, unless they were larger: machines that others use too are not as quiet,
    and real links not as alike, as those of a sweep.
    """
    wide = (1.0 - OPEN) * home.covariance + OPEN * standard(N_FEATURES).covariance
    own = np.zeros(N_FEATURES, dtype=bool)
    own[list(OWN)] = True
    covariance = np.where(own[:, None] | own[None, :], home.covariance, wide)
    noise, alone = max(1.0, home.noise), max(1.0, home.alone)
    return replace(home, covariance=covariance, noise=noise, alone=alone)


def prior_at_home(experience: Sequence[Experience]) -> Prior | None:
    """What is believed on the very cluster of a sweep, of scripts that it did not hold.

    Its scripts have deviations of their own, as a user's script has one; without them rows of
    eight scripts would count as if each were another. How large deviations and noise are is
    estimated from the rows, and held against scripts and networks that are left out.
    """
    rows = sweep_rows(experience)
    if not rows.experience:
        return None
    with one_thread():
        found = swept(rows)
        scales, used = estimated(found)
        return _prior(found, scales, used, stretch_of(found, scales, used))


def _prior(found: Swept, scales: Scales, used: np.ndarray, stretch: float) -> Prior:
    """The posterior of the shared weights; all deviations so many times as large."""
    posterior = found.posterior(scales, used)
    covariance = stretch**2 * posterior.covariance[:N_FEATURES, :N_FEATURES]
    wide = scales.times(stretch)
    own = list(OWN)
    covariance[own, :] = covariance[:, own] = 0.0
    covariance[own, own] = own_scales(wide) ** 2
    return Prior(posterior.weights[:N_FEATURES], covariance, wide.noise, wide.alone)
