"""Tells the loss of a peer from an error of the script's own."""

from typing import Any

from launcher.errors import TrainingFailedError

# What TensorFlow's runtime raises on the ranks that are left when a worker is gone …
LOST = frozenset({"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"})
# … and what of its own it names then.
SIGNS = ("Collective", "/job:worker", "coordination service", "CoordinationService")


def lost_peer(exchange: Any, error: BaseException | None) -> TrainingFailedError | None:
    """The loss of a peer behind an error that ended the script; None where it was none.

    Args:
        exchange: of this rank; all but TensorFlow's know.
        error: as the script raised it.
    """
    known: TrainingFailedError | None = getattr(exchange, "lost", None)
    if known is not None:
        return known
    if getattr(exchange, "world_size", 1) == 1:
        return None
    if error is None or type(error).__name__ not in LOST:
        return None
    text = str(error)
    if not any(sign in text for sign in SIGNS):
        return None
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return TrainingFailedError(f"A worker was lost while gradients were exchanged ({first:.200}).")
