"""How long a rank waits for others, so that its own pace can be told from theirs."""

GRADIENTS, GRADIENT_SLICES = "gradients", "gradient slices"
"""Purposes of the exchanges that end a step's own work."""


class Waits:
    """Time spent in exchanges, and when the last gradients of this rank were ready.

    Attributes:
        total_s: in all exchanges up to now.
        ready_s: when the last exchange of gradients began, on the exchange's clock.
        before_ready_s: `total_s` at that time.
    """

    def __init__(self) -> None:
        self.total_s = self.ready_s = self.before_ready_s = 0.0

    def note(self, purpose: str, began_s: float, ended_s: float) -> None:
        """Counts one exchange."""
        if purpose in (GRADIENTS, GRADIENT_SLICES):
            self.ready_s, self.before_ready_s = began_s, self.total_s
        self.total_s += ended_s - began_s
