"""What a step takes, from the times of many."""

import math
from collections.abc import Sequence
from statistics import fmean

OUTLIERS = 0.02


def typical_step_s(times_s: Sequence[float]) -> float:
    """The mean of step times without the slowest 2 % (at least one of 20 or more), in seconds.

    A job takes the sum of its steps, so the mean counts and not the median: under a CPU quota
    some steps wait for the next period and most do not. A trace or a swapped page is no step.

    Raises:
        ValueError: there are no times.
    """
    if not times_s:
        raise ValueError("A step time needs at least one step.")
    n_outliers = math.ceil(OUTLIERS * len(times_s)) if len(times_s) >= 20 else 0
    return fmean(sorted(times_s)[: len(times_s) - n_outliers])
