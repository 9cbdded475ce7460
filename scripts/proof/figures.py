"""Pictures of predicted against measured steps, and of what choices lose; needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .scores import Played, Score

SIZE_IN = (9.0, 4.6)
DPI = 120
NEAR = 1.1  # a tenth off, shaded
RATIOS = (0.5, 0.7, 0.9, 1.1, 1.5, 2.0)


def pyplot() -> ModuleType | None:
    """Matplotlib without a screen, or nothing where it is not installed."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def predicted_against_measured(
    plt: ModuleType, plays_by_name: Mapping[str, Sequence[Played]], path: Path
) -> None:
    """A panel for each contender: predicted over measured of every arm of several workers."""
    figure, axes = plt.subplots(1, len(plays_by_name), figsize=SIZE_IN, sharex=True, sharey=True)
    workloads = sorted({p.problem.workload for plays in plays_by_name.values() for p in plays})
    for ax, (name, plays) in zip(axes, plays_by_name.items(), strict=True):
        for i, workload in enumerate(workloads):
            steps_s = [
                (p.problem.truth[arm].step_s, said.step_s)
                for p in plays
                if p.problem.workload == workload
                for arm, said in p.said.items()
                if arm.n_workers > 1
            ]
            measured_ms = [1e3 * measured for measured, _ in steps_s]
            ratios = [predicted / measured for measured, predicted in steps_s]
            color = plt.cm.tab10(i % 10)
            ax.scatter(measured_ms, ratios, s=6, color=color, label=workload, alpha=0.5)
        ax.axhspan(1 / NEAR, NEAR, color="grey", alpha=0.15, linewidth=0)
        ax.axhline(1.0, color="black", linewidth=0.8)
        ax.set(xscale="log", yscale="log", title=name, xlabel="measured step (ms)")
        ax.set_yticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
        ax.minorticks_off()
    axes[0].set_ylabel("predicted / measured")
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=4, loc="lower center", fontsize=8)
    _save(plt, figure, path, below=0.12)


def regrets(plt: ModuleType, scores: Sequence[Score], path: Path) -> None:
    """Mean regret of each contender, with its interval."""
    figure, ax = plt.subplots(figsize=SIZE_IN)
    shown = sorted(scores, key=lambda each: -each.regret.value)
    values = [100 * each.regret.value for each in shown]
    low = [100 * max(each.regret.value - each.regret.low, 0.0) for each in shown]
    high = [100 * max(each.regret.high - each.regret.value, 0.0) for each in shown]
    ax.barh([each.name for each in shown], values, xerr=[low, high], color="tab:blue", alpha=0.7)
    ax.set(xscale="symlog", xlabel="step of the choice over the best, mean, per cent")
    _save(plt, figure, path)


def _save(plt: ModuleType, figure: Any, path: Path, below: float = 0.0) -> None:
    """Write a picture, a part of its height left free below."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout(rect=(0.0, below, 1.0, 1.0))
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
