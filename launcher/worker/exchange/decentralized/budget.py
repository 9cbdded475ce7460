"""How many bytes a link can carry before the next step."""

STEP_MEMORY = 0.8  # of the mean duration of steps, per step
RATE_MEMORY = 0.7  # of a link's mean rate, per message
FILL = 0.9  # of what a link carries; the rest keeps queues from growing
FIRST_BYTES = 64 << 10  # on a link whose rate nobody knows, enough to measure it


class LinkBudget:
    """The bytes that one link may be given at each step.

    Args:
        rate_bytes_per_s: what it carries, as far as known before training.
        least_bytes: that it is given whenever nothing waits, so that its rate is measured on.
    """

    def __init__(self, rate_bytes_per_s: float | None = None, least_bytes: int = 0) -> None:
        self.rate_bytes_per_s, self._least_bytes = rate_bytes_per_s, least_bytes

    def note_transfer(self, n_bytes: int, took_s: float) -> None:
        """A message of so many bytes took so long while the link was busy with it alone."""
        if n_bytes <= 0 or took_s <= 0:
            return
        rate, before = n_bytes / took_s, self.rate_bytes_per_s
        self.rate_bytes_per_s = (
            rate if before is None else RATE_MEMORY * before + (1 - RATE_MEMORY) * rate
        )

    def capacity_bytes(self, step_s: float | None, n_queued: int) -> int:
        """What the link carries until the next step, less what waits for it already.

        Args:
            step_s: how long a step takes; None if not known yet.
            n_queued: bytes that were given to the link and have not left.
        """
        if self.rate_bytes_per_s is None or step_s is None:
            return 0 if n_queued else FIRST_BYTES
        least_bytes = 0 if n_queued else self._least_bytes
        return max(least_bytes, int(FILL * self.rate_bytes_per_s * step_s) - n_queued)


class StepClock:
    """The mean duration of a worker's own steps."""

    def __init__(self) -> None:
        self.step_s: float | None = None
        self._began_s: float | None = None

    def tick(self, now_s: float) -> None:
        """A step ends and the next one begins."""
        if self._began_s is not None:
            took_s, before = now_s - self._began_s, self.step_s
            self.step_s = (
                took_s if before is None else STEP_MEMORY * before + (1 - STEP_MEMORY) * took_s
            )
        self._began_s = now_s
