"""How many bytes a link can carry before the next step."""

STEP_MEMORY = 0.8  # of the mean duration of steps, per step
LONGEST = 4.0  # times the mean, that a step counts for: what takes longer is a validation, say
RATE_MEMORY = 0.8  # of a link's bytes and times, per message
PRIOR_S = 0.1  # of carrying, that a rate known before counts for
FILL = 0.9  # of what a link carries; the rest keeps queues from growing
FIRST_STEP_S = 0.02  # of a step whose duration nobody knows
FIRST_BYTES = 64 << 10  # on a link whose rate nobody knows, enough to measure it


class LinkBudget:
    """The bytes that one link may be given at each step.

    Its rate is all bytes of late over all time that they took. A mean of single rates would be
    far too high where receipts come in bursts, as from a peer that is throttled.

    Args:
        rate_bytes_per_s: what it carries, as far as known before training.
        least_bytes: that it is given whenever nothing waits, so that its rate is measured on.
    """

    def __init__(self, rate_bytes_per_s: float | None = None, least_bytes: int = 0) -> None:
        self._least_bytes = least_bytes
        self._took_s = PRIOR_S if rate_bytes_per_s is not None else 0.0
        self._carried_bytes = (rate_bytes_per_s or 0.0) * self._took_s

    @property
    def rate_bytes_per_s(self) -> float | None:
        """What the link carries; None if not known yet."""
        return self._carried_bytes / self._took_s if self._took_s else None

    def note_transfer(self, n_bytes: int, took_s: float) -> None:
        """A message of so many bytes took so long while the link was busy with it alone."""
        if n_bytes > 0 and took_s > 0:
            self._carried_bytes = RATE_MEMORY * self._carried_bytes + n_bytes
            self._took_s = RATE_MEMORY * self._took_s + took_s

    def capacity_bytes(self, step_s: float | None, n_queued: int) -> int:
        """What the link carries until the next step, less what waits for it already.

        Args:
            step_s: how long a step takes; None if not known yet.
            n_queued: bytes that were given to the link and have not left.
        """
        rate = self.rate_bytes_per_s
        if rate is None:
            return 0 if n_queued else FIRST_BYTES
        step_s = FIRST_STEP_S if step_s is None else step_s
        least_bytes = 0 if n_queued else self._least_bytes
        return max(least_bytes, int(FILL * rate * step_s) - n_queued)


class StepClock:
    """The mean duration of a worker's own steps."""

    def __init__(self) -> None:
        self.step_s: float | None = None
        self._began_s: float | None = None

    def tick(self, now_s: float) -> None:
        """A step ends and the next one begins."""
        if self._began_s is not None:
            took_s, before = now_s - self._began_s, self.step_s
            if before is None:
                self.step_s = took_s
            else:
                lately_s = min(took_s, LONGEST * before)
                self.step_s = STEP_MEMORY * before + (1 - STEP_MEMORY) * lately_s
        self._began_s = now_s
