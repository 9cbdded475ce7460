"""Rules for choosing n that the recommender must beat, each from its source.

A rule is asked a `Question` and may have arms tried, at a price that is not its own to count. It
names an arm, and the step of every arm that its model says something of.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
from scipy.optimize import minimize, nnls

from policies.arrays import Floats, Ints
from policies.question import ALLREDUCE, Answer, Arm, Case, Observe, Question, RingLink, Rule

__all__ = ["RULES", "Answer", "Arm", "Case", "Observe", "Question", "RingLink", "Rule"]


def one_worker(question: Question, observe: Observe) -> Answer:  # noqa: ARG001 - runs nothing
    """Never distribute."""
    alone = question.alone
    return Answer(alone, {alone: question.alone_s(question.batch)})


def all_nodes(question: Question, observe: Observe) -> Answer:  # noqa: ARG001 - runs nothing
    """Ray Train's elastic workers, `num_workers=(1, N)`: as many as fit, exchanging as usual."""
    return Answer(max(_usual(question), key=lambda arm: arm.n_workers))


def _usual(question: Question) -> tuple[Arm, ...]:
    """The arms of rules that know one exchange only: TensorFlow's own where it is offered."""
    exchanges = sorted({arm.exchange for arm in question.arms if arm != question.alone})
    usual = ALLREDUCE if ALLREDUCE in exchanges or not exchanges else exchanges[0]
    return question.with_exchange(usual)


# Horovod's default fusion threshold, which Jansen's model was fitted with.
FUSION_BYTES: Final = 64.0 * 1024**2


def jansen_step_s(
    single_s: float, payload_bytes: float, links: Sequence[RingLink], threshold_bytes: float
) -> float:
    """Jansen 2020: T(n) = T1/n + 2(n-1)·max_i(L_i + min(G, th) / (n·BW_i)).

    Args:
        single_s: step time of one worker on the whole batch, T1.
        payload_bytes: size of the gradients, G.
        links: the ring's links, one per worker; their number is n.
        threshold_bytes: fusion threshold of the all-reduce, th.
    """
    n = len(links)
    if n == 1:
        return single_s
    fused = min(payload_bytes, threshold_bytes)
    slowest_s = max(x.latency_s + fused / (n * x.bandwidth_bytes_per_s) for x in links)
    return single_s / n + 2.0 * (n - 1) * slowest_s


def jansen(question: Question, observe: Observe) -> Answer:  # noqa: ARG001 - runs nothing
    """The n with the least step time by Jansen's model of a ring."""
    single_s = question.alone_s(question.batch)
    step_s = {
        arm: jansen_step_s(
            single_s, question.payload_bytes, question.links_for(arm.n_workers), FUSION_BYTES
        )
        for arm in _usual(question)
    }
    return Answer(question.best(step_s), step_s)


def nearest(question: Question, observe: Observe) -> Answer:
    """The table's case nearest in batch and latency (Anwar et al. 2021): what was best there.

    Distances are of logarithms, each in units of its spread over the table. Speed-ups are taken
    over and not steps, which another model's table cannot tell.
    """
    single_s = question.alone_s(question.batch)
    usable = [case for case in question.table if set(question.arms) & set(case.speedup)]
    if not usable:
        return one_worker(question, observe)
    places = np.log([[case.batch, case.rtt_s] for case in usable])
    spread = np.maximum(places.std(axis=0), 1e-9)
    here = np.log([question.batch, question.rtt_s])
    far = np.round((((places - here) / spread) ** 2).sum(axis=1), 9)
    near = [case for case, at in zip(usable, far, strict=True) if at == far.min()]
    step_s = {}
    for arm in question.arms:
        logs = [math.log(case.speedup[arm]) for case in near if arm in case.speedup]
        if logs:
            step_s[arm] = single_s / math.exp(sum(logs) / len(logs))
    return Answer(question.best(step_s), step_s)


def half_efficient(speedup_by_n: Mapping[int, float], efficiency: float = 0.5) -> int:
    """AdaptDL's rule on Ray: the largest n with speed-up / n of at least a half.

    Source: `ray/adaptdl_ray/aws/optimizer.py` of petuum/adaptdl.
    """
    return max(n for n, gain in speedup_by_n.items() if gain / n >= efficiency * speedup_by_n[1])


@dataclass(frozen=True, slots=True)
class Goodput:
    """AdaptDL's model of a step over several nodes (Pollux, OSDI '21, equation 7).

    step = (compute^γ + network^γ)^(1/γ), compute = `alpha_c` + `beta_c`·rows of a worker,
    network = `alpha_n` + `beta_n`·max(n - 2, 0), nothing for one worker. Source:
    `adaptdl/goodput.py`.
    """

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    gamma: float

    def step_s(self, n_workers: int, batch: int) -> float:
        """Step of n workers."""
        compute_s = self.alpha_c + self.beta_c * batch / n_workers
        network_s = self.alpha_n + self.beta_n * max(n_workers - 2, 0) if n_workers > 1 else 0.0
        top = max(compute_s, network_s)
        ratios = (compute_s / top) ** self.gamma + (network_s / top) ** self.gamma
        return float(top * ratios ** (1.0 / self.gamma))


NOTHING_S: Final = 1e-8


def fit_goodput(question: Question, seen_s: Mapping[int, float]) -> Goodput:
    """AdaptDL's fit: log errors of the step, regularised towards little overlap and regression.

    What was not seen is taken for free: without a step of several nodes the network costs
    nothing, without one of more than two `beta_n` is nothing. Compute is measured by itself.

    Args:
        question: knows the compute of any number of rows.
        seen_s: steps by n.
    """
    rows = [question.batch / n for n in seen_s] + [question.batch / 2]
    beta_c, alpha_c = np.polyfit(rows, [question.alone_s(b) for b in rows], 1)
    computing = Goodput(max(float(alpha_c), NOTHING_S), max(float(beta_c), 0.0), NOTHING_S, 0, 1)
    several = {n: s for n, s in seen_s.items() if n > 1}
    if not several:
        return computing
    logs, batch = {n: math.log(s) for n, s in several.items()}, question.batch

    def model(x: Floats) -> Goodput:
        beta_n = math.exp(x[1]) if max(several) > 2 else NOTHING_S
        return replace(computing, alpha_n=math.exp(x[0]), beta_n=beta_n, gamma=float(x[2]))

    def objective(x: Floats) -> float:
        found = model(x)
        off = [math.log(found.step_s(n, batch)) - log_s for n, log_s in logs.items()]
        plain = 1e-3 * (found.gamma - 1.0) ** 2 + 1e-2 * (found.beta_n / found.alpha_n) ** 2
        return math.sqrt(sum(x * x for x in off) / len(off)) + plain

    least = math.log(NOTHING_S)
    bounds = [(least, 7.0), (least, 7.0), (1.0, 10.0)]
    scale = math.log(max(several.values()))
    starts = [(scale + log_s, scale + log_s - 2.3, 1.001) for log_s in (-4.6, -2.3, -0.7)]
    fits = [minimize(objective, x, bounds=bounds, method="Nelder-Mead") for x in starts]
    return model(min(fits, key=lambda fit: float(fit.fun)).x)


MOVES: Final = 4
LEAST_GAIN: Final = 1.05


def adaptdl(question: Question, observe: Observe) -> Answer:
    """AdaptDL on Ray: from one worker on, to the rule's n by its model fitted to all steps so far.

    Its model is optimistic of what it has not seen, so the first move is to all nodes. A move
    that gains less than 5 % is not made. It ends when it moves no more.
    """
    arm_by_n = {arm.n_workers: arm for arm in _usual(question)}
    n, seen_s = 1, {1: observe(question.alone)}
    model = fit_goodput(question, seen_s)
    for _ in range(MOVES):
        step_s = {m: model.step_s(m, question.batch) for m in arm_by_n}
        wish = half_efficient({m: step_s[1] / s for m, s in step_s.items()})
        if wish == n or step_s[n] / step_s[wish] < LEAST_GAIN:
            break
        n = wish
        if n not in seen_s:
            seen_s[n] = observe(arm_by_n[n])
        model = fit_goodput(question, seen_s)
    return Answer(arm_by_n[n], {a: model.step_s(m, question.batch) for m, a in arm_by_n.items()})


SCALES: Final = (0.25, 0.5, 1.0)


def ernest_features(scale: float, n_workers: int) -> list[float]:
    """[1, scale/m, log m, m] of m machines (Ernest, NSDI '16; `predictor.py` of amplab/ernest)."""
    return [1.0, scale / n_workers, math.log(n_workers), float(n_workers)]


def ernest(question: Question, observe: Observe) -> Answer:
    """Ernest: non-negative least squares on runs of few machines and on parts of the input.

    It has one worker run a quarter, half and all of a batch, which the profile does anyway, and
    up to half of the machines the whole batch, in powers of two; each exchange by itself.
    """
    step_s: dict[Arm, float] = {}
    for exchange in sorted({arm.exchange for arm in question.arms}):
        arms = question.with_exchange(exchange)
        seen = [(scale, 1, question.alone_s(scale * question.batch)) for scale in SCALES]
        most = max(2, max(arm.n_workers for arm in arms) // 2)
        for arm in arms:
            n = arm.n_workers
            if 1 < n <= most and n & (n - 1) == 0:
                seen.append((1.0, n, observe(arm)))
        x = np.array([ernest_features(scale, n) for scale, n, _ in seen])
        weights, _ = nnls(x, np.array([s for _, _, s in seen]))
        for arm in arms:
            step_s[arm] = max(float(np.dot(ernest_features(1.0, arm.n_workers), weights)), 1e-9)
    return Answer(question.best(step_s), step_s)


# CherryPick's rule to stop: at least so many arms tried, and less than this to be gained.
AT_LEAST: Final = 6
GAIN: Final = 0.10
FIRST: Final = 3
LENGTHS: Final = (0.25, 0.5, 1.0, 2.0)
# Of a trial, as deviation of the logarithm.
NOISE: Final = 0.05


def cherrypick(question: Question, observe: Observe) -> Answer:
    """CherryPick (NSDI '17): Bayesian optimisation, Matérn-5/2 process, expected improvement.

    Three arms spread over n come first. Then the arm of the largest expected improvement, times
    the probability to keep the limit, is tried, until six were and the next one promises less
    than 10 %. The best one tried is chosen.
    """
    arms = sorted(question.arms)
    tried = {arm: observe(arm) for arm in _spread(arms)}
    while len(tried) < len(arms):
        found = _process(arms, tried)
        left = [arm for arm in arms if arm not in tried]
        gains = {arm: _improvement(question, tried, arm, *found[arm]) for arm in left}
        wish = max(left, key=lambda arm: (gains[arm], arm))
        if gains[wish] < GAIN and len(tried) >= min(AT_LEAST, len(arms) - 1):
            break
        tried[wish] = observe(wish)
    said = {arm: math.exp(mu) for arm, (mu, _) in _process(arms, tried).items()}
    return Answer(question.best(tried), said | tried)


def _spread(arms: Sequence[Arm]) -> list[Arm]:
    return [arms[round(i * (len(arms) - 1) / (FIRST - 1))] for i in range(min(FIRST, len(arms)))]


def _places(arms: Sequence[Arm]) -> Floats:
    """Arms as points, shape `(n, 1 + exchanges)`: n by its logarithm, the exchange as flags."""
    most = math.log(max(arm.n_workers for arm in arms)) or 1.0
    names = sorted({arm.exchange for arm in arms})
    rows = [
        [math.log(arm.n_workers) / most, *(0.5 * (arm.exchange == name) for name in names)]
        for arm in arms
    ]
    return np.array(rows)


def _process(arms: Sequence[Arm], tried: Mapping[Arm, float]) -> dict[Arm, tuple[float, float]]:
    """Mean and deviation of the logarithm of every arm's step; the likeliest length scale."""
    at = np.array([arms.index(arm) for arm in tried])
    logs, places = np.log(list(tried.values())), _places(arms)
    apart = np.linalg.norm(places[:, None, :] - places[None, :, :], axis=-1)
    center, scale = float(logs.mean()), max(float(logs.std()), NOISE)
    y, noise = (logs - center) / scale, (NOISE / scale) ** 2
    fits = [_fit_process(matern(apart / length), at, y, noise) for length in LENGTHS]
    _, means, variances = max(fits, key=lambda fit: fit[0])
    found = zip(arms, center + scale * means, scale * np.sqrt(variances), strict=True)
    return {arm: (float(mu), float(sigma)) for arm, mu, sigma in found}


def matern(apart: Floats) -> Floats:
    """Matérn covariance with ν = 5/2 at distances in length scales (Rasmussen, Williams 2006)."""
    far = math.sqrt(5.0) * apart
    found: Floats = (1.0 + far + far**2 / 3.0) * np.exp(-far)
    return found


def _fit_process(
    covariance: Floats, at: Ints, y: Floats, noise: float
) -> tuple[float, Floats, Floats]:
    """Log evidence; mean and variance everywhere (Rasmussen, Williams 2006, algorithm 2.1)."""
    root = np.linalg.cholesky(covariance[np.ix_(at, at)] + noise * np.eye(len(at)))
    across = covariance[:, at]
    pull = np.linalg.solve(root.T, np.linalg.solve(root, y))
    shrink = np.linalg.solve(root, across.T)
    evidence = -0.5 * float(y @ pull) - float(np.log(np.diag(root)).sum())
    return evidence, across @ pull, np.maximum(1.0 - (shrink**2).sum(axis=0), 0.0) + noise


def _improvement(
    question: Question, tried: Mapping[Arm, float], arm: Arm, mu: float, sigma: float
) -> float:
    """Expected improvement of the logarithm of the loss, times the chance to keep the limit."""
    normal, sigma, kept = NormalDist(), max(sigma, 1e-9), 1.0
    if arm in question.limit_s:
        kept = normal.cdf((math.log(question.limit_s[arm]) - mu) / sigma)
    best = question.best(tried)
    if tried[best] > question.limit_s.get(best, math.inf):
        return kept  # nothing tried keeps the limit, so all that may is worth a try
    gain = math.log(question.loss(best, tried[best])) - math.log(question.loss(arm, 1.0)) - mu
    z = gain / sigma
    return kept * (gain * normal.cdf(z) + sigma * normal.pdf(z))


RULES: Final[Mapping[str, Rule]] = {
    "one worker": one_worker,
    "all nodes": all_nodes,
    "AdaptDL": adaptdl,
    "Ernest": ernest,
    "CherryPick": cherrypick,
    "Jansen": jansen,
    "nearest neighbour": nearest,
}
