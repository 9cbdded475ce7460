"""How many more steps decentralized training needs to the same accuracy, learned from records.

Its gradients come late and in part, so that a step brings less than a step of exact training. By
how much belongs to the script: runs of it under both show it by the steps to the same loss.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from policies.schema import Basis, CurvePoint, Experience

# What is assumed before any record: log of steps over exact training's, at the same learning
# rate. `scripts/bench_decentralized.py` (a small model, simulated links, two rates) found 1.9 and
# 2.0 between sites at 80 ms and 10 Mbit/s, 2.3 and 2.9 there with skewed data, 1.2 and 2.0 where
# all links are near and fast.
PRIOR_MEAN: Final = math.log(2.0)
PRIOR_STD: Final = 0.35
# From run to run of one script; what the ratio of one script tells of another's.
NOISE: Final = 0.2
OTHER_SCRIPT_NOISE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Log of the steps to the same accuracy over those of exact training: mean and deviation."""

    mu: float = PRIOR_MEAN
    sigma: float = PRIOR_STD
    basis: Basis = "assumed"


ASSUMED: Final = Efficiency()


def learn_efficiency(experience: Sequence[Experience], script: str) -> Efficiency:
    """The posterior after all runs of which there are exact ones to compare with.

    Args:
        experience: measured segments, in any order.
        script: fingerprint of the script that is decided on.
    """
    own: list[float] = []
    others: list[float] = []
    for each in experience:
        if each.plan.strategy == "decentralized" and each.curve:
            ratio = _ratio(each, experience)
            if ratio is not None:
                (own if each.workload.fingerprint == script else others).append(math.log(ratio))
    if not own and not others:
        return ASSUMED
    rows = [(x, NOISE) for x in own] + [(x, OTHER_SCRIPT_NOISE) for x in others]
    precision = PRIOR_STD**-2 + math.fsum(noise**-2 for _, noise in rows)
    total = PRIOR_MEAN * PRIOR_STD**-2 + math.fsum(x * noise**-2 for x, noise in rows)
    basis: Basis = "measured" if own else "predicted"
    return Efficiency(total / precision, precision**-0.5, basis)


def _ratio(approximate: Experience, experience: Iterable[Experience]) -> float | None:
    """Steps of a decentralized segment to a loss, over those of exact ones of the same script."""
    ratios = [
        ratio
        for each in experience
        if each.plan.strategy != "decentralized"
        and each.workload.fingerprint == approximate.workload.fingerprint
        and each.global_batch == approximate.global_batch
        and (ratio := steps_ratio(approximate.curve, each.curve)) is not None
    ]
    return median(ratios) if ratios else None


def steps_ratio(curve: Sequence[CurvePoint], exact: Sequence[CurvePoint]) -> float | None:
    """Steps to the lowest loss that both curves reach, the one's over the other's; None if unknown.

    Curves of one point, or of different metrics, tell nothing; nor do losses that are not finite.
    """
    curve, exact = ([p for p in each if math.isfinite(p.loss)] for each in (curve, exact))
    if len(curve) < 2 or len(exact) < 2 or curve[0].metric != exact[0].metric:
        return None
    target = max(min(point.loss for point in each) for each in (curve, exact))
    steps, exact_steps = steps_to(curve, target), steps_to(exact, target)
    return steps / exact_steps if steps and exact_steps else None


def steps_to(curve: Sequence[CurvePoint], target: float) -> float | None:
    """Steps until the loss is at the target, in a straight line between points; None if never.

    None also where it is there at the first point: then the steps before were not seen.
    """
    before: CurvePoint | None = None
    for point in sorted(curve, key=lambda point: point.steps):
        if point.loss <= target:
            if before is None:
                return None
            part = (before.loss - target) / (before.loss - point.loss)
            return before.steps + part * (point.steps - before.steps)
        before = point
    return None
