"""How old gradients are when they arrive."""

from dataclasses import dataclass


@dataclass(slots=True)
class Staleness:
    """Counts gradients by age: steps that the receiver has taken beyond what the sender knew.

    Attributes:
        most: that is still applied, in steps; None for no bound.
        n_applied: gradients that were young enough.
        n_dropped: gradients that were too old.
        total: sum of the ages of those that were applied, in steps.
        oldest: of those that were applied, in steps.
    """

    most: int | None = None
    n_applied: int = 0
    n_dropped: int = 0
    total: int = 0
    oldest: int = 0

    def admits(self, own_step: int, heard_step: int) -> bool:
        """Whether a gradient is young enough; counts it.

        Args:
            own_step: steps that the receiver has taken.
            heard_step: of these, what the sender knew when it computed.
        """
        age = max(0, own_step - heard_step)
        if self.most is not None and age > self.most:
            self.n_dropped += 1
            return False
        self.n_applied += 1
        self.total += age
        self.oldest = max(self.oldest, age)
        return True

    @property
    def mean(self) -> float:
        """Age of the gradients that were applied, in steps."""
        return self.total / self.n_applied if self.n_applied else 0.0
