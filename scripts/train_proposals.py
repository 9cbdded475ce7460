"""Trains the network of `launch tune --searcher lstm` on functions that are cheap to evaluate.

    .venv/bin/python scripts/train_proposals.py        # writes policies/data/proposals.json

Evolution strategies (Salimans et al., 2017): weights are shaken in pairs of opposite directions,
and each pair moves them towards its better half. The functions are drawn anew for each iteration.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from policies.proposals import (
    N_RANDOM,
    N_WEIGHTS,
    Array,
    Network,
    features_of,
    reflected,
)

FILE = Path(__file__).parent.parent / "policies/data/proposals.json"
N_TRIALS = 20
N_BUMPS = 4
N_PROBED = 256  # random points by which a function's values are scaled


@dataclass(frozen=True, slots=True)
class Functions:
    """Random functions on the unit cube: a bowl, bumps, and a cliff as of a learning rate.

    Attributes:
        centre, weight: `(n, d)`, of the bowl; some coordinates hardly matter.
        wave, phase, height: of the bumps, `(n, N_BUMPS, d)` and `(n, N_BUMPS)`.
        edge: `(n,)`, where the first coordinate falls off a cliff.
        low, scale: `(n,)`; values become 0 for the best of many random points, 1 in the median.
    """

    centre: Array
    weight: Array
    wave: Array
    phase: Array
    height: Array
    edge: Array
    low: Array
    scale: Array

    @classmethod
    def draw(cls, rng: np.random.Generator, n: int, d: int) -> "Functions":
        """So many functions of so many coordinates."""
        weight = 10.0 ** rng.uniform(-2, 0, (n, d))
        found = cls(
            centre=rng.random((n, d)),
            weight=weight / weight.sum(axis=1, keepdims=True),
            wave=rng.normal(0, 1.0, (n, N_BUMPS, d)),
            phase=rng.uniform(0, 2 * np.pi, (n, N_BUMPS)),
            height=rng.uniform(0, 0.08, (n, N_BUMPS)),
            edge=rng.uniform(0.5, 1.5, n),
            low=np.zeros(n),
            scale=np.ones(n),
        )
        values = found(rng.random((N_PROBED, n, d)))
        low, middle = values.min(axis=0), np.median(values, axis=0)
        fields = {name: getattr(found, name) for name in cls.__slots__}
        return cls(**{**fields, "low": low, "scale": middle - low})

    def __call__(self, points: Array) -> Array:
        """Values `(…, n)` at points `(…, n, d)`."""
        bowl = np.sum(self.weight * (points - self.centre) ** 2, axis=-1)
        angles = 2 * np.pi * np.einsum("...nd,nkd->...nk", points, self.wave) + self.phase
        bumps = np.sum(self.height * np.cos(angles), axis=-1)
        cliff = 2.0 * np.maximum(points[..., 0] - self.edge, 0.0)
        return (bowl + bumps + cliff - self.low) / self.scale


def regrets(weights: Array, functions: Functions, rng: np.random.Generator) -> Array:
    """The best value so far, in the mean over trials and functions, of each network `(p,)`.

    Args:
        weights: `(p, N_WEIGHTS)`.
    """
    n, d = functions.centre.shape
    shape = (len(weights), n, d)
    network = Network(weights[:, None])  # the same for all functions
    state, best = network.begin(shape), np.zeros(shape)
    lowest = np.full(shape[:2], np.inf)
    seen: list[Array] = []
    total = np.zeros(len(weights))
    for t in range(N_TRIALS):
        if t < N_RANDOM:
            points = np.broadcast_to(rng.random((1, n, d)), shape)
        else:
            mean, spread = network.says(state, best)
            points = reflected(mean + spread * rng.standard_normal((1, n, d)))
        values = functions(points)
        is_best = values < lowest
        best = np.where(is_best[..., None], points, best)
        lowest = np.minimum(lowest, values)
        seen.append(values)
        rank = np.mean([earlier < values for earlier in seen], axis=0)
        state = network.step(state, features_of(points, best, rank, is_best, t + 1))
        if t >= N_RANDOM:
            total += np.clip(lowest, 0.0, None).mean(axis=1) * (1 + t / N_TRIALS)
    return total / (N_TRIALS - N_RANDOM)


def trained(iterations: int, seed: int, n_pairs: int, n_functions: int) -> Array:
    """The weights after so many iterations, `(N_WEIGHTS,)`; prints how it goes."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(0, 0.05, N_WEIGHTS)
    first, second = np.zeros(N_WEIGHTS), np.zeros(N_WEIGHTS)  # moments, as Adam has them
    kept = Functions.draw(np.random.default_rng(1), 200, 4)
    began_s = time.monotonic()
    for i in range(1, iterations + 1):
        functions = Functions.draw(rng, n_functions, int(rng.integers(1, 7)))
        shaken = rng.normal(size=(n_pairs, N_WEIGHTS))
        both = np.concatenate([weights + 0.1 * shaken, weights - 0.1 * shaken])
        found = regrets(both, functions, np.random.default_rng(seed * 10_000 + i))
        order = np.argsort(np.argsort(found)) / (len(found) - 1) - 0.5  # ranks, so none dominates
        slope = (order[:n_pairs] - order[n_pairs:]) @ shaken / n_pairs
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope**2
        rate = 0.02 * (1 - 0.9 * i / iterations)
        step = first / (1 - 0.9**i) / (np.sqrt(second / (1 - 0.99**i)) + 1e-8)
        weights = weights - rate * step
        if i % 20 == 0 or i == iterations:
            value = float(regrets(weights[None], kept, np.random.default_rng(2))[0])
            spent_s = time.monotonic() - began_s
            print(f"iteration {i:,}: mean regret {value:.4f} after {spent_s:.0f} s", flush=True)
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--functions", type=int, default=48)
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    weights = trained(arguments.iterations, arguments.seed, arguments.pairs, arguments.functions)
    document = {
        "made_by": "scripts/train_proposals.py",
        "iterations": arguments.iterations,
        "seed": arguments.seed,
        "weights": [round(float(weight), 5) for weight in weights],
    }
    arguments.out.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
