"""Pictures of predicted against measured steps, and of what choices lose; needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from .scores import Played, Score

SIZE_IN = (9.0, 4.6)
DPI = 120


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
    """A panel for each contender: every arm of several workers, coloured by workload."""
    figure, axes = plt.subplots(1, len(plays_by_name), figsize=SIZE_IN, sharex=True, sharey=True)
    workloads = sorted({p.problem.workload for plays in plays_by_name.values() for p in plays})
    colors = {name: plt.cm.tab10(i % 10) for i, name in enumerate(workloads)}
    for ax, (name, plays) in zip(axes, plays_by_name.items(), strict=True):
        ends: list[float] = []
        for workload in workloads:
            points = [
                (1e3 * p.problem.truth[arm].step_s, 1e3 * said.step_s)
                for p in plays
                if p.problem.workload == workload
                for arm, said in p.said.items()
                if arm.n_workers > 1
            ]
            measured, predicted = zip(*points, strict=True)
            ends += [min(measured), max(measured)]
            ax.scatter(measured, predicted, s=7, color=colors[workload], label=workload, alpha=0.6)
        line = [min(ends), max(ends)]
        ax.plot(line, line, color="black", linewidth=0.8)
        ax.plot(line, [1.1 * x for x in line], color="grey", linewidth=0.6, linestyle=":")
        ax.plot(line, [x / 1.1 for x in line], color="grey", linewidth=0.6, linestyle=":")
        ax.set(xscale="log", yscale="log", title=name, xlabel="measured step (ms)")
    axes[0].set_ylabel("predicted step (ms)")
    axes[-1].legend(fontsize=7, markerscale=2)
    _save(plt, figure, path)


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


def _save(plt: ModuleType, figure: object, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()  # type: ignore[attr-defined]
    figure.savefig(path, dpi=DPI)  # type: ignore[attr-defined]
    plt.close(figure)
