"""A learned proposal: an LSTM that goes through past trials and says where to look next.

One small LSTM goes through the trials for each coordinate of the search space, with the same
weights for all coordinates, so it fits spaces of any size (as the optimizer of Andrychowicz et al.,
2016, fits any number of parameters). It was trained to reach low values soon on many functions that
are cheap to evaluate (as Chen et al., 2017): `scripts/train_proposals.py`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FILE = "proposals.json"
N_RANDOM = 3  # trials before the network proposes
N_FEATURES = 6
HORIZON = 20.0  # trials that it was trained for
HIDDEN = 10
N_WEIGHTS = 4 * HIDDEN * (N_FEATURES + HIDDEN + 1) + 2 * (HIDDEN + 1)
MIN_SPREAD, MAX_SPREAD = 0.01, 0.4


@dataclass(frozen=True, slots=True)
class Shown:
    """A trial as far as it has come: a point of the unit cube, and a loss (None: none yet)."""

    point: tuple[float, ...]
    loss: float | None


@dataclass(frozen=True, slots=True)
class State:
    """What the network remembers of the trials so far, `(…, d, HIDDEN)` each."""

    output: Array
    cell: Array


class Network:
    """The LSTM and what it says. All arrays may have leading axes, of weights too.

    Args:
        weights: `(…, N_WEIGHTS)`, of gates and of what is said.
    """

    def __init__(self, weights: Array) -> None:
        n_gates = 4 * HIDDEN * (N_FEATURES + HIDDEN + 1)
        lead = weights.shape[:-1]
        self._gates = weights[..., :n_gates].reshape(*lead, N_FEATURES + HIDDEN + 1, 4 * HIDDEN)
        self._says = weights[..., n_gates:].reshape(*lead, HIDDEN + 1, 2)

    def begin(self, shape: tuple[int, ...]) -> State:
        """The state before the first trial; `shape` is that of the points."""
        return State(np.zeros((*shape, HIDDEN)), np.zeros((*shape, HIDDEN)))

    def step(self, state: State, features: Array) -> State:
        """Go through one more trial.

        Args:
            features: `(…, d, N_FEATURES)`.
        """
        inputs = np.concatenate([features, state.output, np.ones((*features.shape[:-1], 1))], -1)
        gates = inputs @ self._gates
        forget, enter, leave = (
            _sigmoid(gates[..., i * HIDDEN : (i + 1) * HIDDEN] + (i == 0)) for i in range(3)
        )
        cell = forget * state.cell + enter * np.tanh(gates[..., 3 * HIDDEN :])
        return State(leave * np.tanh(cell), cell)

    def says(self, state: State, best: Array) -> tuple[Array, Array]:
        """Where to look next, and how far around that: means and deviations `(…, d)`."""
        ones = np.ones((*state.output.shape[:-1], 1))
        said = np.concatenate([state.output, ones], -1) @ self._says
        mean = best + 0.5 * np.tanh(said[..., 0])
        return mean, MIN_SPREAD + (MAX_SPREAD - MIN_SPREAD) * _sigmoid(said[..., 1] - 1.0)


def features_of(point: Array, best: Array, rank: Array, is_best: Array, n_shown: int) -> Array:
    """What the network sees of a trial, `(…, d, N_FEATURES)`.

    Args:
        point, best: `(…, d)`, the trial's and the best one's so far.
        rank: `(…)`, from 0 (the best so far) to 1.
        is_best: `(…)`, whether it is the best so far.
        n_shown: trials so far, this one included.
    """
    shape = point.shape
    return np.stack(
        [
            point - 0.5,
            best - 0.5,
            point - best,
            np.broadcast_to(rank[..., None] - 0.5, shape),
            np.broadcast_to(is_best[..., None].astype(float), shape),
            np.full(shape, min(n_shown / HORIZON, 1.0)),
        ],
        axis=-1,
    )


def reflected(points: Array) -> Array:
    """Points beyond the ends of 0 to 1, thrown back."""
    return 1.0 - np.abs(1.0 - np.mod(points, 2.0))


class LearnedProposals:
    """Proposes the next trial; the same for the same seed and trials.

    Args:
        n_dimensions: of the search space.
        weights: `(N_WEIGHTS,)`; those that were learned if left out.
    """

    def __init__(self, n_dimensions: int, seed: int, weights: Array | None = None) -> None:
        self._n, self._seed = n_dimensions, seed
        self._network = Network(learned_weights() if weights is None else weights)

    def __call__(self, shown: Sequence[Shown]) -> tuple[float, ...]:
        """A point of the unit cube.

        Args:
            shown: all trials, oldest first; those without a loss are passed over.
        """
        rng = np.random.default_rng([self._seed, len(shown)])
        told = [each for each in shown if each.loss is not None]
        if len(told) < N_RANDOM:
            return tuple(rng.random(self._n))
        points = np.array([each.point for each in told])
        losses = np.array([each.loss for each in told], float)
        mean, spread = self._said(points, losses)
        return tuple(reflected(mean + spread * rng.standard_normal(self._n)))

    def _said(self, points: Array, losses: Array) -> tuple[Array, Array]:
        state, best = self._network.begin((self._n,)), 0
        for i, point in enumerate(points):
            best = i if losses[i] < losses[best] or i == 0 else best
            rank = np.mean(losses[: i + 1] < losses[i])
            features = features_of(point, points[best], np.array(rank), np.array(best == i), i + 1)
            state = self._network.step(state, features)
        return self._network.says(state, points[best])


def learned_weights() -> Array:
    """The weights that the training script has found, `(N_WEIGHTS,)`."""
    text = resources.files("policies.data").joinpath(FILE).read_text("utf-8")
    return np.array(json.loads(text)["weights"], float)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
