"""The choice under uncertainty: the best plan that fits, with a bounded price for exploring."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from policies.constants import S_PER_H
from policies.forecast import Forecast
from policies.schema import Limits, Objective

P_FITS: Final = 0.9
# Two plans closer than this are alike: the cheaper, then the smaller, is taken.
ALIKE: Final = 0.02


def loss(forecast: Forecast, objective: Objective) -> float:
    """What the objective minimises, in expectation, to the same accuracy: seconds, or dollars."""
    return forecast.compared.mean if objective == "time" else forecast.compared_usd


def best(forecasts: Sequence[Forecast], objective: Objective) -> Forecast:
    """The plan with the least expected loss among those that fit, else the likeliest to fit."""
    fitting = [f for f in forecasts if f.p_fits >= P_FITS]
    if not fitting:
        return min(forecasts, key=lambda f: (-f.p_fits, f.cost_usd, f.time.mean))
    least = min(loss(f, objective) for f in fitting)
    alike = [f for f in fitting if loss(f, objective) <= least * (1.0 + ALIKE)]
    other: Objective = "cost" if objective == "time" else "time"
    return min(alike, key=lambda f: (loss(f, other), f.plan.n_workers, loss(f, objective)))


def choose(
    forecasts: Sequence[Forecast], limits: Limits, seed: int, others: Sequence[Forecast] = ()
) -> Forecast:
    """The best plan, or now and then one that may turn out better (Thompson sampling).

    `others` are never the best, but may be tried.

    One draw from each plan's time decides (Thompson 1933), so a plan is tried as often as it is
    likely to be the best. Exploration takes only plans that fit, whose expected extra time is at
    most `explore` of the best plan's, and that put at most `explore` of the budget at stake.
    Nothing is explored under a deadline, with seed 0, or when even the best plan may not fit.
    """
    greedy = best(forecasts, limits.objective)
    if greedy.p_fits < P_FITS or limits.deadline_s is not None or seed == 0:
        return greedy
    arms = [
        f for f in (*forecasts, *others) if f.p_fits >= P_FITS and _affordable(f, greedy, limits)
    ]
    rng = np.random.default_rng(seed)
    drawn = [_draw(arm, limits.objective, rng) for arm in arms]
    return arms[int(np.argmin(drawn))] if len(arms) > 1 else greedy


def _affordable(arm: Forecast, greedy: Forecast, limits: Limits) -> bool:
    extra_s = arm.compared.mean - greedy.compared.mean
    if extra_s > limits.explore * greedy.compared.mean + 1e-12:
        return False
    if limits.budget_usd is None:
        return arm.cost_usd - greedy.cost_usd <= limits.explore * greedy.cost_usd + 1e-12
    return at_stake_usd(arm, greedy) <= limits.explore * limits.budget_usd + 1e-12


def at_stake_usd(arm: Forecast, greedy: Forecast) -> float:
    """What trying a plan may cost more than the best one is expected to.

    At the upper end of the 90 % interval of its cost. Without a budget nothing is set aside to be
    lost: there only the expected cost counts, against that of the best plan.
    """
    return max(0.0, arm.candidate.prediction.cost_usd.high - greedy.cost_usd)


def _draw(arm: Forecast, objective: Objective, rng: np.random.Generator) -> float:
    time = arm.compared
    time_s = math.exp(time.mu + time.sigma * float(rng.standard_normal()))
    return time_s if objective == "time" else time_s * arm.usd_per_h / S_PER_H + arm.lingering_usd
