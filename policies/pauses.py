"""What training stands still for, checkpoints and evaluation: as assumed, and as seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Floats
from policies.cost_model import StepParts, checkpoint_s, evaluation_s
from policies.robust import Correction, Posterior, before_any_row, robust_fit, standard
from policies.rows import Rows, is_time, kinship, machines_of
from policies.schema import Experience, Node, Work

# How far the assumed time may be off, as standard deviations of its logarithm: of every script,
# and of one script besides.
EVALUATION: Final = 0.3
OWN_EVALUATION: Final = 0.3
CHECKPOINT: Final = 0.6
OWN_CHECKPOINT: Final = 0.4
# From one to the next of the very same script.
NOISE: Final = 0.2


@dataclass(frozen=True, slots=True)
class LearnedPauses:
    """Posteriors of log(observed / prior) of an epoch's evaluation, and of a checkpoint."""

    evaluation_fit: Posterior
    checkpoint_fit: Posterior

    @property
    def evaluation(self) -> Correction:
        """What experience says of the evaluation of an epoch."""
        return _correction(self.evaluation_fit, _features(EVALUATION, OWN_EVALUATION, own=True))

    @property
    def checkpoint(self) -> Correction:
        """What experience says of what a checkpoint takes from training."""
        return _correction(self.checkpoint_fit, _features(CHECKPOINT, OWN_CHECKPOINT, own=True))


@dataclass(frozen=True, slots=True)
class _Pause:
    """log(observed / prior) of a pause, whether of the script itself, and what it counts."""

    log_ratio: float
    own: bool
    weight: float


def learn_pauses(rows: Rows, script: str, nodes: Sequence[Node]) -> LearnedPauses:
    """The posteriors after what was measured.

    What other scripts and other clusters took weighs less.
    """
    machines = machines_of(nodes)
    evaluated, kept = [], []
    for e, parts in zip(rows.experience, rows.parts, strict=True):
        own, weight = e.workload.fingerprint == script, kinship(e, script, machines)
        prior_s = _evaluation_s(e, parts)
        if e.evaluation_s and is_time(e.evaluation_s) and prior_s > 0.0:
            evaluated.append(_Pause(math.log(e.evaluation_s / prior_s), own, weight))
        prior_s = checkpoint_s(e.workload.weights_bytes)
        if e.checkpoint_s and is_time(e.checkpoint_s):
            kept.append(_Pause(math.log(e.checkpoint_s / prior_s), own, weight))
    return LearnedPauses(
        _fit(evaluated, EVALUATION, OWN_EVALUATION), _fit(kept, CHECKPOINT, OWN_CHECKPOINT)
    )


def _evaluation_s(e: Experience, parts: StepParts) -> float:
    """The prior of one epoch's evaluation; 0 where the script has none."""
    n_batches = max((fit.validation_steps for fit in e.workload.fits[:1]), default=0)
    return evaluation_s(parts, Work(0, 1.0, e.global_batch, n_batches))


def _features(shared: float, own_part: float, *, own: bool) -> Floats:
    return np.array([shared, own_part * own])


def _fit(pauses: Sequence[_Pause], shared: float, own_part: float) -> Posterior:
    if not pauses:
        return before_any_row(standard(2), NOISE)
    x = np.array([_features(shared, own_part, own=each.own) for each in pauses])
    y = np.array([each.log_ratio for each in pauses])
    return robust_fit(x, y, np.array([each.weight for each in pauses]), NOISE)


def _correction(posterior: Posterior, x: Floats) -> Correction:
    return Correction(posterior.mean(x), math.sqrt(posterior.variance(x)))
