"""Max N: which gradients go over a link, the most significant ones first (DLion)."""

from dataclasses import dataclass

import numpy as np

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.sparse import Vector

N_SAMPLED = 8192
MARGIN = 1.25  # asked of the sample, so that its error seldom leaves a budget unused


@dataclass(frozen=True, slots=True)
class Chosen:
    """The entries that go.

    Attributes:
        n_percent: of each variable, entries within so many percent of its largest magnitude go.
        indices: ascending, shape `(k,)`; None for all.
    """

    n_percent: float
    indices: np.ndarray | None


def choose(values: Vector, layout: Layout, n_entries: int) -> Chosen:
    """At most so many entries, those nearest to the largest magnitude of their variable.

    N is chosen from a sample of every variable, so that a step over a large model costs a few
    passes over it and no sorting; where that is a few too many, the most significant of them go.

    Args:
        values: shape `(d,)`.
        layout: of the variables.
        n_entries: how many may go.
    """
    if n_entries >= layout.size:
        return Chosen(100.0, None)
    magnitudes = np.abs(values)
    peaks = [float(part.max()) for part in layout.variables(magnitudes)]
    if n_entries <= 0 or not any(peaks):
        return Chosen(0.0, np.zeros(0, np.int64))
    least = _least_ratio(magnitudes, layout, peaks, n_entries)
    indices = _at_least(magnitudes, layout, peaks, least)
    if len(indices) > n_entries:
        ratios = _ratios(magnitudes, layout, peaks, indices)
        kept = np.argpartition(-ratios, n_entries - 1)[:n_entries]
        least = max(least, float(ratios[kept].min()))
        indices = np.sort(indices[kept])
    return Chosen(100.0 * (1.0 - least), indices)


def _least_ratio(magnitudes: Vector, layout: Layout, peaks: list[float], n_entries: int) -> float:
    """The ratio to its variable's peak that about so many entries reach."""
    stride = max(1, layout.size // N_SAMPLED)
    pairs = zip(layout.variables(magnitudes), peaks, strict=True)
    sample = np.concatenate([part[::stride] / peak for part, peak in pairs if peak])
    n_wanted = MARGIN * n_entries / layout.size * len(sample)
    if n_wanted >= len(sample):
        return float(np.finfo(np.float32).tiny)
    place = len(sample) - 1 - int(n_wanted)
    ratio = float(np.partition(sample, place)[place])
    return max(ratio, float(np.finfo(np.float32).tiny))


def _at_least(magnitudes: Vector, layout: Layout, peaks: list[float], ratio: float) -> np.ndarray:
    found = [
        span.start + np.flatnonzero(magnitudes[span] >= ratio * peak)
        for span, peak in zip(layout.spans, peaks, strict=True)
        if peak
    ]
    return np.concatenate(found)


def _ratios(magnitudes: Vector, layout: Layout, peaks: list[float], indices: np.ndarray) -> Vector:
    ends = [span.stop for span in layout.spans]
    variable = np.searchsorted(ends, indices, side="right")
    return np.asarray(magnitudes[indices] / np.asarray(peaks, np.float32)[variable])
