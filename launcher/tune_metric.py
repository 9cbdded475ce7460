"""Which metric a search goes by, and whether small or large is good."""

from collections.abc import Mapping
from typing import Literal

from launcher.errors import UsageError

DEFAULTS = ("val_loss", "loss")
NO_METRIC = frozenset({"learning_rate", "lr"})  # Keras logs them beside the metrics
LARGE_IS_GOOD = ("acc", "auc", "precision", "recall", "f1", "fbeta", "r2", "iou", "dice", "top_k")


def mode_of(metric: str | None) -> Literal["min", "max"]:
    """The direction that a metric's name tells; a loss or an error is to be small."""
    name = (metric or "").lower()
    return "max" if any(word in name for word in LARGE_IS_GOOD) else "min"


def metric_of(asked: str | None, metrics: Mapping[str, float]) -> str:
    """The metric to go by, given what the script reports after its first epoch.

    Raises:
        UsageError: it does not report the metric that was asked for, or none at all.
    """
    known = [name for name in metrics if name not in NO_METRIC]
    found = asked or next((name for name in DEFAULTS if name in metrics), None)
    if found is not None and found in metrics:
        return found
    said = f"it reports {', '.join(known)}" if known else "it reports nothing"
    wanted = "no metric" if asked is None else f"no {asked!r}"
    raise UsageError(
        f"After an epoch the script reports {wanted}: {said}. Name one of those by --metric, or "
        "give model.fit validation data for a val_… one."
    )
